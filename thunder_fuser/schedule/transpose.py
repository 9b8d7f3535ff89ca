# SPDX-License-Identifier: Apache-2.0
"""Transpose: tensors lie in memory in two orders, and cross from one to the other in a tile.

    T1[i1, i0] = relu(permute(T0[i0, i1]))    T0 is fast along i1, T1 along i0

Along i1, T0 could be read 16 bytes at once, but T1 written only element by element. So a block
takes a tile of both axes: it reads the tile of T0 in T0's order into shared memory, waits, and
computes it in T1's order. A result that lies in the other order is written back in the same way,
after the computation. The computation runs in the order that most bytes have.

    computed  [i1, i0] -> [i1.o*i0.o.o@blockIdx.x, step, thread@threadIdx.x, i0.i@vectorize]
    moved     [i0, i1] -> [i1.o.o*i0.o@blockIdx.x, step, thread@threadIdx.x, i1.i@vectorize]

Neighbours in memory are merged while the inner axis is shorter than a tile's side ("virtual" inner
axes). An axis that is whole in the tile is merged with the tile's other axis, so that [N, 3] is
read in one run of 3 * N elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from thunder_fuser.analysis.demand import Point
from thunder_fuser.analysis.part import Part, offset
from thunder_fuser.analysis.vectorize import coefficient, is_linear
from thunder_fuser.ir.domain import Domain, ParallelType, Transform
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.schedule import pointwise
from thunder_fuser.schedule.axes import accesses, best_width, collapse, size_of
from thunder_fuser.schedule.loop_index import loop_index
from thunder_fuser.schedule.scheduled import (
    HeuristicParams,
    ScheduledFusion,
    Tile,
    Transforms,
    reference,
)
from thunder_fuser.schedule.scheduler import Reject
from thunder_fuser.target import Target

NAME = "transpose"
THREADS = 256
LINE_BYTES = 128  # a tile's shorter side: what a warp should read or write in one piece
TILE_BYTES = (16384, 8192, 4096)  # of shared memory: the largest that leaves enough blocks
SMALLEST_TILE = 2048
BLOCKS_PER_SM = 4  # blocks wanted; one is the least
BANKS, BANK_BYTES = 32, 4


@dataclass(frozen=True, slots=True)
class Orders:
    """The two orders of memory of a part, axes slowest first, and what must cross between them.

    inner: the (virtual) inner axes of the computation; across: those of what is staged; rest: all
    other axes.
    """

    rest: tuple[str, ...]
    across: tuple[str, ...]
    inner: tuple[str, ...]
    loads: tuple[Point, ...]
    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """Transforms that make a thread's loops, and its place in the tile: (outer, inner) index."""

    transforms: tuple[Transform, ...]
    lane: str
    width: int
    outer: Scalar
    inner: Scalar


def accepts(part: Part, target: Target) -> Reject | None:
    """Takes what pointwise takes, if it is large and some tensor lies across the others.

    Refuses on the CPU, whose caches take the place of the tile; where all tensors share one fast
    axis, or those that do not are uniform along it (a broadcast); where there are more than two
    fast axes; where what lies across is read through a reshape's // and %, or at several places.
    """
    if target.is_cpu:
        return Reject(NAME, "the CPU's caches need no tile in shared memory")
    refused = pointwise.accepts(part, target)
    if refused is not None:
        return replace(refused, scheduler=NAME)
    found = _orders(part)
    if isinstance(found, Reject):
        return found
    return _too_small(part, target, found)


def schedule(part: Part, target: Target, alignment: dict[str, int]) -> ScheduledFusion:
    """The schedule of an accepted part."""
    found = _orders(part)
    assert isinstance(found, Orders)
    across, inner = _tile_shape(part, target, found)
    order = (*found.rest, *found.across, *found.inner)
    domain = reference(part, order, ())

    def walk(outer: tuple[str, ...], fast: tuple[str, ...], shape: tuple[int, int]) -> Walk:
        def build(width: int) -> tuple[Transform, ...] | None:
            made = _walk(domain, found, outer, fast, shape, width)
            return made and made.transforms

        lane = _walk(domain, found, outer, fast, shape, 1)
        assert lane is not None
        width = best_width(part, domain, build, lane.lane, alignment)
        return _walk(domain, found, outer, fast, shape, width) or lane

    computed = walk(found.across, found.inner, (across, inner))
    moved = walk(found.inner, found.across, (inner, across))
    elements, positions = _in_shared(part, found, (across, inner), computed, moved)
    tile = Tile(found.loads, found.stores, moved.transforms, elements, *positions)
    params = HeuristicParams(NAME, computed.width, (THREADS, 1))
    aligned = tuple(sorted(alignment.items()))
    return ScheduledFusion(
        part, target, params, order, (), computed.transforms, alignment=aligned, tile=tile
    )


# ---- which tensors lie across


def _orders(part: Part) -> Orders | Reject:
    """The two orders, or why there is no second one.

    T0[i0, i1], T2[i1, i0]  ->  rest (), across (i1,), inner (i0,), loads (T0,)
    """
    points = accesses(part, part.facts)
    fast = {point: _fast_axis(part, point) for point in points}
    weight: dict[str, int] = {}
    for name in (*part.outputs, *part.inputs):
        for point, axis in fast.items():
            if axis and point.name == name:
                weight[axis] = weight.get(axis, 0) + part.bytes_of(name)
    if len(weight) < 2:
        return Reject(NAME, "all tensors have the same fast axis")
    along = max(weight, key=lambda axis: weight[axis])
    staged = [p for p, axis in fast.items() if axis != along and along in _position(part, p).symbols]
    others = {fast[point] for point in staged}
    if len(others) != 1 or None in others:
        count = len(others - {None})
        return Reject(NAME, f"{count} fast axes lie across {along}, not one")
    if len({point.name for point in staged}) < len(staged):
        return Reject(NAME, "a tensor is read across at several places")
    (other,) = others
    assert other is not None
    for point in staged:
        position = _position(part, point)
        if not (is_linear(position, along) and is_linear(position, other)):
            return Reject(NAME, f"{point.name} is read through a reshape")
    straight = max((p for p in points if fast[p] == along), key=lambda p: _rank(part, p))
    across = max(staged, key=lambda p: _rank(part, p))
    return _split_orders(part, straight, across, staged)


def _position(part: Part, point: Point) -> Scalar:
    return offset(point.index, part.strides[point.name])


def _fast_axis(part: Part, point: Point) -> str | None:
    """The axis along which the point walks memory element by element."""
    position = _position(part, point)
    plain = (n for n in part.extents if coefficient(position, n) == 1 and is_linear(position, n))
    return next(plain, None)


def _rank(part: Part, point: Point) -> tuple[int, int]:
    return len(_position(part, point).symbols), part.bytes_of(point.name)


def _split_orders(
    part: Part, straight: Point, across: Point, staged: Sequence[Point]
) -> Orders:
    """The axes in both orders, each inner end as long as a tile's side if neighbours allow it."""
    names = part.axes(part.outputs[0])
    groups = collapse(part, _sorted(_position(part, straight), [(n,) for n in names]))
    inner_order = list(groups)
    flat = _sorted(_position(part, across), inner_order)
    across_order = [group for name in flat for group in groups if group[-1] == name]
    inner, other = [inner_order[-1]], [across_order[-1]]
    side = LINE_BYTES // _itemsize(part, staged)
    _lengthen(part, other, across_order, inner, side)
    _lengthen(part, inner, inner_order, other, 2 * side)
    taken = {*inner, *other}
    rest = [group for group in inner_order if group not in taken]
    made = set(part.producer)
    return Orders(
        _joined(rest),
        _joined(other),
        _joined(inner),
        tuple(p for p in staged if p.name not in made),
        tuple(p.name for p in staged if p.name in made),
    )


def _sorted(position: Scalar, groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The last axis of each group, slowest in memory first; those that it lacks before them."""
    names = [group[-1] for group in groups]
    factors = {name: coefficient(position, name) for name in names}
    return tuple(sorted(names, key=lambda n: (factors[n] != 0, -factors[n])))


def _lengthen(
    part: Part,
    inner: list[tuple[str, ...]],
    order: list[tuple[str, ...]],
    taken: list[tuple[str, ...]],
    wanted: int,
) -> None:
    """Adds the next slower groups until the inner axes have `wanted` elements."""
    for group in reversed(order[: -len(inner)]):
        if group in taken or size_of(part, _joined(inner)) >= wanted:
            return
        inner.insert(0, group)


def _joined(groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for group in groups for name in group)


# ---- the tile


def _itemsize(part: Part, staged: Sequence[Point]) -> int:
    return max(part.tensors[point.name].dtype.bytes for point in staged)


def _staged(part: Part, found: Orders) -> tuple[Point, ...]:
    return (*found.loads, *(part.facts.results[name] for name in found.stores))


def _too_small(part: Part, target: Target, found: Orders) -> Reject | None:
    across, inner = _tile_shape(part, target, found)
    size = across * inner * _itemsize(part, _staged(part, found))
    if size < SMALLEST_TILE:
        return Reject(NAME, f"a tile of {across} x {inner} elements is too small")
    blocks = _blocks(part, found, (across, inner))
    if blocks < target.sm_count:
        return Reject(NAME, f"{blocks} tiles for {target.sm_count} multiprocessors")
    return None


def _blocks(part: Part, found: Orders, shape: tuple[int, int]) -> int:
    across, inner = size_of(part, found.across), size_of(part, found.inner)
    return size_of(part, found.rest) * -(-across // shape[0]) * -(-inner // shape[1])


def _tile_shape(part: Part, target: Target, found: Orders) -> tuple[int, int]:
    """Elements of a tile along `across` and along `inner`.

    bf16 [8192, 8192] -> (64, 128), 16 KiB; [1e8, 2] -> (2, 4096)
    """
    staged = _staged(part, found)
    itemsize = _itemsize(part, staged)
    extents = size_of(part, found.across), size_of(part, found.inner)
    shape = extents
    for tile_bytes in TILE_BYTES:
        elements = tile_bytes // itemsize
        shape = _fit(*extents, elements, LINE_BYTES // itemsize)
        in_all = prod(shape) * sum(part.tensors[p.name].dtype.bytes for p in staged)
        enough = _blocks(part, found, shape) >= BLOCKS_PER_SM * target.sm_count
        if enough and in_all <= 2 * TILE_BYTES[0]:
            break
    return shape


def _fit(across: int, inner: int, elements: int, side: int) -> tuple[int, int]:
    """A side of a line's bytes by what is left; an axis shorter than its side is taken whole."""
    if inner < elements // side:
        return min(across, _power_of_two(elements // inner)), inner
    if across < side:
        return across, min(inner, _power_of_two(elements // across))
    return side, elements // side


def _power_of_two(limit: int) -> int:
    """The largest power of two that is no more than the limit."""
    return 1 << (limit.bit_length() - 1)


def _walk(
    domain: Domain,
    found: Orders,
    outer: tuple[str, ...],
    inner: tuple[str, ...],
    shape: tuple[int, int],
    width: int,
) -> Walk | None:
    """A block's tile, walked with `inner` fastest; None if the width does not divide it.

    [rest, a{8192}, b{8192}], 64 x 128 by 8, 256 threads:
        [rest*a.o*b.o.o@blockIdx.x, step{4}, thread{256}@threadIdx.x, b.i{8}@vectorize]
    [rest, a{N}, b{3}], 2048 x 3 by 8: both are one axis
        [rest*a*b.o.o@blockIdx.x, step{3}, thread{256}@threadIdx.x, a*b.i{8}@vectorize]
    """
    s = Transforms(domain)
    s.reorder(*found.rest, *outer, *inner)
    slow, fast = s.merge(outer), s.merge(inner)
    rows, columns = shape
    if s.extent(fast) == columns:
        fast = s.merge((slow, fast))
        rows, columns, whole = 1, rows * columns, columns
    else:
        whole = columns
    if s.extent(fast) % width or columns % width:
        return None
    fast, lane = s.split(fast, width)
    blocks, vector = s.split(fast, columns // width)
    if rows == 1:
        tile, numbers = vector, [*found.rest, blocks]
    else:
        slow_blocks, row = s.split(slow, rows)
        pair = (slow_blocks, blocks) if inner == found.inner else (blocks, slow_blocks)
        numbers = [*found.rest, *pair]
        s.reorder(*numbers, row, vector, lane)
        tile = s.merge((row, vector))
    _, thread = s.split(tile, THREADS)
    s.parallelize(s.merge(tuple(numbers)), ParallelType.BIDX)
    s.parallelize(thread, ParallelType.TIDX)
    s.parallelize(lane, ParallelType.VECTORIZE)
    loops = loop_index(domain, tuple(s.made))
    at = loops.index[vector] * width + loops.loops[lane]
    if rows == 1:
        return Walk(tuple(s.made), lane, width, at // whole, at % whole)
    return Walk(tuple(s.made), lane, width, loops.index[row], at)


# ---- shared memory


def _in_shared(
    part: Part, found: Orders, shape: tuple[int, int], computed: Walk, moved: Walk
) -> tuple[int, tuple[Scalar, Scalar]]:
    """How many elements a tile takes, and where both walks find theirs.

    The longer side lies along memory, where one walk has vectors; the other has its lanes on
    different rows, which `_skewed` keeps in different banks.
    """
    across, inner = shape
    itemsize = min(part.tensors[p.name].dtype.bytes for p in _staged(part, found))
    # (row, column) of the tile, for each walk
    places = (computed.outer, computed.inner), (moved.inner, moved.outer)
    rows, columns, along, up = across, inner, computed.width, moved.width
    if across > inner:
        places = (computed.inner, computed.outer), (moved.outer, moved.inner)
        rows, columns, along, up = inner, across, moved.width, computed.width
    chunk = max(along, BANK_BYTES // itemsize)
    pitch = -(-columns // chunk) * chunk
    turn = max(1, BANKS * up // (rows * chunk))
    skewed = [_skewed(r, c, pitch, chunk, up, turn) for r, c in places]
    return rows * pitch, (skewed[0], skewed[1])


def _skewed(
    row: Scalar, column: Scalar, pitch: int, chunk: int, group: int, turn: int
) -> Scalar:
    """The position of (row, column): rows of `pitch`, each `group` of them turned by more chunks.

    A warp's lanes at one column of rows 0, group, 2 * group, ... would all meet in one bank.
    """
    chunks = pitch // chunk
    at = (column // chunk + row // group * turn) % const(chunks)
    return row * pitch + at * chunk + column % chunk
