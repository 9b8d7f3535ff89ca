# SPDX-License-Identifier: Apache-2.0
"""What stays with torch, and why, as reports tell it: no bound symbol lives for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from thunder.core.symbol import BoundSymbol

from thunder_fuser.trace.op import Reject


@dataclass(frozen=True, slots=True)
class Unfused:
    """An op that stays with torch, and why.

    where: file:line of the user's code, or of what it was derived from; empty if unknown.
    """

    name: str
    reason: Reject
    where: str = ""

    @staticmethod
    def of(bsym: BoundSymbol, reason: Reject) -> Unfused:
        """What a report says of it, without the bound symbol, which would live as long."""
        return Unfused(bsym.sym.name, reason, _source_line(bsym))


def _source_line(bsym: BoundSymbol) -> str:
    if bsym.source_filename is None or bsym.source_positions is None:
        return ""
    short = "/".join(bsym.source_filename.split("/")[-2:])
    return f"{short}:{bsym.source_positions.lineno}"


class Refused:
    """What was refused so far. Layers are refused alike: equal entries are one."""

    def __init__(self) -> None:
        self.all: list[Unfused] = []
        self._known: dict[Unfused, Unfused] = {}

    def note(self, refusals: Iterable[tuple[BoundSymbol, Reject]]) -> None:
        for bsym, reason in refusals:
            one = Unfused.of(bsym, reason)
            self.all.append(self._known.setdefault(one, one))
