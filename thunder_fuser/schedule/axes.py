# SPDX-License-Identifier: Apache-2.0
"""Questions of all schedulers about a part: the order of its axes, which of them collapse into one
loop, and the vector width.

A wide access needs neighbouring elements at an aligned address. Index expressions tell:

    position 8*i + v, v in [0, 8), address aligned to 16 bytes    ->  8 elements at once
    position 100*i + v                                            ->  4 at once (100 = 4 * 25)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from thunder_fuser.analysis.domain_map import Axes
from thunder_fuser.analysis.part import Part, RemadeAxes
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import Domain
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.scalar import Scalar, divides
from thunder_fuser.schedule.loop_index import loop_index
from thunder_fuser.schedule.row_shape import has_order
from thunder_fuser.schedule.scheduled import Transforms

MAX_BYTES = 16  # of one access
WIDTHS = (1, 2, 4, 8, 16)
LONGEST_SHARED = 8  # elements; with more, the results of a block would be far apart in memory
SHORTEST_SHIFTED = 1024  # columns: the partial vectors at both ends of shorter rows cost too much

RUNS = (64, 32, 16, 8, 4)  # lanes of a CPU's loop if an index or a branch changes within a row

# Transforms the axes for vectors of a width. The result is false if the width does not divide them.
Build = Callable[[Transforms, int], object]

Places = Mapping[str, tuple[str, ...]]  # the axes in the place of each, see `places_in_views`


def size_of(part: Part, axes: Iterable[str]) -> int:
    """The product of the extents of the axes."""
    return prod(part.extents[name].value for name in axes)


# ---- the order of axes


def memory_order(part: Part, axes: Iterable[str]) -> tuple[str, ...]:
    """The axes, slowest first, in the memory order of the tensors that have most of them; of
    several orders, that of most bytes. Where no tensor has all, that of their views."""
    wanted, order = set(axes), tuple[str, ...]()
    for remade in (part.merged_axes, reversed(part.remade_axes)):
        places, weights = places_in_views(wanted, remade), dict[tuple[str, ...], int]()
        for name in (*part.outputs, *part.inputs):
            each = order_over(part.memory_axes(name), places)
            weights[each] = weights.get(each, 0) + part.bytes_of(name)
        best = max(weights, key=lambda each: (len(each), weights[each]), default=())
        order = best if len(best) > len(order) else order
        if wanted.issubset(order):
            break
    rest = sorted(wanted.difference(order), key=lambda a: int(a[1:]))
    return (*rest, *order)


def order_in_memory(part: Part, name: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of the wanted axes that a tensor has, slowest in its memory first.

    T1 = reshape(T0: [n, c, h, w], [n, g, k, h, w])     (n, h, w, c)  <->  (n, h, w, g, k)
    T2 = reshape(T1, [n, d, h, w])                      (n, h, w, c)  <->  (n, h, w, d)
    """
    return order_over(part.memory_axes(name), places_in_views(wanted, part.merged_axes))


def order_over(order: Iterable[str], places: Places) -> tuple[str, ...]:
    """An order of axes as one of the axes in their places. Of several places the last counts.

    T1[i0, i2, i4] = reshape(permute(T0[i0, i1, i2, i3])), i1 and i3 as i4     T0: (i0, i2, i4)
    """
    there = [place for axis in order for place in places.get(axis, ())]
    return tuple(reversed(dict.fromkeys(reversed(there))))


def places_in_views(wanted: Iterable[str], remade: Iterable[RemadeAxes]) -> Places:
    """The wanted axes that lie in the place of an axis: of a wanted one itself, of others what is
    made of them. Of axes that are merged the last has that of all. remade: the last first.

    T1[i0, i3] = cat(T0[i0, i1], T2[i0, i2])                     i1: (i3,)  i2: (i3,)
    T1[i0, i1, i3] = embedding_fwd(T0[i0, i1], T2[i2, i3])       i2: (i0, i1)
    T1[i3] = reshape(T0[i0, i1])                                 i0: ()  i1: (i3,)
    """
    places: dict[str, tuple[str, ...]] = {axis: (axis,) for axis in wanted}
    for before, after in remade:
        if places.keys() >= {*after}:
            places.setdefault(before[-1], tuple(p for axis in after for p in places[axis]))
            places |= {axis: () for axis in before if axis not in places}
    return places


def summed_order(
    part: Part, expr: OpRecord, axes: Iterable[str], options: CompileOptions
) -> tuple[str, ...]:
    """The axes in the order in which a reduction or scan walks them, slowest first.

    Repeatable sums walk the axes in the order of their operand, unless the tensors with all these
    axes have most of their bytes in another memory order. Other tensors do not matter.
    """
    wanted = set(axes)
    as_read = tuple(a for name in names_of(expr) for a in part.axes(name) if a in wanted)
    if not has_order(part, options) or set(as_read) != wanted:
        return memory_order(part, wanted)
    orders = {n: order_in_memory(part, n, wanted) for n in part.global_tensors}
    whole = {name: order for name, order in orders.items() if set(order) == wanted}
    others = sum(part.bytes_of(name) for name, order in whole.items() if order != as_read)
    return as_read if 2 * others <= sum(map(part.bytes_of, whole)) else memory_order(part, wanted)


def shared_last(part: Part, kept: tuple[str, ...]) -> tuple[str, ...]:
    """Kept axes with those last that the largest tensor lacks, if they are short: threads of a
    block, or blocks side by side, then read the same elements of it, which come from memory once.

    T4[m, n] = sum(T0[m, k] * T1[n, k], k), T1 larger       (m, n)  ->  (n, m)
    """
    largest = max(part.inputs, key=part.bytes_of, default=None)
    axes = kept if largest is None else part.axes(largest)
    lacking = tuple(a for a in kept if a not in axes)
    if size_of(part, lacking) > LONGEST_SHARED:
        return kept
    return (*(a for a in kept if a in axes), *lacking)


def collapse(part: Part, order: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Groups of neighbours that every access walks as one axis.

    T0[i0, i1] and T1[i0, i1], both row-major  ->  ((i0, i1),)
    T0[i0, i1] and a bias T1[i1]               ->  ((i0,), (i1,))
    """
    groups: list[tuple[str, ...]] = []
    for name in reversed(order):
        if groups and _continues(part, name, groups[0][0]):
            groups[0] = (name, *groups[0])
        else:
            groups.insert(0, (name,))
    return tuple(groups)


def _continues(part: Part, outer: str, inner: str) -> bool:
    """True if every access walks the outer axis as a continuation of the inner one."""
    extent = part.extents[inner].value
    return all(
        not {outer, inner} & point.condition.symbols
        and is_linear(position, outer)
        and is_linear(position, inner)
        and coefficient(position, outer) == coefficient(position, inner) * extent
        for point, position in part.accessed.items()
    )


def is_linear(position: Scalar, name: str) -> bool:
    """True if the symbol occurs only as a plain term or not at all."""
    return all(a.op == "sym" or name not in a.symbols for a, _ in position.terms[0])


def coefficient(position: Scalar, name: str) -> int:
    """The factor of a symbol that occurs as a plain term; 0 if it does not."""
    return next((c for a, c in position.terms[0] if a.op == "sym" and a.args[0] == name), 0)


# ---- vectors


def row_shift(part: Part, columns: tuple[str, ...], width: int) -> Scalar | None:
    """The Split.shift of aligned vectors: how many elements the first one starts before its row.
    None if rows are too short.

    T0[i0, i1] of 4095 columns in vectors of 8: row i0 starts at 4095 * i0, which is (7 * i0) % 8
    elements after a multiple of 8.
    """
    if size_of(part, columns) < SHORTEST_SHIFTED:
        return None
    widest = max(part.global_tensors, key=part.bytes_of)
    points = (p for p in part.accessed if p.name == widest and not p.symbols.isdisjoint(columns))
    point = next(points, None)
    if point is None:
        return None
    return part.accessed[point].substitute(dict.fromkeys(columns, 0)) % width


def best_width(
    part: Part, domain: Domain, build: Build, alignment: dict[str, int], walked: Axes = frozenset()
) -> int:
    """The narrowest of the vector widths with the fewest memory instructions an element.

    walked: the axes that a thread walks, if not all. What lacks them is loaded once, and not
    counted: a channel's statistics, for rows of 7 x 7 elements that are loaded one by one.
    """
    smallest = min((part.tensors[n].dtype.bytes for n in part.global_tensors), default=4)
    prices: dict[int, float] = {}
    for width in WIDTHS:
        s = Transforms(domain)
        if width * smallest <= MAX_BYTES and build(s, width):
            prices[width] = _price(part, domain, s, alignment, walked)
    return min(prices, key=lambda width: prices[width], default=1)


def _price(
    part: Part, domain: Domain, s: Transforms, alignment: dict[str, int], walked: Axes
) -> float:
    """Memory instructions an element. Each of several for a vector moves parts of sectors, so it
    costs more, unless the tensor is small and caches hold it. On an H200 vectors of 4 instead of 16
    make a choice between floats by bools 1.4 times as fast, and batch norm's backward of floats,
    which stores bools, 1.29 times; vectors of 8 stay best for blocks of floats to float8."""
    loops = loop_index(domain, tuple(s.applied), part.chunked)
    lane, width = loops.loops[s.lanes.name], s.lanes.extent.value
    sizes = {point.name: size_of(part, part.axes(point.name)) for point in part.accessed}
    total, most = 0.0, max(sizes.values(), default=0)
    for point, plain in part.accessed.items():
        if walked and plain.symbols.isdisjoint(walked):
            continue
        position, condition = (x.substitute(loops.index) for x in (plain, point.condition))
        itemsize = part.tensors[point.name].dtype.bytes
        aligned = alignment.get(point.name, MAX_BYTES)
        if is_vector(position, condition, lane, width, itemsize=itemsize, alignment=aligned):
            count = max(1, width * itemsize // MAX_BYTES)
            again = count if point.name in part.producer else (count + 3) / 4
            total += count * (again if sizes[point.name] == most else 1) / width
        else:
            total += 1.0 if lane.symbols & position.symbols else 1.0 / width
    return total


def is_vector(
    position: Scalar, condition: Scalar, lane: Scalar, width: int, *, itemsize: int, alignment: int
) -> bool:
    """True if elements position(lane=0..width-1) are adjacent, at an aligned address.

    alignment: bytes known to divide the tensor's address.
    """
    if width == 1 or lane.is_const or lane.symbols & condition.symbols:
        return False
    base = position - lane
    if base.symbols & lane.symbols:
        return False
    return alignment % min(MAX_BYTES, width * itemsize) == 0 and divides(width, base)


# ---- lanes of a CPU


def even_lanes(part: Part, domain: Domain, build: Build) -> Transforms:
    """The transforms with the longest vector loop in which each access has a constant stride.

    Row of a rotary embedding, j in [0, 384): j % 32, j < 256 ? ...   ->  runs of 16 lanes
    A row without branches and divisions                              ->  the whole row, width 0

    The gradient of a rotary embedding took 519 us with the whole row, 41 with runs (256 x 384).
    """
    whole = Transforms(domain)
    build(whole, 0)
    for width in RUNS if not _is_even(part, domain, whole) else ():
        s = Transforms(domain)
        if build(s, width) and _is_even(part, domain, s):
            return s
    return whole


def _is_even(part: Part, domain: Domain, s: Transforms) -> bool:
    loops = loop_index(domain, tuple(s.applied), part.chunked)
    (name,) = loops.loops[s.lanes.name].symbols or {""}
    bounded = {str(guard.variable): guard.value for guard in loops.guards}
    index = {axis: value.substitute(bounded) for axis, value in loops.index.items()}
    return all(
        name not in point.condition.substitute(index).symbols
        and is_linear(position.substitute(index), name)
        for point, position in part.accessed.items()
    )
