# SPDX-License-Identifier: Apache-2.0
"""Which sizes a kernel's text has, and which are its arguments.

A schedule was made for the sizes of a call. What its text must know of them is how often a loop
runs that is unrolled or vectorised, or whose steps number an array; and which extents a split does
not divide, as there is a guard. Everything else, extents in guards and indices, strides and
divisors, becomes `Sized` numbers (ir/size_symbols.py), which the text does not mention:

    relu of [4096, 8192]:     blocks walk all elements                  nothing
    softmax of [4096, 8192]:  8 steps of 128 threads by 8 elements      8
    column sum of the same:   each thread adds all rows, one by one     nothing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from thunder_fuser.analysis.demand import Point
from thunder_fuser.analysis.part import Part
from thunder_fuser.ir.domain import (
    Domain,
    IterDomain,
    ParallelType,
    Split,
    Transform,
)
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.scalar import const
from thunder_fuser.ir.size_symbols import sized
from thunder_fuser.schedule.axes import row_shift
from thunder_fuser.schedule.loop_index import runs_loop
from thunder_fuser.schedule.scheduled import PersistentBuffer, ScheduledFusion, Tile

# Serial loops of a GPU up to this length are unrolled whole. Longer ones, which walk memory, are
# not: ptxas would keep what several nests load, and spill (softmax of f32 [2048, 131072]: 2064
# bytes of stack in sm_90a code, NVRTC 13.0).
SHORT_LOOP = 8
SHORT_LANES = 64  # likewise, on a CPU, of vector loops


def with_free_sizes(scheduled: ScheduledFusion) -> ScheduledFusion:
    """The schedule with the sizes of its part as Sized numbers."""
    part = scheduled.part
    sizes = _sizes(part)
    names = dict.fromkeys([*part.inputs, *part.producer])
    tensors = {name: _view(part, part.tensors[name], sizes) for name in names}
    strides = {name: _strides(part, tensors[name]) for name in part.global_tensors}
    free = replace(part, tensors=tensors, strides={**part.strides, **strides})
    moved = _points(part, free, scheduled)
    return replace(
        scheduled,
        part=free,
        transforms=tuple(_transform(scheduled, free, t) for t in scheduled.transforms),
        persistent=tuple(_buffer(one, moved) for one in scheduled.persistent),
        tile=None if scheduled.tile is None else _tile(scheduled.tile, moved),
    )


def loops_of(scheduled: ScheduledFusion) -> Domain:
    """The loops of a kernel, with a plain number as the extent of each that has a known length."""
    return tuple(
        replace(axis, extent=const(int(axis.extent.value)))
        if _has_a_length(scheduled, axis)
        else axis
        for axis in scheduled.loop
    )


def _has_a_length(scheduled: ScheduledFusion, axis: IterDomain) -> bool:
    """True if a thread walks the axis in a loop whose length its code must know."""
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


def _transform(scheduled: ScheduledFusion, free: Part, made: Transform) -> Transform:
    """The same one; the length of a run of partial results, and a shift, follow from the sizes."""
    if not isinstance(made, Split):
        return made
    if made.shift is not None:
        return replace(made, shift=row_shift(free, tuple(made.axis.split("*")), made.factor))
    if free.chunked is not None and made.axis + ".o" == runs_loop(scheduled.loop):
        return replace(made, factor=sized("run", made.factor))
    return made


# ---- the sizes of axes


def _sizes(part: Part) -> dict[str, int]:
    """The size of every axis class. A reshape relates them: [i0, i1] -> [i2] makes i2 n0*n1."""
    parts, cut = _products(part), _cut(part)
    free = {
        name: extent.value if name in cut else sized("n" + name[1:], extent.value)
        for name, extent in part.extents.items()
    }
    return {name: _product(name, parts, free) for name in free}


def _cut(part: Part) -> set[str]:
    """Last axes that are sliced or padded: their places are numbers in the text in any case.

    What is chosen by them, as the halves of a rotary embedding, is then known to the compiler.
    """
    found: set[str] = set()
    for expr in part.exprs:
        if expr.op in ("slice", "pad"):
            views = (part.tensors[name] for name in (*names_of(expr), *expr.outputs))
            last = [view.domain.no_reductions[-1] for view in views if view.shape]
            if len({axis.extent for axis in last}) > 1:
                found |= {part.domain_map.axis(axis) for axis in last}
    return found


def _products(part: Part) -> dict[str, tuple[str, ...]]:
    """The axes whose product an axis is, by the reshapes of the part."""
    found: dict[str, tuple[str, ...]] = {}
    for expr in part.exprs:
        for whole, pieces in _reshaped(part, expr) if expr.op == "reshape" else ():
            if whole not in found and whole not in _pieces(pieces, found):
                found[whole] = pieces
    return found


def _reshaped(part: Part, expr: OpRecord) -> list[tuple[str, tuple[str, ...]]]:
    """Groups of axes with equal products where one side is a single axis: (it, the others).

    [4, 6, 5] -> [24, 5]:  [(i3, (i0, i1)), (i4, (i2,))]
    """
    sides = [_real_axes(part, name) for name in (names_of(expr)[0], expr.outputs[0])]
    found = []
    while sides[0] and sides[1]:
        groups = _first_group(sides)
        if groups is None:
            return []
        sides = [side[len(group) :] for side, group in zip(sides, groups, strict=True)]
        few, many = sorted(groups, key=len) if len(groups[1]) != 1 else (groups[1], groups[0])
        if len(few) == 1:
            found.append((few[0][0], tuple(name for name, _ in many)))
    return found


def _first_group(
    sides: list[list[tuple[str, int]]],
) -> list[list[tuple[str, int]]] | None:
    """The fewest first axes of both sides that have equal products."""
    counts = [1, 1]
    while True:
        products = [
            prod(size for _, size in side[:n]) for side, n in zip(sides, counts, strict=True)
        ]
        if products[0] == products[1]:
            return [side[:n] for side, n in zip(sides, counts, strict=True)]
        behind = 0 if products[0] < products[1] else 1
        counts[behind] += 1
        if counts[behind] > len(sides[behind]):
            return None


def _real_axes(part: Part, name: str) -> list[tuple[str, int]]:
    axes = part.tensors[name].domain.no_reductions
    of = part.domain_map.axis
    return [(of(a), a.extent.value) for a in axes if a.extent is not const(1)]


def _pieces(names: tuple[str, ...], parts: Mapping[str, tuple[str, ...]]) -> set[str]:
    """The axes, and all that they are products of."""
    return set(names).union(*(_pieces(parts.get(name, ()), parts) for name in names))


def _product(name: str, parts: Mapping[str, tuple[str, ...]], free: Mapping[str, int]) -> int:
    if name not in parts:
        return free[name]
    return prod(_product(one, parts, free) for one in parts[name])


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
    """Strides as products of the sizes that lie below them; others are sizes of their own.

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
    """The schedule's points -> the same ones with Sized numbers: both are found in one order."""
    wanted = [one.point for one in scheduled.persistent]
    wanted += scheduled.tile.loads if scheduled.tile else ()
    if all(_is_plain(point) for point in wanted):
        return {point: point for point in wanted}
    return dict(zip(part.demand.level, free.demand.level, strict=True))


def _is_plain(point: Point) -> bool:
    """True if no number is in the point but 0."""
    plain = all(at.op == "sym" or at is const(0) for at in point.index)
    return plain and point.condition.is_const


def _buffer(buffer: PersistentBuffer, moved: Mapping[Point, Point]) -> PersistentBuffer:
    return replace(buffer, point=moved[buffer.point])


def _tile(tile: Tile, moved: Mapping[Point, Point]) -> Tile:
    return replace(tile, loads=tuple(moved[point] for point in tile.loads))
