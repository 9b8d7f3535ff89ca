# SPDX-License-Identifier: Apache-2.0
"""What all schedulers ask of a part: the order of its axes, which collapse, how wide to load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from thunder_fuser.analysis.demand import Point
from thunder_fuser.analysis.part import Part, offset
from thunder_fuser.analysis.vectorize import MAX_BYTES, coefficient, is_linear, is_vector
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import Domain, Parallelize, ParallelType, Transform
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.schedule.loop_index import LoopIndex, loop_index
from thunder_fuser.schedule.repeatable import has_order


def memory_order(part: Part, axes: Iterable[str]) -> tuple[str, ...]:
    """The axes, slowest first, as the largest tensor that has most of them lies in memory."""
    wanted = set(axes)
    names = list(part.outputs) + list(part.inputs)
    best = max(
        names, key=lambda n: (len(wanted & set(part.axes(n))), part.bytes_of(n)), default=None
    )
    order = [a for a in (part.memory_axes(best) if best else ()) if a in wanted]
    rest = sorted(wanted - set(order), key=lambda a: int(a[1:]))
    return (*rest, *dict.fromkeys(order))


def summed_order(
    part: Part, expr: OpRecord, axes: Iterable[str], options: CompileOptions
) -> tuple[str, ...]:
    """The axes in the order in which a reduction or scan walks them, slowest first.

    Repeatable sums take that of their operand's own axes, unless all of their tensors lie
    otherwise in memory: what else is read does not turn them.
    """
    wanted = set(axes)
    own = tuple(a for name in names_of(expr) for a in part.axes(name) if a in wanted)
    if not has_order(part, options) or set(own) != wanted:
        return memory_order(part, wanted)
    lies = [tuple(a for a in part.memory_axes(n) if a in wanted) for n in part.global_tensors]
    whole = [order for order in lies if set(order) == wanted]
    return own if own in whole or not whole else memory_order(part, wanted)


def positions(part: Part) -> list[tuple[str, Scalar, Scalar]]:
    """(tensor, position in memory, condition) of every access to memory."""
    found = accesses(part)
    return [(p.name, offset(p.index, part.strides[p.name]), p.condition) for p in found]


def accesses(part: Part) -> list[Point]:
    """The points that are read from memory or written to it."""
    tensors = set(part.global_tensors)
    stored = set(part.outputs)
    return [
        p
        for p in part.demand.level
        if p.name in tensors and (p.name not in stored or p == part.demand.results[p.name])
    ]


def collapse(part: Part, order: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Groups of neighbours that every access walks as one axis.

    T0[i0, i1] and T1[i0, i1], both row-major  ->  ((i0, i1),)
    T0[i0, i1] and a bias T1[i1]               ->  ((i0,), (i1,))
    """
    extents = part.extents
    accessed = positions(part)
    groups: list[tuple[str, ...]] = []
    for name in reversed(order):
        if groups and all(
            _walks_on(position, condition, name, groups[0], extents[groups[0][0]].value)
            for _, position, condition in accessed
        ):
            groups[0] = (name, *groups[0])
        else:
            groups.insert(0, (name,))
    return tuple(groups)


def _walks_on(
    position: Scalar, condition: Scalar, outer: str, group: tuple[str, ...], extent: int
) -> bool:
    inner = group[0]
    if {outer, inner} & condition.symbols:
        return False
    if not (is_linear(position, outer) and is_linear(position, inner)):
        return False
    return coefficient(position, outer) == coefficient(position, inner) * extent


SHORTEST_SHIFTED = 1024  # columns; the two ends of shorter rows are too much of their work


def row_shift(part: Part, columns: tuple[str, ...], width: int) -> Scalar | None:
    """How far before its row a step of aligned vectors starts, if rows are worth it: Split.shift.

    T0[i0, i1] of 4095 columns in vectors of 8: row i0 starts at 4095 * i0, which is (7 * i0) % 8
    elements behind a multiple of 8.
    """
    if size_of(part, columns) < SHORTEST_SHIFTED:
        return None
    widest = max(part.global_tensors, key=part.bytes_of)
    points = [p for p in accesses(part) if p.name == widest]
    points = [p for p in points if p.symbols & set(columns)]
    if not points:
        return None
    row = offset(points[0].index, part.strides[widest]).substitute(dict.fromkeys(columns, 0))
    return row % width


def size_of(part: Part, axes: Iterable[str]) -> int:
    """The product of the extents of the axes."""
    return prod(part.extents[name].value for name in axes)


def best_width(
    part: Part,
    axes: Domain,
    transforms_for: Callable[[int], tuple[Transform, ...] | None],
    alignment: dict[str, int],
) -> int:
    """The vector width with the fewest memory instructions an element; ties go to the narrower.

    transforms_for(width) gives the transforms, or None where the width divides nothing.
    """
    smallest = min((part.tensors[n].dtype.bytes for n in part.global_tensors), default=4)
    accessed = [(*one, alignment.get(one[0], MAX_BYTES)) for one in positions(part)]
    best, best_cost = 1, float("inf")
    width = 1
    while width * smallest <= MAX_BYTES:
        transforms = transforms_for(width)
        if transforms is not None:
            loops = loop_index(axes, transforms, part.chunked)
            cost = _cost(part, accessed, loops, (_lane(transforms), width))
            if cost < best_cost - 1e-9:
                best, best_cost = width, cost
        width *= 2
    return best


def _lane(transforms: tuple[Transform, ...]) -> str:
    """The loop over the elements of a vector."""
    made = [t for t in transforms if isinstance(t, Parallelize)]
    return next(t.axis for t in made if t.parallel is ParallelType.VECTORIZE)


def _cost(
    part: Part,
    accessed: list[tuple[str, Scalar, Scalar, int]],
    loops: LoopIndex,
    vector: tuple[str, int],
) -> float:
    """Memory instructions an element.

    accessed: tensor, position and condition over plain axes, alignment; vector: lane and width.
    """
    lane, width = loops.loops[vector[0]], vector[1]
    total = 0.0
    for name, plain, unless, aligned in accessed:
        position, condition = plain.substitute(loops.index), unless.substitute(loops.index)
        itemsize = part.tensors[name].dtype.bytes
        if is_vector(position, condition, lane, width, itemsize=itemsize, alignment=aligned):
            total += max(1, width * itemsize // MAX_BYTES) / width
        elif lane.symbols & position.symbols or not width > 1:
            total += 1.0
        else:
            total += 1.0 / width
    return total
