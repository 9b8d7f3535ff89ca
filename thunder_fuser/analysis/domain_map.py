# SPDX-License-Identifier: Apache-2.0
"""Classes of equal axes of different tensors, which are the axes of a kernel; reduction patterns.

    T2 = add(T0[i0, i1], T1[i2, b3]);  T4 = sum(T2, 1)[i0, r1]
    classes: {i0, i2}, {i1, r1}; broadcasts belong to none

Axes of partial results over runs of equal length are in one class too. Two axes of one tensor are
never in one class, because a kernel would then compute only its diagonal.

    T1 = permute(T0[i0, i1]);  T2 = sub(T1[i1, i0], T0[i0, i1])    classes: {i0}, {i1}

The pattern of a reduction is the set of axes that it keeps and the set that it reduces. Schedulers
compare the patterns of a part. The segmenter compares patterns without making a Part.

    T1[i0] = sum(T0[i0, i1], dims=[1])   ->   Pattern(kept={i0}, reduced={i1})
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass

from thunder_fuser.base.union_find import UnionFind
from thunder_fuser.ir.domain import IterDomain
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import AttrValue, OpRecord, names_of
from thunder_fuser.ir.rules.indexed import indexed_axis

Axes = frozenset[str]

# Ops that walk their operands together, except along one axis that is indexed.
_ALONG = ("take_along_axis", "gather")


class DomainMap:
    """Classes of axes, by the numbers in their names. A class is named iN."""

    def __init__(self, tensors: Mapping[str, TensorView], exprs: Iterable[OpRecord]) -> None:
        self._classes: UnionFind[str] = UnionFind()
        self._apart: dict[str, set[str]] = {}
        exprs = list(exprs)
        for name in dict.fromkeys(n for e in exprs for n in (*names_of(e), *e.outputs)):
            self._keep_apart(tensors[name])
        for expr in exprs:
            if expr.row.kind is OpKind.POINTWISE or expr.op in ("cat", *_ALONG):
                self._join_columns(tensors, expr)
        self._join_runs([(e.attr("chunk"), tensors[e.outputs[0]]) for e in exprs])

    def axis(self, axis: IterDomain) -> str:
        """The name of an axis's class, which is that of its first member."""
        return "i" + self._classes.find(axis.name[1:])

    def joined(self, a: str, b: str) -> DomainMap:
        """A copy in which two classes are one, unless a tensor has an axis in each."""
        other = deepcopy(self)
        other._join(a[1:], b[1:])
        return other

    def axes(self, view: TensorView) -> tuple[str, ...]:
        """The classes of a tensor's axes in logical order, without broadcasts."""
        return tuple(self.axis(axis) for axis in view.domain.no_reductions if not axis.is_broadcast)

    def reduced(self, view: TensorView) -> tuple[str, ...]:
        """The classes of the axes that a reduction reduces."""
        return tuple(self.axis(a) for a in view.domain.logical if a.is_reduction and not is_unit(a))

    def _join_columns(self, tensors: Mapping[str, TensorView], expr: OpRecord) -> None:
        result = tensors[expr.outputs[0]].domain.no_reductions
        along = indexed_axis(expr, len(result)) if expr.op in _ALONG else None
        for name in names_of(expr):
            axes = tensors[name].domain.no_reductions
            pairs = zip(result, axes)  # noqa: B905  a scalar operand has no axes
            for ours, theirs in (pair for at, pair in enumerate(pairs) if at != along):
                if not (ours.is_broadcast or theirs.is_broadcast) and ours.extent is theirs.extent:
                    self._join(ours.name[1:], theirs.name[1:])

    def _join_runs(self, results: Iterable[tuple[AttrValue, TensorView]]) -> None:
        """Joins the axes of partial results over equal runs of the same axes."""
        first: dict[tuple[AttrValue, tuple[str, ...]], str] = {}
        for chunk, view in results:
            if chunk is not None:
                number = view.domain.logical[0].name[1:]
                self._join(first.setdefault((chunk, self.reduced(view)), number), number)

    def _keep_apart(self, view: TensorView) -> None:
        """Records that the axes of one tensor are different."""
        numbers = {axis.name[1:] for axis in view.domain.logical if not axis.is_broadcast}
        for number in numbers:
            self._apart.setdefault(number, set()).update(numbers - {number})

    def _join(self, a: str, b: str) -> None:
        """Joins two classes, unless a tensor has an axis in each."""
        find = self._classes.find
        first, second = sorted((find(a), find(b)), key=int)
        if first == second or second in {find(n) for n in self._apart.get(first, ())}:
            return
        self._classes.join(first, second)
        self._apart[first] = self._apart.get(first, set()) | self._apart.get(second, set())


def is_unit(axis: IterDomain) -> bool:
    """True if the axis has the constant extent 1."""
    return axis.extent.is_const and axis.extent.value == 1


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
        """The sets of axes that are neither the kept axes nor all axes of this pattern.

        A kernel of this pattern cannot write a result over them. runs: the axis of partial results,
        which full-size values lack.
        """
        allowed = (self.kept, self.without(runs).walked)
        return {axes for axes in stored if axes not in allowed}


def pattern_of(domain_map: DomainMap, result: TensorView) -> Pattern:
    """The pattern of the reduction that makes a value."""
    return Pattern(frozenset(domain_map.axes(result)), frozenset(domain_map.reduced(result)))


def rows_and_groups(patterns: Collection[Pattern]) -> tuple[Pattern, ...] | None:
    """(pattern of rows, pattern of groups), if the second reduces the results of the first. Behind
    these the pattern of sums over rows that keep columns of their own, if there is one.

    T1[i0, i1] = sum(T0[i0, i1, i2]); T2[i0] = sum(T1)     rows {i0, i1}, groups {i0}
    T4[i0, i3] = sum(T3[i0, i1, i3])                       columns {i0, i3}
    """
    if len(patterns) not in (2, 3):
        return None
    groups = min(patterns, key=lambda pattern: len(pattern.kept))
    rows = [pattern for pattern in patterns if pattern.kept == groups.walked]
    columns = [pattern for pattern in patterns if pattern not in (*rows, groups)]
    fits = all(each.reduced == groups.reduced and each.kept > groups.kept for each in columns)
    return (*rows, groups, *columns) if len(rows) == 1 and fits else None
