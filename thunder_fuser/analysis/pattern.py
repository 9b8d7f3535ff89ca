# SPDX-License-Identifier: Apache-2.0
"""The pattern of a reduction: which axes it keeps and which it reduces.

    T1[i0] = sum(T0[i0, i1], dims=[1])   ->   Pattern(kept={i0}, reduced={i1})

Schedulers compare the patterns of a part, and the segmenter those of expressions without a Part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from thunder_fuser.analysis.domain_map import DomainMap
from thunder_fuser.ir.fusion import TensorView

Axes = frozenset[str]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The axes that a reduction keeps and reduces. Partial results keep the axis of runs."""

    kept: Axes
    reduced: Axes

    @property
    def walked(self) -> Axes:
        """All axes of the operand."""
        return self.kept | self.reduced

    def without(self, axis: str) -> Pattern:
        """The pattern without the axis of runs of partial results."""
        return Pattern(self.kept - {axis}, self.reduced)

    def foreign(self, stored: Iterable[Axes], runs: str = "") -> set[Axes]:
        """The axes of results that neither a row value nor a full-size value has.

        A kernel of this pattern cannot write such a result. runs: the axis of partial results,
        which full-size values lack.
        """
        allowed = (self.kept, self.without(runs).walked)
        return {axes for axes in stored if axes not in allowed}


def pattern_of(domain_map: DomainMap, result: TensorView) -> Pattern:
    """The pattern of the reduction that makes a value."""
    return Pattern(frozenset(domain_map.axes(result)), frozenset(domain_map.reduced(result)))


def rows_and_groups(patterns: Collection[Pattern]) -> tuple[Pattern, Pattern] | None:
    """(pattern of rows, pattern of groups of rows), if one reduces axes that the other keeps.

    T1[i0, i1] = sum(T0[i0, i1, i2]); T2[i0] = sum(T1)     rows {i0, i1}, groups {i0}
    """
    if len(patterns) != 2:
        return None
    rows, groups = sorted(patterns, key=lambda pattern: -len(pattern.kept))
    return (rows, groups) if rows.kept == groups.walked else None
