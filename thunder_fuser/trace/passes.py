# SPDX-License-Identifier: Apache-2.0
"""A pass: a named function from one frozen plan of a trace to the next, checked after it ran."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar


class Verified(Protocol):
    """A plan. `verify` raises VerifyError if this one cannot follow from the plan before."""

    def verify(self, name: str, before: Any) -> None: ...


P = TypeVar("P", bound=Verified)


@dataclass(frozen=True, slots=True)
class Pass(Generic[P]):
    """One row of a table of passes. needed: why it cannot be left out; empty if it can."""

    run: Callable[[P], P]
    needed: str = ""

    @property
    def name(self) -> str:
        return self.run.__name__


def run_passes(
    passes: Sequence[Pass[P]],
    plan: P,
    skipped: Collection[str] = (),
    note: Callable[[str, P], None] = lambda name, plan: None,
) -> P:
    """The plan after all passes, each of which is verified.

    skipped: the names of passes to leave out. note: is called with each pass's name and its plan.
    """
    for each in passes:
        if each.name in skipped:
            continue
        after = each.run(plan)
        if after is not plan:
            after.verify(each.name, plan)
        note(each.name, after)
        plan = after
    return plan
