# SPDX-License-Identifier: Apache-2.0
"""Which values may share memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thunder_fuser.trace.dataflow import Memory

NAMES = st.sampled_from("abcdefgh")
GROUPS = st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), max_size=6)


def test_a_group_joins_what_was_joined_before() -> None:
    memory = Memory([("a", "b"), ("c", "d"), ("e",)])
    memory.join([("b", "c")])
    assert memory.sharing(["d", "x"]) == {"a", "b", "c", "d"}
    assert memory.sharing(["e"]) == {"e"}
    assert memory.of("d") == memory.of("a") != memory.of("e")


@given(GROUPS, st.sets(NAMES))
def test_sharing_is_what_groups_reach(groups: list[tuple[str, ...]], names: set[str]) -> None:
    known = {name for group in groups for name in group}
    reached = names & known
    for _ in known:
        reached.update(*(group for group in groups if reached & {*group}))
    memory = Memory(groups)
    assert memory.sharing(names) == reached
    assert memory.sharing(known) == known
