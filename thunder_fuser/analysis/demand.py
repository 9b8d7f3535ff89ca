# SPDX-License-Identifier: Apache-2.0
"""The points that a part computes: from the outputs back to the inputs, with index expressions.

A point is a value at an index under a condition. Readers of a reduction's result are in a later
nest. Readers of a scan are in the same nest, because the scan makes its elements in order.

    softmax row x:  nest 0: max(x)   nest 1: sum(exp(x - max))   nest 2: exp(x - max) / sum
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from thunder_fuser.analysis.dataflow import Dataflow
from thunder_fuser.analysis.domain_map import is_one
from thunder_fuser.analysis.index_map import (
    TRUE,
    ZERO,
    Access,
    Index,
    accesses,
    index_accesses,
    reduction_index,
)
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.scalar import Scalar, conjunction, const, symbol


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


@dataclass(frozen=True)
class Demand:
    """The points of a part, the points that each reads, and its first nest (level)."""

    reads: Mapping[Point, tuple[Point, ...]]
    level: Mapping[Point, int]
    roots: tuple[Point, ...]  # what nests compute: results, and operands of reductions and scans
    results: Mapping[str, Point]
    operands: Mapping[str, Point]  # by the name of the reduction's or scan's result

    def count(self, name: str) -> int:
        """The number of different indices at which a value is computed."""
        return len({point.index for point in self.points(name)})

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
    expr = part.producer[point.name]
    if expr.row.kind is OpKind.REDUCTION:
        source = part.tensors[str(expr.inputs[0])]
        reduced = tuple(
            ZERO if is_one(axis) else axes[part.domain_map.axis(axis)]
            for axis in part.tensors[point.name].domain.logical
            if axis.is_reduction
        )
        index = reduction_index(expr, point.index, reduced, len(source.shape))
        return (Point(source.name, index),)
    if expr.row.kind is OpKind.INDEX:
        found = index_accesses(expr, point.index, point.condition, part.tensors)
    else:
        found = accesses(expr, point.index, part.tensors)
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
