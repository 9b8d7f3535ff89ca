# SPDX-License-Identifier: Apache-2.0
"""A part of a fusion, as a scheduler sees it: expressions, inputs, outputs, memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from thunder_fuser.analysis.demand import Dataflow, Demand, Point, axis_symbols, demand_of
from thunder_fuser.analysis.domain_map import Axes, DomainMap, Pattern, pattern_of
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.ir.strides import contiguous_strides, stride_order_of


@dataclass(frozen=True, slots=True)
class Chunked:
    """Partial results along `axis`: one for each run of `size` elements of `reduced`."""

    axis: str
    reduced: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class Part(Dataflow):
    """The dataflow of one kernel, and the strides of its tensors.

    overwrites: pairs of an output and the input whose memory it overwrites.
    """

    strides: Mapping[str, tuple[int, ...]] = field(compare=False, repr=False)
    overwrites: tuple[tuple[str, str], ...] = ()

    @cached_property
    def reductions(self) -> tuple[OpRecord, ...]:
        return tuple(expr for expr in self.exprs if expr.row.kind is OpKind.REDUCTION)

    @cached_property
    def patterns(self) -> Mapping[str, Pattern]:
        """The pattern of each reduction, by the name of its result."""
        names = (expr.outputs[0] for expr in self.reductions)
        return {name: pattern_of(self.domain_map, self.tensors[name]) for name in names}

    @cached_property
    def stored_axes(self) -> Mapping[str, Axes]:
        """The axes of each result, as a set."""
        return {name: frozenset(self.axes(name)) for name in self.outputs}

    @cached_property
    def partial(self) -> tuple[str, ...]:
        """The results of reductions over runs."""
        return tuple(e.outputs[0] for e in self.reductions if e.attr("chunk") is not None)

    @cached_property
    def chunked(self) -> Chunked | None:
        """The runs of the part's partial reductions; None if it has none."""
        if not self.partial:
            return None
        view, chunk = self.tensors[self.partial[0]], self.producer[self.partial[0]].attr("chunk")
        runs = self.domain_map.axis(view.domain.logical[0])
        return Chunked(runs, self.domain_map.reduced(view), int(chunk))  # type: ignore[arg-type]

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
        """The points of the part over axis symbols, which every scheduler uses."""
        return demand_of(self, axis_symbols(self))

    @cached_property
    def accessed(self) -> Mapping[Point, Scalar]:
        """The points that are read from memory or written to it, and their positions there."""
        tensors, stored = set(self.global_tensors), set(self.outputs)
        return {
            point: offset(point.index, self.strides[point.name])
            for point in self.demand.level
            if point.name in tensors
            and (point.name not in stored or point == self.demand.results[point.name])
        }

    def axes(self, name: str) -> tuple[str, ...]:
        """The axis classes of a tensor in logical order, without broadcasts."""
        return self.domain_map.axes(self.tensors[name])

    def memory_axes(self, name: str) -> tuple[str, ...]:
        """The axis classes of a tensor from the slowest in memory to the fastest."""
        axes, strides = self.tensors[name].domain.no_reductions, self.strides[name]
        real = [at for at in range(len(axes)) if not axes[at].is_broadcast]
        real.sort(key=lambda at: -strides[at])
        return tuple(self.domain_map.axis(axes[at]) for at in real)

    def bytes_of(self, name: str) -> int:
        """Bytes a tensor takes, expanded axes counted once."""
        return bytes_in_memory(self.tensors[name], self.strides[name])

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
        self._results = {output.name for output in fusion.outputs}

    def of(self, exprs: Iterable[OpRecord], wanted: frozenset[str] | None = None) -> Part:
        """The part of these expressions.

        wanted: the values to store; by default results, and values that others read.
        """
        exprs = tuple(exprs)
        made = {name: None for expr in exprs for name in expr.outputs}
        read = dict.fromkeys(name for expr in exprs for name in names_of(expr))
        wanted = self.used_outside(exprs) if wanted is None else wanted
        inputs = tuple(name for name in read if name not in made)
        outputs = tuple(name for name in made if name in wanted)
        return Part(exprs, inputs, outputs, self.fusion.tensors, self.domain_map, self.strides)

    def used_outside(self, exprs: Iterable[OpRecord]) -> frozenset[str]:
        """The values of the expressions that are results or that other expressions read."""
        inside = set(exprs)
        made = [name for expr in inside for name in expr.outputs]
        return frozenset(
            name
            for name in made
            if name in self._results or any(u not in inside for u in self.fusion.uses[name])
        )


def bytes_in_memory(view: TensorView, strides: tuple[int, ...]) -> int:
    """Bytes a tensor takes, expanded axes counted once."""
    real = [s for s, st in zip(view.sizes, strides, strict=True) if st or s <= 1]
    return prod(real) * view.dtype.bytes


def tensor_strides(fusion: Fusion) -> dict[str, tuple[int, ...]]:
    """The strides that every value of a specialised fusion has if it is stored.

    An input has its own; a result has the requested order; others are row-major.
    """
    found: dict[str, tuple[int, ...]] = {}
    for record in fusion.definition:
        if record.op == "add_output":
            continue
        given = record.attr("strides") if record.op == "define_tensor" else None
        for view in (fusion.tensors[name] for name in record.outputs):
            order = stride_order_of(view.domain.allocation)
            found[view.name] = given or contiguous_strides(view.sizes, order)  # type: ignore[assignment]
    for output in fusion.outputs:
        if output.stride_order is not None and output.name not in fusion.inputs:
            sizes = fusion.tensors[output.name].sizes
            found[output.name] = contiguous_strides(sizes, output.stride_order)
        if output.alias is not None:
            found[output.name] = found[output.alias]
    return found


def offset(index: tuple[Scalar, ...], strides: tuple[int, ...]) -> Scalar:
    """The position in memory, in elements."""
    position = const(0)
    for at, stride in zip(index, strides, strict=True):
        position = position + at * stride
    return position
