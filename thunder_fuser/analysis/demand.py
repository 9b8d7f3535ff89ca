# SPDX-License-Identifier: Apache-2.0
"""The dataflow of a part, and the points that it computes: from the outputs back to the inputs.

A point is a value at an index expression, under a condition. Readers of a reduction's result are in
a later nest. Readers of a scan are in the same nest, because the scan makes its elements in order.

    softmax row x:  nest 0: max(x)   nest 1: sum(exp(x - max))   nest 2: exp(x - max) / sum
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from thunder_fuser.analysis.domain_map import DomainMap, is_one
from thunder_fuser.analysis.index_map import TRUE, ZERO, Access, Index, accesses
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.ir.scalar import Scalar, conjunction, const, symbol


@dataclass(frozen=True)
class Dataflow:
    """Expressions in order; names read from outside; names made here and wanted outside."""

    exprs: tuple[OpRecord, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, TensorView] = field(compare=False, repr=False)
    domain_map: DomainMap = field(compare=False, repr=False)

    @cached_property
    def producer(self) -> Mapping[str, OpRecord]:
        """The expression that makes each value."""
        return {name: expr for expr in self.exprs for name in expr.outputs}

    @cached_property
    def extents(self) -> Mapping[str, Scalar]:
        """The extent of every axis class."""
        found: dict[str, Scalar] = {}
        for name in dict.fromkeys([*self.inputs, *self.producer]):
            for axis in self.tensors[name].domain.logical:
                if not is_one(axis):
                    found[self.domain_map.axis(axis)] = axis.extent
        return found


@dataclass(frozen=True, slots=True)
class Point:
    """A value at an index, needed where the condition is true."""

    name: str
    index: Index
    condition: Scalar = field(default_factory=lambda: const(1))

    @property
    def symbols(self) -> frozenset[str]:
        """Every symbol of the index and the condition."""
        return self.condition.symbols.union(*(at.symbols for at in self.index))

    def walks(self, axes: Collection[str]) -> bool:
        """True if the index depends on one of the axes."""
        return any(not at.symbols.isdisjoint(axes) for at in self.index)


@dataclass(frozen=True)
class Demand:
    """The points of a part, the points that each reads, and its first nest (level)."""

    reads: Mapping[Point, tuple[Point, ...]]
    level: Mapping[Point, int]
    roots: tuple[Point, ...]  # what nests compute: results, and operands of reductions and scans
    results: Mapping[str, Point]
    operands: Mapping[str, Point]  # by the name of the reduction's or scan's result

    def points(self, name: str) -> Sequence[Point]:
        """Every point of a value."""
        return self._by_name.get(name, ())

    @cached_property
    def _by_name(self) -> Mapping[str, list[Point]]:
        found: dict[str, list[Point]] = {}
        for point in self.level:
            found.setdefault(point.name, []).append(point)
        return found

    def reached(self, roots: Iterable[Point], stop: frozenset[Point] = frozenset()) -> list[Point]:
        """The points that the roots need, up to `stop`, in order of discovery."""
        seen: dict[Point, None] = {}
        stack = list(roots)
        while stack:
            point = stack.pop()
            if point not in seen:
                seen[point] = None
                if point not in stop and point.name not in self.operands:
                    stack.extend(self.reads.get(point, ()))
        return list(seen)


def axis_symbols(part: Dataflow) -> dict[str, Scalar]:
    """A bounded symbol for each axis class."""
    return {name: symbol(name, 0, int(extent.value) - 1) for name, extent in part.extents.items()}


def result_index(part: Dataflow, name: str, axes: Mapping[str, Scalar]) -> Index:
    """The index of a tensor, given the index of each axis class."""
    logical = part.tensors[name].domain.no_reductions
    return tuple(ZERO if a.is_broadcast else axes[part.domain_map.axis(a)] for a in logical)


def demand_of(part: Dataflow, axes: Mapping[str, Scalar]) -> Demand:
    """All points of the part, given the index of each axis class."""
    results = {name: Point(name, result_index(part, name, axes)) for name in part.outputs}
    wanted: dict[str, dict[Point, None]] = {}
    for point in results.values():
        wanted.setdefault(point.name, {})[point] = None
    reads: dict[Point, tuple[Point, ...]] = {}
    operands: dict[str, Point] = {}
    for expr in reversed(part.exprs):
        for point in list(wanted.get(expr.outputs[0], ())):
            reads[point] = _reads(part, point, axes)
            if expr.row.kind in (OpKind.REDUCTION, OpKind.SCAN):
                operands[point.name] = reads[point][0]
            for read in reads[point]:
                wanted.setdefault(read.name, {})[read] = None
    level = _levels(part, wanted, reads)
    roots = (*operands.values(), *results.values())
    return Demand(reads, level, tuple(dict.fromkeys(roots)), results, operands)


def _reads(part: Dataflow, point: Point, axes: Mapping[str, Scalar]) -> tuple[Point, ...]:
    reduced = tuple(
        ZERO if is_one(axis) else axes[part.domain_map.axis(axis)]
        for axis in part.tensors[point.name].domain.logical
        if axis.is_reduction
    )
    expr = part.producer[point.name]
    found = accesses(expr, point.index, part.tensors, reduced, point.condition)
    return tuple(_read(part, access, point.condition) for access in found)


def _read(part: Dataflow, access: Access, outer: Scalar) -> Point:
    """The point of one read. It has no condition if it reads a reduction's result."""
    producer = part.producer.get(access.operand)
    if producer is not None and producer.row.kind is OpKind.REDUCTION:
        return Point(access.operand, access.index)
    own = access.condition
    both = outer if own is TRUE else conjunction([outer, own])
    return Point(access.operand, access.index, both)


def _levels(
    part: Dataflow,
    wanted: Mapping[str, Mapping[Point, None]],
    reads: Mapping[Point, tuple[Point, ...]],
) -> dict[Point, int]:
    level = {point: 0 for name in part.inputs for point in wanted.get(name, ())}
    for expr in part.exprs:
        step = 1 if expr.row.kind is OpKind.REDUCTION else 0
        for point in wanted.get(expr.outputs[0], ()):
            level[point] = step + max((level[read] for read in reads[point]), default=0)
    return level
