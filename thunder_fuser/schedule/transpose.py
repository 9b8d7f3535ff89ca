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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from thunder_fuser.analysis.demand import Point
from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import Transform
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.schedule.axes import best_width, coefficient, collapse, is_linear, size_of
from thunder_fuser.schedule.loop_index import loop_index
from thunder_fuser.schedule.pointwise import Pointwise
from thunder_fuser.schedule.scheduled import HeuristicParams, ScheduledFusion, Tile, Transforms
from thunder_fuser.schedule.scheduler import Match, Reject, refuse_ops
from thunder_fuser.target import Target

THREADS = 256
LINE_BYTES = 128  # a tile's shorter side: what a warp should read or write in one piece
TILE_BYTES = (16384, 8192, 4096)  # of shared memory: the largest that leaves enough blocks
SMALLEST_TILE = 2048
BLOCKS_PER_SM = 4  # blocks wanted; one is the least
MAX_UNROLL = 8  # steps whose loads are under way at once
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
class Side:
    """One side of a tile: the axes it lies along, and its elements."""

    axes: tuple[str, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Walk:
    """Transforms that make a thread's loops, and its place in the tile: (slow, fast) index."""

    transforms: tuple[Transform, ...]
    width: int
    slow: Scalar
    fast: Scalar


@dataclass(frozen=True, kw_only=True)
class Transpose(Match):
    """What pointwise takes, if it is large and some tensor lies across the others.

    Refuses on the CPU, whose caches take the place of the tile; where all tensors share one fast
    axis, or those that do not are uniform along it (a broadcast); where there are more than two
    fast axes; where what lies across is read through a reshape's // and %, or at several places.
    """

    name = "transpose"

    orders: Orders

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> Match | Reject:
        refused = _refuse(part, target)
        if refused is None and isinstance(Pointwise.match(part, target, options), Reject):
            refused = Reject(cls.name, "pointwise does not take it either")
        found = refused or _orders(part)
        if isinstance(found, Reject):
            return found
        order = (*found.rest, *found.across, *found.inner)
        refused = _tile_refused(part, target, found)
        return refused or cls(part, target, options, order, orders=found)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        part, found = self.part, self.orders
        across, inner = _tile_sides(part, self.target, found)

        def widest(slow: Side, fast: Side, unrolled: bool) -> Walk:
            def build(s: Transforms, width: int) -> Walk | None:
                return _walk(s, (slow, fast), across, width, unrolled)

            width = best_width(part, self.domain, build, alignment)
            walk = build(Transforms(self.domain), width)
            assert walk is not None  # 1 divides everything
            return walk

        # Unrolled steps are clamped where serial ones are skipped, and a tile has nothing there.
        computed = widest(across, inner, unrolled=not found.loads)
        moved = widest(inner, across, unrolled=not found.stores)
        itemsize = min(part.tensors[p.name].dtype.bytes for p in _staged(part, found))
        elements, here, there = _layout(across, inner, computed, moved, itemsize)
        tile = Tile(found.loads, found.stores, moved.transforms, elements, here, there)
        params = HeuristicParams(self.name, computed.width, (THREADS, 1))
        return self.scheduled((params, computed.transforms), alignment, tile=tile)


def _refuse(part: Part, target: Target) -> Reject | None:
    """Refuses for other reasons than how tensors lie in memory."""
    if target.is_cpu:
        return Reject(Transpose.name, "the CPU's caches need no tile in shared memory")
    largest = max((part.bytes_of(name) for name in part.outputs), default=0)
    if largest < SMALLEST_TILE * target.sm_count:
        reason = f"{largest} bytes are too few for {target.sm_count} multiprocessors"
        return Reject(Transpose.name, reason)
    return refuse_ops(part, Transpose.name, OpKind.INDEX)


# ---- which tensors lie across


def _orders(part: Part) -> Orders | Reject:
    """The two orders, or why there is no second one.

    T0[i0, i1], T2[i1, i0]  ->  rest (), across (i1,), inner (i0,), loads (T0,)
    """
    fast = _fast_axes(part)
    weights = _weights(part, fast)
    if len(weights) < 2:
        return Reject(Transpose.name, "all tensors have the same fast axis")
    along = max(weights, key=lambda axis: weights[axis])
    staged = [p for p, a in fast.items() if a != along and along in part.accessed[p].symbols]
    others = {axis for point, axis in fast.items() if point in staged}
    refused = _staging_refused(part, staged, along, others)
    if refused is not None:
        return refused
    straight = max((p for p in fast if fast[p] == along), key=lambda p: _rank(part, p))
    across = max(staged, key=lambda p: _rank(part, p))
    return _two_orders(part, straight, across, staged)


def _fast_axes(part: Part) -> dict[Point, str]:
    """The axis along which each access walks memory element by element, if there is one."""
    found: dict[Point, str] = {}
    for point, position in part.accessed.items():
        symbols = position.symbols  # few, where a part may have hundreds of axes
        for name in (name for name in part.extents if name in symbols):
            if coefficient(position, name) == 1 and is_linear(position, name):
                found.setdefault(point, name)
    return found


def _weights(part: Part, fast: Mapping[Point, str]) -> dict[str, int]:
    """The bytes that lie along each fast axis, those of results first."""
    weights: dict[str, int] = {}
    for name in (*part.outputs, *part.inputs):
        for axis in (axis for point, axis in fast.items() if point.name == name):
            weights[axis] = weights.get(axis, 0) + part.bytes_of(name)
    return weights


def _staging_refused(
    part: Part, staged: Sequence[Point], along: str, others: set[str]
) -> Reject | None:
    """Refuses what one tile cannot straighten."""
    if not staged:
        return Reject(Transpose.name, f"no tensor lies across {along}")
    if len(others) > 1:
        named = ", ".join(sorted(others))
        return Reject(
            Transpose.name, f"what lies across {along} is fast along {named}, not along one axis"
        )
    if len({point.name for point in staged}) < len(staged):
        return Reject(Transpose.name, f"a tensor is read across {along} at several places")
    for point in staged:
        position = part.accessed[point]
        if not all(is_linear(position, axis) for axis in (along, *others)):
            return Reject(Transpose.name, f"{point.name} is read across {along} through a reshape")
    return None


def _rank(part: Part, point: Point) -> tuple[int, int]:
    """The largest of the tensors that have most axes stands for an order."""
    return len(part.accessed[point].symbols), part.bytes_of(point.name)


def _two_orders(part: Part, straight: Point, across: Point, staged: Sequence[Point]) -> Orders:
    """The axes in both orders, each inner end as long as a tile's side if neighbours allow it."""
    axes = [(name,) for name in part.axes(part.outputs[0])]
    by_last = {g[-1]: g for g in collapse(part, _sorted(part.accessed[straight], axes))}
    ours = list(by_last.values())
    theirs = [by_last[name] for name in _sorted(part.accessed[across], ours)]
    inner, other = [ours[-1]], [theirs[-1]]
    side = LINE_BYTES // max(part.tensors[point.name].dtype.bytes for point in staged)
    _lengthen(part, other, theirs, inner, side)
    _lengthen(part, inner, ours, other, 2 * side)
    rest = [group for group in ours if group not in (*inner, *other)]
    return Orders(
        _joined(rest),
        _joined(other),
        _joined(inner),
        tuple(p for p in staged if p.name not in part.producer),
        tuple(p.name for p in staged if p.name in part.producer),
    )


def _sorted(position: Scalar, groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The last axis of each group, slowest in memory first; those that it lacks before them."""
    factors = {group[-1]: coefficient(position, group[-1]) for group in groups}
    return tuple(sorted(factors, key=lambda n: (factors[n] != 0, -factors[n])))


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


def _staged(part: Part, found: Orders) -> tuple[Point, ...]:
    return (*found.loads, *(part.demand.results[name] for name in found.stores))


def _tile_refused(part: Part, target: Target, found: Orders) -> Reject | None:
    """Refuses tiles that are too small, too few or, of too many tensors, too large."""
    across, inner = _tile_sides(part, target, found)
    sizes = [part.tensors[p.name].dtype.bytes for p in _staged(part, found)]
    elements = across.length * inner.length
    if elements * max(sizes) < SMALLEST_TILE:
        return Reject(
            Transpose.name, f"a tile of {across.length} x {inner.length} elements is too small"
        )
    if elements * sum(sizes) > target.smem_bytes_per_block // 2:
        return Reject(
            Transpose.name, f"tiles of {len(sizes)} tensors do not fit into shared memory"
        )
    blocks = _blocks(part, found, across, inner)
    if blocks < target.sm_count:
        return Reject(Transpose.name, f"{blocks} tiles for {target.sm_count} multiprocessors")
    return None


def _tile_sides(part: Part, target: Target, found: Orders) -> tuple[Side, Side]:
    """The sides of a tile along `across` and along `inner`.

    bf16 [8192, 8192] -> 64 x 128, 16 KiB; [1e8, 2] -> 2 x 4096
    """
    sizes = [part.tensors[p.name].dtype.bytes for p in _staged(part, found)]
    extents = size_of(part, found.across), size_of(part, found.inner)
    across, inner = Side(found.across, 1), Side(found.inner, 1)
    for tile_bytes in TILE_BYTES:
        shape = _fit(*extents, tile_bytes // max(sizes), LINE_BYTES // max(sizes))
        across, inner = replace(across, length=shape[0]), replace(inner, length=shape[1])
        enough = _blocks(part, found, across, inner) >= BLOCKS_PER_SM * target.sm_count
        if enough and prod(shape) * sum(sizes) <= 2 * TILE_BYTES[0]:
            break
    return across, inner


def _blocks(part: Part, found: Orders, *sides: Side) -> int:
    tiles = [-(-size_of(part, side.axes) // side.length) for side in sides]
    return size_of(part, found.rest) * prod(tiles)


def _fit(across: int, inner: int, elements: int, side: int) -> tuple[int, int]:
    """`side` by what is left; an axis shorter than its side is taken whole.

    >>> _fit(8192, 8192, 8192, 64), _fit(2, 100000000, 8192, 64), _fit(3136, 3, 8192, 64)
    ((64, 128), (2, 4096), (2048, 3))
    """
    if inner < elements // side:
        return min(across, _power_of_two(elements // inner)), inner
    if across < side:
        return across, min(inner, _power_of_two(elements // across))
    return side, elements // side


def _power_of_two(limit: int) -> int:
    """The largest power of two that is no more than the limit."""
    return 1 << (limit.bit_length() - 1)


def _walk(
    s: Transforms, sides: tuple[Side, Side], across: Side, width: int, unrolled: bool
) -> Walk | None:
    """A block's tile, walked along the second side; None if the width does not divide it.

    [rest, a{8192}, b{8192}], 64 x 128 by 8, 256 threads:
        [rest*a.o*b.o.o@blockIdx.x, step{4}, thread{256}@threadIdx.x, b.i{8}@vectorize]
    [rest, a{N}, b{3}], 2048 x 3 by 8: both are one axis, in one run of memory
        [rest*a*b.o.o@blockIdx.x, step{3}, thread{256}@threadIdx.x, a*b.i{8}@vectorize]
    """
    domain, (slow, fast) = s.domain, sides
    rest = [axis.name for axis in domain if axis.name not in (*slow.axes, *fast.axes)]
    s.reorder(*rest, *slow.axes, *fast.axes)
    rows, columns = s.merge(slow.axes), s.merge(fast.axes)
    one_run = s.extent(columns) == fast.length
    length = fast.length * slow.length if one_run else fast.length
    if one_run:
        columns = s.merge((rows, columns))
    if s.extent(columns) % width or length % width:
        return None
    columns, lane = s.split(columns, width)
    blocks, tile = s.split(columns, length // width)
    numbers, row, vector = [*rest, blocks], "", tile
    if not one_run:
        row_blocks, row = s.split(rows, slow.length)
        # Both walks number the tiles alike.
        numbers = [*rest, *((blocks, row_blocks) if fast is across else (row_blocks, blocks))]
        s.reorder(*numbers, row, vector, lane)
        tile = s.merge((row, vector))
    step, thread = s.split(tile, THREADS)
    s.bind(BIDX=s.merge(tuple(numbers)))
    if unrolled and s.extent(step) <= MAX_UNROLL:
        s.bind(UNROLL=step)
    s.bind(TIDX=thread, VECTORIZE=lane)
    loops = loop_index(domain, tuple(s.made))
    at = loops.index[vector] * width + loops.loops[lane]
    place = (at // fast.length, at % fast.length) if one_run else (loops.index[row], at)
    return Walk(tuple(s.made), width, *place)


def _layout(
    across: Side, inner: Side, computed: Walk, moved: Walk, itemsize: int
) -> tuple[int, Scalar, Scalar]:
    """The elements of a tile in shared memory, and where each walk finds its element there."""
    places = (computed.slow, computed.fast), (moved.fast, moved.slow)
    if across.length > inner.length:
        places = (computed.fast, computed.slow), (moved.slow, moved.fast)
        layout = Layout.of(inner.length, across.length, computed.width, moved.width, itemsize)
    else:
        layout = Layout.of(across.length, inner.length, moved.width, computed.width, itemsize)
    here, there = (layout.position(row, column) for row, column in places)
    return layout.elements, here, there


@dataclass(frozen=True, slots=True)
class Layout:
    """A tile in shared memory: rows of `pitch` elements, `group` rows turned by `turn` chunks more.

    Columns are the longer side. One walk has vectors along them, inside a chunk; the other has its
    lanes on `group` rows, and without the turn a warp would meet rows 0, group, 2 * group ... in
    one bank.

        chunks of row 0:      0 1 2 3 4 5 6 7
        chunks of row group:  7 0 1 2 3 4 5 6     (turn 1)
    """

    rows: int
    pitch: int
    chunk: int
    group: int
    turn: int

    @staticmethod
    def of(rows: int, columns: int, group: int, width: int, itemsize: int) -> Layout:
        chunk = max(width, BANK_BYTES // itemsize)
        lanes = min(BANKS, BANKS * BANK_BYTES // itemsize)  # that the banks serve at once
        pitch = -(-columns // chunk) * chunk
        return Layout(rows, pitch, chunk, group, max(1, lanes * group // (rows * chunk)))

    @property
    def elements(self) -> int:
        return self.rows * self.pitch

    def position(self, row: Scalar, column: Scalar) -> Scalar:
        """Where the element at (row, column) is."""
        chunk = column // self.chunk + row // self.group * self.turn
        at = chunk % (self.pitch // self.chunk) * self.chunk
        return row * self.pitch + at + column % self.chunk
