# SPDX-License-Identifier: Apache-2.0
"""A part of a fusion, as a scheduler sees it: expressions, inputs, outputs, strides and points.

A point is a value at an index expression, under a condition. Points are found from the outputs back
to the inputs. Readers of a reduction's result are in a later nest. Readers of a scan are in the
same nest, because a scan produces its elements in order.

    softmax row x:  nest 0: max(x)   nest 1: sum(exp(x - max))   nest 2: exp(x - max) / sum
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeVar

from thunder_fuser.analysis.domain_map import Axes, DomainMap, Pattern, is_unit, pattern_of
from thunder_fuser.analysis.index_map import TRUE, ZERO, Index, Point, accesses, index_element
from thunder_fuser.base.threads import cached_property
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.rules.indexed import indexed_axis
from thunder_fuser.ir.rules.shapes import normalise_axes
from thunder_fuser.ir.scalar import Scalar, conjunction, symbol
from thunder_fuser.ir.strides import (
    check_stride_order,
    contiguous_strides,
    reshape_groups,
    reshaped_order,
    stride_order_of,
)

T = TypeVar("T")
RemadeAxes = tuple[tuple[str, ...], tuple[str, ...]]  # axes, and what a view makes of them


@dataclass(frozen=True, slots=True)
class Chunked:
    """Partial results along `axis`: one for each run of `size` elements of `reduced`."""

    axis: str
    reduced: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class Part:
    """The dataflow of one kernel, and the strides of its tensors.

    exprs: in program order; inputs: values read from outside; outputs: values computed here and
    needed outside; overwrites: pairs of an output and the input whose memory it overwrites.
    """

    exprs: tuple[OpRecord, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, TensorView] = field(compare=False, repr=False)
    domain_map: DomainMap = field(compare=False, repr=False)
    strides: Mapping[str, tuple[int, ...]] = field(compare=False, repr=False)
    overwrites: tuple[tuple[str, str], ...] = ()

    @cached_property
    def producer(self) -> Mapping[str, OpRecord]:
        """The expression that makes each value."""
        return {name: expr for expr in self.exprs for name in expr.outputs}

    @cached_property
    def extents(self) -> Mapping[str, Scalar]:
        """The extent of every axis class."""
        extents: dict[str, Scalar] = {}
        for name in dict.fromkeys([*self.inputs, *self.producer]):
            for axis in self.tensors[name].domain.logical:
                if not is_unit(axis):
                    extents[self.domain_map.axis(axis)] = axis.extent
        return extents

    @cached_property
    def reductions(self) -> tuple[OpRecord, ...]:
        return tuple(expr for expr in self.exprs if expr.row.kind is OpKind.REDUCTION)

    @cached_property
    def patterns(self) -> Mapping[str, Pattern]:
        """The pattern of each reduction, by the name of its result."""
        names = (expr.outputs[0] for expr in self.reductions)
        return {name: pattern_of(self.domain_map, self.tensors[name]) for name in names}

    def reductions_that_keep(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The names of the reductions that keep all these axes."""
        return tuple(n for n, pattern in self.patterns.items() if pattern.kept.issuperset(axes))

    @cached_property
    def stored_axes(self) -> Mapping[str, Axes]:
        """The axes of each result, as a set."""
        return {name: frozenset(self.axes(name)) for name in self.outputs}

    @cached_property
    def partial(self) -> tuple[str, ...]:
        """The partial results: those of reductions with `chunk`, over runs of elements."""
        return tuple(e.outputs[0] for e in self.reductions if e.attr("chunk") is not None)

    @cached_property
    def chunked(self) -> Chunked | None:
        """The runs of the part's partial reductions; None if it has none."""
        if not self.partial:
            return None
        view, chunk = self.tensors[self.partial[0]], self.producer[self.partial[0]].integer("chunk")
        runs = self.domain_map.axis(view.domain.logical[0])
        return Chunked(runs, self.domain_map.reduced(view), chunk)

    @cached_property
    def scans(self) -> tuple[OpRecord, ...]:
        return tuple(expr for expr in self.exprs if expr.row.kind is OpKind.SCAN)

    @cached_property
    def has_empty(self) -> bool:
        """True if some tensor has no elements."""
        names = (*self.inputs, *self.producer)
        return any(0 in self.tensors[name].sizes for name in names)

    @cached_property
    def demand(self) -> Demand:
        """The points of the part, with one symbol for each axis class."""
        return demand_of(self, axis_symbols(self))

    @cached_property
    def accessed(self) -> Mapping[Point, Scalar]:
        """The points that are read from memory or written to it, each with its position there."""
        tensors, stored = set(self.global_tensors), set(self.outputs)
        return {
            point: self.position(point)
            for point in self.demand.level
            if point.name in tensors
            and (point.name not in stored or point == self.demand.results[point.name])
        }

    def position(self, point: Point) -> Scalar:
        """Where an element is in memory, in elements. A result of index_store is in the slices of
        the input that it overwrites."""
        expr, index = self.producer.get(point.name), point.index
        if expr is not None and expr.op == "index_store":
            axis = indexed_axis(expr, len(index))
            at = index_element(expr, index, point.condition, self.tensors)
            index = (*index[:axis], at, *index[axis + 1 :])
        return offset(index, self.strides[point.name])

    def axes(self, name: str) -> tuple[str, ...]:
        """The axis classes of a tensor in logical order, without broadcasts."""
        return self.domain_map.axes(self.tensors[name])

    def memory_axes(self, name: str) -> tuple[str, ...]:
        """The axis classes of a tensor from the slowest in memory to the fastest."""
        axes, strides = self.tensors[name].domain.no_reductions, self.strides[name]
        real = [at for at in range(len(axes)) if not axes[at].is_broadcast]
        real.sort(key=lambda at: -strides[at])
        return tuple(self.domain_map.axis(axes[at]) for at in real)

    @cached_property
    def merged_axes(self) -> tuple[RemadeAxes, ...]:
        """Those of `remade_axes` with several axes on one side: the last first, and then from
        results to operands."""
        several = [pair for pair in self.remade_axes if max(map(len, pair)) > 1]
        return (*several[::-1], *((after, before) for before, after in several))

    @cached_property
    def remade_axes(self) -> tuple[RemadeAxes, ...]:
        """Groups of axes, each with the axes that a view or an index makes of it, in order.

        reshape([i0, i1]) -> [i2]                  (i0, i1): (i2,)
        cat([i0, i1], [i0, i2]) -> [i0, i3]        (i1,): (i3,), (i2,): (i3,)
        embedding_fwd([i0, i1], [i2, i3])          (i2,): (i0, i1)
        """
        return tuple(dict.fromkeys(pair for expr in self.exprs for pair in self._remade(expr)))

    def _remade(self, expr: OpRecord) -> Iterator[RemadeAxes]:
        is_index = expr.row.kind is OpKind.INDEX
        if not (is_index or expr.op in ("reshape", "slice", "pad", "cat", "flip")):
            return
        read = (str(expr.inputs[expr.row.source]),) if is_index else names_of(expr)
        *operands, result = views = [self.tensors[name] for name in (*read, expr.outputs[0])]
        for operand in operands if all(0 not in view.sizes for view in views) else ():
            rank, more = len(operand.sizes), len(result.sizes) - len(operand.sizes)
            pairs = reshape_groups(operand.sizes, result.sizes) if expr.op == "reshape" else (
                # an index of several axes has them first
                ((at,), range(at + more if at else 0, at + more + 1)) for at in range(rank)
            )
            for pair in pairs:
                sides = [
                    [view.domain.no_reductions[at] for at in group if view.sizes[at] != 1]
                    for group, view in zip(pair, (operand, result), strict=True)
                ]
                before, after = (tuple(map(self.domain_map.axis, group)) for group in sides)
                if before and before != after and not any(a.is_broadcast for g in sides for a in g):
                    yield before, after

    def bytes_of(self, name: str) -> int:
        """The bytes of a tensor in memory; see bytes_in_memory."""
        return bytes_in_memory(self.tensors[name], self.strides[name])

    def elements(self, name: str) -> int:
        """The positions in memory from a tensor's first element to its last one."""
        view, strides = self.tensors[name], self.strides[name]
        wide = [(n, s) for n, s in zip(view.sizes, strides, strict=True) if n > 1]
        return sum(((n - 1) * s for n, s in wide), 1)

    @property
    def moved(self) -> tuple[int, int]:
        """(bytes of all inputs, bytes of all outputs)"""
        return sum(map(self.bytes_of, self.inputs)), sum(map(self.bytes_of, self.outputs))

    @property
    def global_tensors(self) -> tuple[str, ...]:
        """The tensors that the part reads from and writes to memory."""
        read = [name for name in self.inputs if not self.tensors[name].by_value]
        return (*read, *self.outputs)


class Parts:
    """Makes the parts of one specialised fusion, which share its axis classes."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.strides = tensor_strides(fusion)
        self.domain_map = DomainMap(fusion.tensors, fusion.exprs)

    def of(self, exprs: Iterable[OpRecord], wanted: frozenset[str] | None = None) -> Part:
        """The part with these expressions.

        wanted: the values to store; by default results, and values that other expressions read.
        """
        exprs = tuple(exprs)
        makes = {name: None for expr in exprs for name in expr.outputs}
        read = dict.fromkeys(name for expr in exprs for name in names_of(expr))
        if wanted is None:
            inside, uses = set(exprs), self.fusion.uses
            wanted = self.fusion.results.union(n for n in makes if not inside.issuperset(uses[n]))
        inputs = tuple(name for name in read if name not in makes)
        outputs = tuple(name for name in makes if name in wanted)
        return Part(exprs, inputs, outputs, self.fusion.tensors, self.domain_map, self.strides)


def bytes_in_memory(view: TensorView, strides: tuple[int, ...]) -> int:
    """The bytes of a tensor in memory. An expanded axis (stride 0) has one element there."""
    real = [s for s, st in zip(view.sizes, strides, strict=True) if st or s <= 1]
    return prod(real) * view.dtype.bytes


def tensor_strides(fusion: Fusion) -> dict[str, tuple[int, ...]]:
    """The strides that every value of a specialised fusion has if it is stored.

    An input has its own strides, a result the requested order. Other values of pointwise ops take
    the order of their first operand with the same sizes, also through reshapes and permutations;
    copies behind a boundary that of what they copy. Everything else is row-major.
    """
    strides: dict[str, tuple[int, ...]] = {}
    orders = _orders_of_pointwise(fusion)
    for record in fusion.definition:
        if record.op == "add_output":
            continue
        fixed = record.attr("strides") if record.op == "define_tensor" else None
        for view in (fusion.tensors[name] for name in record.outputs):
            order = orders.get(view.name) or stride_order_of(view.domain.allocation)
            strides[view.name] = fixed or contiguous_strides(view.sizes, order)  # type: ignore[assignment]
    for output in fusion.outputs:
        if output.stride_order is not None and output.name not in fusion.inputs:
            sizes = fusion.tensors[output.name].sizes
            strides[output.name] = contiguous_strides(sizes, output.stride_order)
        if output.alias is not None:
            strides[output.name] = strides[output.alias]
    return strides


def _orders_of_pointwise(fusion: Fusion) -> dict[str, tuple[int, ...]]:
    """The stride orders of intermediates that only pointwise ops and reductions read; copies behind
    a boundary may also be sliced and padded.

    All others are row-major, because views and torch's ops need that.
    """
    known = {output.name: output.stride_order for output in fusion.outputs}
    results = frozenset(known)
    for record in fusion.definition:
        for name in record.outputs:
            if record.op == "define_tensor":
                order = stride_order_of(fusion.tensors[name].domain.allocation)
                known[name] = None if 0 in record.ints("strides") else order
            elif name not in results and name in fusion.producer:
                known[name] = _order_of_result(fusion, record, known)
    return {
        name: order for name, order in known.items()
        if order is not None and name in fusion.producer and name not in results
        and _is_laid(fusion.producer[name], fusion.uses[name])
    }  # fmt: skip


def _is_laid(producer: OpRecord, uses: Iterable[OpRecord]) -> bool:
    """True for an intermediate that only kernels of ours read, by its strides."""
    kinds = {OpKind.POINTWISE, OpKind.REDUCTION}
    if producer.op == "segment_set":
        return all(use.row.kind in kinds or use.op in ("slice", "pad") for use in uses)
    return producer.row.kind is OpKind.POINTWISE and all(use.row.kind in kinds for use in uses)


def _order_of_result(
    fusion: Fusion, record: OpRecord, known: Mapping[str, tuple[int, ...] | None]
) -> tuple[int, ...] | None:
    """The stride order of a result: of a pointwise op, that of its first operand of equal sizes; of
    a view, that of its operand. None if unknown.

        T1 = reshape(T0: [8, 320, 64, 64] in order n h w c, [8, 8, 40, 64, 64])   n h w c0 c1
    """
    sizes = fusion.tensors[record.outputs[0]].sizes
    operands = [(known.get(name), fusion.tensors[name].sizes) for name in names_of(record)]
    if record.row.kind is OpKind.POINTWISE:
        return next((order for order in models_of(operands, sizes) if order is not None), None)
    order, shape = operands[0] if operands else (None, ())
    if record.op == "segment_set":
        return order
    if record.op == "stride_order":
        return check_stride_order(record.ints("stride_order"), len(sizes))
    if order is None or record.op not in ("reshape", "permute"):
        return None
    if record.op == "reshape":
        return reshaped_order(order, shape, sizes)
    return tuple(order[at] for at in normalise_axes(record.attr("dims"), len(shape), record.op))


def models_of(operands: Iterable[tuple[T, Sequence[int]]], sizes: Sequence[int]) -> Iterator[T]:
    """The operands whose stride order a pointwise result of these sizes may have; the first that
    has one decides, as in eager torch. operands: each with its sizes."""
    return (operand for operand, dims in operands if dims == sizes)


def offset(index: tuple[Scalar, ...], strides: tuple[int, ...]) -> Scalar:
    """The position in memory, in elements."""
    return sum((at * stride for at, stride in zip(index, strides, strict=True)), ZERO)


# ---- points


@dataclass(frozen=True)
class Demand:
    """The points of a part, the points that each one reads, and its first nest (level)."""

    reads: Mapping[Point, tuple[Point, ...]]
    level: Mapping[Point, int]
    roots: tuple[Point, ...]  # ends of nests: results, and operands of reductions and scans
    results: Mapping[str, Point]
    operands: Mapping[str, Point]  # by the name of the reduction's or scan's result

    def points(self, name: str) -> Sequence[Point]:
        """Every point of a value."""
        return self._by_name.get(name, ())

    @cached_property
    def _by_name(self) -> Mapping[str, list[Point]]:
        by_name: dict[str, list[Point]] = {}
        for point in self.level:
            by_name.setdefault(point.name, []).append(point)
        return by_name

    def reached(self, roots: Iterable[Point], stop: frozenset[Point] = frozenset()) -> list[Point]:
        """The points that the roots need, in order of discovery. The search ends at `stop`."""
        seen: dict[Point, None] = {}
        stack = list(roots)
        while stack:
            point = stack.pop()
            if point not in seen:
                seen[point] = None
                if point not in stop and point.name not in self.operands:
                    stack.extend(self.reads.get(point, ()))
        return list(seen)


def axis_symbols(part: Part) -> dict[str, Scalar]:
    """A bounded symbol for each axis class."""
    return {name: symbol(name, 0, int(extent.value) - 1) for name, extent in part.extents.items()}


def result_index(part: Part, name: str, axes: Mapping[str, Scalar]) -> Index:
    """The index of a tensor, given the index of each axis class."""
    logical = part.tensors[name].domain.no_reductions
    return tuple(ZERO if a.is_broadcast else axes[part.domain_map.axis(a)] for a in logical)


def demand_of(
    part: Part, axes: Mapping[str, Scalar], settled: Callable[[Scalar], Scalar] | None = None
) -> Demand:
    """All points of the part, given the index of each axis class.

    settled: what is the same as an index of a read, in simpler terms.
    """
    results = {name: Point(name, result_index(part, name, axes)) for name in part.outputs}
    wanted = {name: {point: None} for name, point in results.items()}
    reads: dict[Point, tuple[Point, ...]] = {}
    operands: dict[str, Point] = {}
    for expr in reversed(part.exprs):
        for point in list(wanted.get(expr.outputs[0], ())):
            points = _reads(part, point, axes)
            if settled is not None:
                points = tuple(replace(p, index=tuple(map(settled, p.index))) for p in points)
            reads[point] = points
            if expr.row.kind in (OpKind.REDUCTION, OpKind.SCAN):
                operands[point.name] = reads[point][0]
            for read in reads[point]:
                wanted.setdefault(read.name, {})[read] = None
    level = _levels(part, wanted, reads)
    roots = (*operands.values(), *results.values())
    return Demand(reads, level, tuple(dict.fromkeys(roots)), results, operands)


def _reads(part: Part, point: Point, axes: Mapping[str, Scalar]) -> tuple[Point, ...]:
    reduced = tuple(
        ZERO if is_unit(axis) else axes[part.domain_map.axis(axis)]
        for axis in part.tensors[point.name].domain.logical
        if axis.is_reduction
    )
    expr = part.producer[point.name]
    points = accesses(expr, point.index, part.tensors, reduced, point.condition)
    return tuple(_read(part, read, point.condition) for read in points)


def _read(part: Part, read: Point, outer: Scalar) -> Point:
    """The point of one read. A read of a reduction's result has no condition."""
    producer = part.producer.get(read.name)
    if producer is not None and producer.row.kind is OpKind.REDUCTION:
        return Point(read.name, read.index)
    both = outer if read.condition is TRUE else conjunction([outer, read.condition])
    return Point(read.name, read.index, both)


def _levels(
    part: Part,
    wanted: Mapping[str, Mapping[Point, None]],
    reads: Mapping[Point, tuple[Point, ...]],
) -> dict[Point, int]:
    level = {point: 0 for name in part.inputs for point in wanted.get(name, ())}
    for expr in part.exprs:
        step = 1 if expr.row.kind is OpKind.REDUCTION else 0
        for point in wanted.get(expr.outputs[0], ()):
            level[point] = step + max((level[read] for read in reads[point]), default=0)
    return level
