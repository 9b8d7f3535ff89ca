# SPDX-License-Identifier: Apache-2.0
"""Decides which sizes are constants in a kernel's text, and which are its arguments.

A schedule was made for the sizes of a call. The text needs the lengths of loops that are unrolled
or vectorised, or whose steps index an array. It also needs to know which extents a split does not
divide, because these have a guard. Everything else (extents in guards and indices, strides,
divisors) becomes `Sized` numbers (ir/size_symbols.py), which the text does not contain:

    relu of [4096, 8192]:     blocks walk all elements                  nothing
    softmax of [4096, 8192]:  8 steps of 128 threads by 8 elements      8
    column sum of the same:   each thread adds all rows, one by one     nothing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.analysis.part import Part
from thunder_fuser.ir.domain import Domain, IterDomain, ParallelType, Split, Transform
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.scalar import const
from thunder_fuser.ir.size_symbols import sized
from thunder_fuser.ir.strides import nontrivial_groups
from thunder_fuser.schedule.axes import row_shift
from thunder_fuser.schedule.loop_index import runs_loop
from thunder_fuser.schedule.scheduled import ScheduledFusion

# A GPU's serial loops up to this length are unrolled whole. Longer ones, which walk memory, are
# not: ptxas would keep the loads of several nests in registers, and spill (softmax of f32
# [2048, 131072]: 2064 bytes of stack in sm_90a code, NVRTC 13.0).
SHORT_LOOP = 8
SHORT_LANES = 64  # a CPU's vector loops up to this length have it as a constant


def with_free_sizes(scheduled: ScheduledFusion) -> ScheduledFusion:
    """The schedule with the sizes of its part as Sized numbers."""
    part = scheduled.part
    sizes = _sizes(part)
    names = dict.fromkeys([*part.inputs, *part.producer])
    tensors = {name: _view(part, part.tensors[name], sizes) for name in names}
    strides = {name: _strides(part, tensors[name]) for name in part.global_tensors}
    free = replace(part, tensors=tensors, strides={**part.strides, **strides})
    tile, moved = scheduled.tile, _points(part, free, scheduled)
    return replace(
        scheduled,
        part=free,
        transforms=tuple(_transform(scheduled, free, t) for t in scheduled.transforms),
        persistent=tuple(replace(kept, point=moved[kept.point]) for kept in scheduled.persistent),
        tile=tile and replace(tile, loads=tuple(moved[point] for point in tile.loads)),
    )


def loops_of(scheduled: ScheduledFusion) -> Domain:
    """The loops of a kernel. If the text must know a loop's length, it is a plain number."""
    return tuple(
        replace(axis, extent=const(int(axis.extent.value)))
        if has_a_length(scheduled, axis)
        else axis
        for axis in scheduled.loop
    )


def has_a_length(scheduled: ScheduledFusion, axis: IterDomain) -> bool:
    """True if a thread walks the axis in a loop whose length the text must know."""
    if axis.parallel.is_block:
        return axis.parallel is ParallelType.CLUSTER
    if axis.parallel.is_thread or axis.parallel is ParallelType.UNROLL:
        return True
    lanes = axis.parallel is ParallelType.VECTORIZE
    if scheduled.carried and not axis.is_reduction and not lanes:
        return False
    if scheduled.params.memory != "none" or scheduled.carried or (lanes and scheduled.part.scans):
        return True  # an array has an element for each step
    if scheduled.target.is_cpu:
        return lanes and axis.extent.value <= SHORT_LANES
    return lanes or (scheduled.params.inner and axis.extent.value <= SHORT_LOOP)


def _transform(scheduled: ScheduledFusion, free: Part, step: Transform) -> Transform:
    """The step with Sized numbers: the length of a run of partial results, or a shift."""
    if not isinstance(step, Split):
        return step
    if step.shift is not None:
        return replace(step, shift=row_shift(free, tuple(step.axis.split("*")), step.factor))
    if free.chunked is not None and step.axis + ".o" == runs_loop(scheduled.loop):
        return replace(step, factor=sized("run", step.factor))
    return step


# ---- the sizes of axes


def _sizes(part: Part) -> dict[str, int]:
    """The size of every axis class. Reshapes relate them: after [i0, i1] -> [i2], i2 has n0*n1."""
    parts, cut = _products(part), _cut(part)

    def size(name: str) -> int:
        if name in parts:
            return prod(map(size, parts[name]))
        value = part.extents[name].value
        return value if name in cut else sized("n" + name[1:], value)

    return {name: size(name) for name in part.extents}


def _cut(part: Part) -> set[str]:
    """Last axes that are sliced or padded. Their sizes stay constants, since places in them are
    constants too. So the compiler knows what they select, as the halves of a rotary embedding.
    """
    cut: set[str] = set()
    for expr in part.exprs:
        if expr.op in ("slice", "pad"):
            views = (part.tensors[name] for name in (*names_of(expr), *expr.outputs))
            last = [view.domain.no_reductions[-1] for view in views if view.shape]
            if len({axis.extent for axis in last}) > 1:
                cut |= {part.domain_map.axis(axis) for axis in last}
    return cut


def _products(part: Part) -> dict[str, tuple[str, ...]]:
    """{axis: the axes whose product it is, by the reshapes of the part}"""
    products: dict[str, tuple[str, ...]] = {}
    for expr in part.exprs:
        for whole, pieces in _reshaped(part, expr) if expr.op == "reshape" else ():
            if whole not in products and whole not in _pieces(pieces, products):
                products[whole] = pieces
    return products


def _reshaped(part: Part, expr: OpRecord) -> list[tuple[str, tuple[str, ...]]]:
    """Groups of axes with equal products, one side of which is a single axis: (it, the others).

    [4, 6, 5] -> [24, 5]:  [(i3, (i0, i1)), (i4, (i2,))]
    """
    views = [part.tensors[name] for name in (names_of(expr)[0], expr.outputs[0])]
    source, out = ([part.domain_map.axis(a) for a in v.domain.no_reductions] for v in views)
    pairs = []
    for before, after in nontrivial_groups(*(view.sizes for view in views)):
        sides = tuple(source[at] for at in before), tuple(out[at] for at in after)
        whole, pieces = reversed(sides) if len(after) == 1 else sides
        if len(whole) == 1:
            pairs.append((whole[0], pieces))
    return pairs


def _pieces(names: tuple[str, ...], parts: Mapping[str, tuple[str, ...]]) -> set[str]:
    """The axes, and all axes of which they are products."""
    return set(names).union(*(_pieces(parts.get(name, ()), parts) for name in names))


# ---- tensors of such sizes


def _view(part: Part, view: TensorView, sizes: Mapping[str, int]) -> TensorView:
    of = part.domain_map.axis
    logical = tuple(
        replace(axis, extent=const(sizes[of(axis)]))
        if of(axis) in sizes and axis.extent is part.extents[of(axis)]
        else axis
        for axis in view.domain.logical
    )
    return replace(view, domain=replace(view.domain, logical=logical))


def _strides(part: Part, view: TensorView) -> tuple[int, ...]:
    """Strides as products of the faster axes' sizes; a stride that is none gets its own symbol.

    [n0, 4, n2], row-major: (4*n2, n2, 1);  with rows of 100 for 96: (4*T0_s1, T0_s1, 1)
    """
    strides = list(part.strides[view.name])
    below = 1
    for at in sorted(range(len(strides)), key=lambda at: strides[at]):
        size = view.sizes[at]
        if size == 1 or strides[at] == 0:
            continue
        if strides[at] == below:
            strides[at] = below
        elif strides[at] != 1:
            strides[at] = sized(f"{view.name}_s{at}", strides[at])
        below = strides[at] * size
    return tuple(strides)


# ---- points of the schedule


def _points(part: Part, free: Part, scheduled: ScheduledFusion) -> Mapping[Point, Point]:
    """{point of the schedule: the same point with Sized numbers}

    Several points with Sized numbers may be one point for the sizes of the call: x[2 - i] and
    x[n - 1 - i] where n is 3. Any of these is right; the others are loaded beside it.
    """
    wanted = [buffer.point for buffer in scheduled.persistent]
    wanted += scheduled.tile.loads if scheduled.tile else ()
    plain = all(at.op == "sym" or at is const(0) for point in wanted for at in point.index)
    if plain and all(point.condition.is_const for point in wanted):
        return {point: point for point in wanted}
    known = {point.plain: point for point in free.demand.level}
    return {point: known[point] for point in wanted}
