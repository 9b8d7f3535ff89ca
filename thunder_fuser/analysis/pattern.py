# SPDX-License-Identifier: Apache-2.0
"""The pattern of a reduction: which axes it keeps and which it reduces.

    T1[i0] = sum(T0[i0, i1], dims=[1])   ->   Pattern(kept={i0}, reduced={i1})

Schedulers compare the patterns of a part; the segmenter asks the same questions of groups of
expressions that have no Part yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from thunder_fuser.analysis.domain_map import DomainMap
from thunder_fuser.ir.fusion import TensorView

Axes = frozenset[str]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The axes a reduction keeps and those it reduces. Partial results keep the axis of runs."""

    kept: Axes
    reduced: Axes

    @property
    def walked(self) -> Axes:
        """The axes of what is reduced."""
        return self.kept | self.reduced

    def without(self, axis: str) -> Pattern:
        """The pattern without the axis along which partial results stand."""
        return Pattern(self.kept - {axis}, self.reduced)

    def foreign(self, stored: Iterable[Axes], runs: str = "") -> set[Axes]:
        """The axes, of those of results, that are neither a row value's nor a full-size value's.

        A kernel of this pattern cannot write such a result. runs: the axis along which partial
        results stand, which full-size values lack.
        """
        allowed = (self.kept, self.without(runs).walked)
        return {axes for axes in stored if axes not in allowed}


def pattern_of(domain_map: DomainMap, result: TensorView) -> Pattern:
    """The pattern of the reduction that makes a value."""
    return Pattern(frozenset(domain_map.axes(result)), frozenset(domain_map.reduced(result)))


def rows_and_groups(patterns: Collection[Pattern]) -> tuple[Pattern, Pattern] | None:
    """The pattern of rows and that of groups of rows, if one reduces what the other one keeps.

    T1[i0, i1] = sum(T0[i0, i1, i2]); T2[i0] = sum(T1)     rows {i0, i1}, groups {i0}
    """
    if len(patterns) != 2:
        return None
    rows, groups = sorted(patterns, key=lambda pattern: -len(pattern.kept))
    return (rows, groups) if rows.kept == groups.walked else None
