# SPDX-License-Identifier: Apache-2.0
"""Policies: what they print, that they compare, and what is refused."""

from __future__ import annotations

import pytest

from thunder_fuser.errors import OptionError
from thunder_fuser.options import option, options
from thunder_fuser.rematerialization import policy
from thunder_fuser.rematerialization.policy import KEEP, Choice, Cost, policy_of

TEXTS = (
    "none()", "time()", "memory()", "budget(0.25)", "budget(0)", "save_only('t1', 't2')",
    "save_only()",
)  # fmt: skip


def mine(value: str, bytes: int, cost: Cost, tags: frozenset[str]) -> Choice:
    return KEEP


@pytest.mark.parametrize("text", TEXTS)
def test_prints_as_the_call_that_made_it(text: str) -> None:
    one = policy_of(text)
    assert repr(one) == text
    assert policy_of(repr(one)) == one and hash(policy_of(text)) == hash(one)
    assert policy_of(one) is one
    assert {one: 1}[policy_of(text)] == 1


def test_names_alone() -> None:
    assert policy_of("time") == policy.time() != policy.memory()
    assert policy_of("budget(1)") == policy.time()
    assert policy_of(mine) == policy_of(mine)
    assert repr(policy_of(mine)) == "mine"
    assert repr(policy.save_only("t1", mine)) == "save_only('t1', mine)"


@pytest.mark.parametrize(
    "given",
    ["times", "budget", "budget(2)", "budget(-0.1)", "budget('x')", "budget(True)", "time(",
     "time(1)", "save_only(1)", "memory()x", "__import__('os')", 3, None],
    ids=repr,
)  # fmt: skip
def test_refused(given: object) -> None:
    with pytest.raises(OptionError):
        policy_of(given)


def test_answers_other_than_a_choice() -> None:
    said = policy_of(lambda *_: "keep")
    with pytest.raises(OptionError, match=r"of t1.*KEEP, RECOMPUTE or FREE"):
        said("t1", 4, Cost(), frozenset())


def test_an_option_like_others() -> None:
    assert option("rematerialization") == "time"
    with options(rematerialization="memory"):
        assert option("rematerialization") == "memory"
    with options(rematerialization=mine):
        assert option("rematerialization") is mine
    with pytest.raises(OptionError), options(rematerialization=3):
        pass
