# SPDX-License-Identifier: Apache-2.0
"""Pointwise work on tensors with two memory orders, which meet in a tile in shared memory.

    T1[i1, i0] = relu(permute(T0[i0, i1]))    T0 is fast along i1, T1 along i0

Along i1, a thread could read 16 bytes of T0 at once, but write T1 only element by element. So each
block takes a tile of both axes. It reads T0's tile into shared memory in T0's order, waits, and
computes in T1's order. A result in the other order is staged in shared memory too, and written
after the computation. The computation runs in the order of most bytes.

    computed  [i1, i0] -> [i1.o*i0.o.o@blockIdx.x, step, thread@threadIdx.x, i0.i@vectorize]
    moved     [i0, i1] -> [i1.o.o*i0.o@blockIdx.x, step, thread@threadIdx.x, i1.i@vectorize]

An inner axis shorter than a tile's side is merged with its neighbours in memory ("virtual" inner
axes). If a tile has a whole axis, this is merged with the tile's other axis, so that [N, 3] is read
in one run of 3 * N elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import Transform
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.schedule.axes import best_width, coefficient, collapse, is_linear, size_of
from thunder_fuser.schedule.loop_index import loop_index
from thunder_fuser.schedule.pointwise import Pointwise
from thunder_fuser.schedule.scheduled import HeuristicParams, ScheduledFusion, Tile, Transforms
from thunder_fuser.schedule.scheduler import KernelMatch, NoMatch
from thunder_fuser.target import Target

# Of a tile and of half a tile: two vectors each. With four a transpose is up to 2 % slower (H100,
# H200), with one up to 9 % (H200).
THREADS, HALF_THREADS = 512, 256
LINE_BYTES = 128  # a tile's shorter side: a warp should read or write as much in one piece
TILE_BYTES = (16384, 8192, 4096)  # tried in this order, until there are enough blocks
SMALLEST_TILE = 2048  # bytes
BLOCKS_PER_SM = 4  # wanted; one is the least
MAX_UNROLL = 8  # steps whose loads are under way at once
BANKS, BANK_BYTES = 32, 4


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a tile: its axes, and its length in elements."""

    axes: tuple[str, ...]
    length: int


@dataclass(frozen=True, slots=True)
class TileWalk:
    """The transforms that make a thread's loops, and the (slow, fast) index of its element in the
    tile."""

    transforms: tuple[Transform, ...]
    width: int
    slow: Scalar
    fast: Scalar


@dataclass(frozen=True, kw_only=True)
class Transpose(KernelMatch):
    """Large pointwise parts in which some tensors have another fast axis than the rest.

    The scheduler refuses a CPU, whose caches take the place of the tile. It also refuses parts
    whose tensors have one fast axis or more than two, or in which tensors with another fast axis
    are broadcasts, or are read through a reshape's // and %, or at several places.

    staged: the inputs and results that pass through the tile; across: their (virtual) inner axes;
    inner: those of the computation. kept has all other axes, then across, then inner.
    """

    name = "transpose"
    takes_no = (OpKind.INDEX,)

    across: tuple[str, ...]
    inner: tuple[str, ...]
    staged: tuple[Point, ...]

    @classmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> Transpose | NoMatch:
        if target.is_cpu:
            return NoMatch(cls.name, "the CPU's caches need no tile in shared memory")
        largest = max((part.bytes_of(name) for name in part.outputs), default=0)
        if largest < SMALLEST_TILE * target.sm_count:
            reason = f"{largest} bytes are too few for {target.sm_count} multiprocessors"
            return NoMatch(cls.name, reason)
        if isinstance(Pointwise.match(part, target, options), NoMatch):
            return NoMatch(cls.name, "pointwise refuses it")
        return cls._orders(part, target, options)

    @classmethod
    def _orders(cls, part: Part, target: Target, options: CompileOptions) -> Transpose | NoMatch:
        """The match with the two memory orders, or why the part has no second order.

        T0[i0, i1], T2[i1, i0]  ->  across (i1,), inner (i0,), staged (T0,)
        """
        fast = _fast_axes(part)
        weights = _weights(part, fast)
        if len(weights) < 2:
            return NoMatch(cls.name, "all tensors have the same fast axis")
        along = max(weights, key=lambda axis: weights[axis])
        staged = [p for p, a in fast.items() if a != along and along in part.accessed[p].symbols]
        others = {fast[point] for point in staged}
        refused = _refuse_staging(part, staged, along, others)
        if refused is not None:
            return refused
        rest, across, inner = _two_orders(part, [p for p in fast if fast[p] == along], staged)
        kept = (*rest, *across, *inner)
        points = tuple(staged)
        return cls(part, target, options, kept, across=across, inner=inner, staged=points)

    @property
    def itemsizes(self) -> list[int]:
        """The bytes of an element of each staged tensor."""
        return [self.part.tensors[point.name].dtype.bytes for point in self.staged]

    def refuse(self) -> NoMatch | None:
        """Refuses tiles that are too small or too few, or together too large for shared memory."""
        sides, sizes, target = self.sides(), self.itemsizes, self.target
        across, inner = (side.length for side in sides)
        if across * inner * max(sizes) < SMALLEST_TILE:
            return NoMatch(self.name, f"a tile of {across} x {inner} elements is too small")
        if across * inner * sum(sizes) > target.smem_bytes_per_block // 2:
            return NoMatch(self.name, f"tiles of {len(sizes)} tensors do not fit in shared memory")
        blocks = self.blocks(*sides)
        if blocks < target.sm_count:
            return NoMatch(self.name, f"{blocks} tiles for {target.sm_count} multiprocessors")
        return None

    def sides(self) -> tuple[Side, Side]:
        """The sides of a tile along `across` and along `inner`.

        bf16 [8192, 8192] -> 64 x 128, 16 KiB; [1e8, 2] -> 2 x 4096
        """
        widest = max(self.itemsizes)
        extents = size_of(self.part, self.across), size_of(self.part, self.inner)
        for tile_bytes in TILE_BYTES:
            shape = fit(*extents, tile_bytes // widest, LINE_BYTES // widest)
            across, inner = Side(self.across, shape[0]), Side(self.inner, shape[1])
            enough = self.blocks(across, inner) >= BLOCKS_PER_SM * self.target.sm_count
            if enough and prod(shape) * sum(self.itemsizes) <= 2 * TILE_BYTES[0]:
                break
        return across, inner

    def blocks(self, *sides: Side) -> int:
        """The number of tiles."""
        sizes = [size_of(self.part, side.axes) for side in sides]
        tiles = [-(-size // side.length) for size, side in zip(sizes, sides, strict=True)]
        return self.kept_size // prod(sizes) * prod(tiles)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        across, inner = self.sides()
        is_half = across.length * inner.length * max(self.itemsizes) <= TILE_BYTES[1]
        return self.tiled(alignment, across, inner, HALF_THREADS if is_half else THREADS)

    def tiled(
        self, alignment: dict[str, int], across: Side, inner: Side, threads: int
    ) -> ScheduledFusion:
        """The schedule with a tile of these sides."""
        producer = self.part.producer
        loads = tuple(point for point in self.staged if point.name not in producer)
        stores = tuple(point.name for point in self.staged if point.name in producer)

        def widest(slow: Side, fast: Side, unrolled: bool) -> TileWalk:
            block = across, threads, unrolled

            def build(s: Transforms, width: int) -> TileWalk | None:
                return _walk(s, (slow, fast), width, block)

            width = best_width(self.part, self.domain, build, alignment)
            walk = build(Transforms(self.domain), width)
            assert walk is not None  # 1 divides everything
            return walk

        # Past the end of an axis, serial steps are skipped, but unrolled ones are clamped. Those
        # would read places of the tile that nothing has filled.
        computed = widest(across, inner, unrolled=not loads)
        moved = widest(inner, across, unrolled=not stores)
        elements, places = _layout(across, inner, computed, moved, min(self.itemsizes))
        tile = Tile(loads, stores, moved.transforms, elements, *places)
        params = HeuristicParams(self.name, computed.width, (threads, 1))
        return replace(self.scheduled((params, computed.transforms), alignment), tile=tile)


# ---- which tensors are staged


def _fast_axes(part: Part) -> dict[Point, str]:
    """The axis along which each access has stride 1, if there is one."""
    axes: dict[Point, str] = {}
    for point, position in part.accessed.items():
        symbols = position.symbols  # few, where a part may have hundreds of axes
        for name in (name for name in part.extents if name in symbols):
            if coefficient(position, name) == 1 and is_linear(position, name):
                axes.setdefault(point, name)
    return axes


def _weights(part: Part, fast: Mapping[Point, str]) -> dict[str, int]:
    """The bytes of the tensors with each fast axis; the axes of results come first."""
    weights: dict[str, int] = {}
    for name in (*part.outputs, *part.inputs):
        for axis in (axis for point, axis in fast.items() if point.name == name):
            weights[axis] = weights.get(axis, 0) + part.bytes_of(name)
    return weights


def _refuse_staging(
    part: Part, staged: Sequence[Point], along: str, others: set[str]
) -> NoMatch | None:
    """Refuses accesses that one tile cannot serve."""
    name = Transpose.name
    if not staged:
        return NoMatch(name, f"no tensor with another fast axis has {along}")
    if len(others) > 1:
        named = ", ".join(sorted(others))
        return NoMatch(name, f"tensors across {along} are fast along {named}, not along one axis")
    if len({point.name for point in staged}) < len(staged):
        return NoMatch(name, f"a tensor is read across {along} at several places")
    for point in staged:
        if not all(is_linear(part.accessed[point], axis) for axis in (along, *others)):
            return NoMatch(name, f"{point.name} is read across {along} through a reshape")
    return None


def _two_orders(
    part: Part, straight: Sequence[Point], staged: Sequence[Point]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """All other axes, those across and the inner ones. Across and inner are each at least as long
    as a tile's side if neighbours in memory can be merged. Of the tensors with the most axes, the
    largest one decides an order."""

    def position(points: Sequence[Point]) -> Scalar:
        sizes = {p: (len(part.accessed[p].symbols), part.bytes_of(p.name)) for p in points}
        return part.accessed[max(points, key=lambda point: sizes[point])]

    axes = [(name,) for name in part.axes(part.outputs[0])]
    by_last = {g[-1]: g for g in collapse(part, _sorted(position(straight), axes))}
    ours = list(by_last.values())
    theirs = [by_last[name] for name in _sorted(position(staged), ours)]
    inner, across = [ours[-1]], [theirs[-1]]
    side = LINE_BYTES // max(part.tensors[point.name].dtype.bytes for point in staged)
    _lengthen(part, across, theirs, inner, side)
    _lengthen(part, inner, ours, across, 2 * side)
    rest = [group for group in ours if group not in (*inner, *across)]
    return _joined(rest), _joined(across), _joined(inner)


def _sorted(position: Scalar, groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The last axis of each group, slowest in memory first; axes that it lacks come before."""
    strides = {group[-1]: abs(coefficient(position, group[-1])) for group in groups}  # of flips < 0
    return tuple(sorted(strides, key=lambda n: (strides[n] != 0, -strides[n])))


def _lengthen(
    part: Part, inner: list[tuple[str, ...]], order: list[tuple[str, ...]],
    taken: list[tuple[str, ...]], wanted: int,
) -> None:  # fmt: skip
    """Adds the next slower groups until the inner axes have `wanted` elements."""
    for group in reversed(order[: -len(inner)]):
        if group in taken or size_of(part, _joined(inner)) >= wanted:
            return
        inner.insert(0, group)


def _joined(groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for group in groups for name in group)


# ---- the tile


def fit(across: int, inner: int, elements: int, side: int) -> tuple[int, int]:
    """A tile of so many elements, `side` of them across; a shorter axis is taken whole.

    >>> fit(8192, 8192, 8192, 64), fit(2, 100000000, 8192, 64), fit(3136, 3, 8192, 64)
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
    s: Transforms, sides: tuple[Side, Side], width: int, block: tuple[Side, int, bool]
) -> TileWalk | None:
    """The loops over a block's tile, with vectors along the second side; None if the width does not
    divide that. block: the side by which tiles are numbered, threads, whether steps are unrolled.

    [rest, a{8192}, b{8192}], 64 x 128 by 8, 512 threads:
        [rest*a.o*b.o.o@blockIdx.x, step{2}, thread{512}@threadIdx.x, b.i{8}@vectorize]
    [rest, a{N}, b{3}], 2048 x 3 by 8: both are one axis, in one run of memory
        [rest*a*b.o.o@blockIdx.x, step{2}, thread{512}@threadIdx.x, a*b.i{8}@vectorize]
    """
    domain, (slow, fast), (across, threads, unrolled) = s.domain, sides, block
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
    step, thread = s.split(tile, threads)
    s.bind(BIDX=s.merge(tuple(numbers)))
    if unrolled and s.extent(step) <= MAX_UNROLL:
        s.bind(UNROLL=step)
    s.bind(TIDX=thread, VECTORIZE=lane)
    loops = loop_index(domain, tuple(s.applied))
    at = loops.index[vector] * width + loops.loops[lane]
    place = (at // fast.length, at % fast.length) if one_run else (loops.index[row], at)
    return TileWalk(tuple(s.applied), width, *place)


def _layout(
    across: Side, inner: Side, computed: TileWalk, moved: TileWalk, itemsize: int
) -> tuple[int, tuple[Scalar, Scalar]]:
    """The elements of a tile in shared memory, and the places of both walks' elements there.

    A tile has rows of `pitch` elements, with columns along its longer side. One walk has vectors
    along the columns, each in one chunk. The other walk has its lanes on `group` rows. Each group
    is rotated by `turn` more chunks than the one before. Otherwise a warp would access rows 0,
    group, 2 * group ... in one bank.

        chunks of row 0:      0 1 2 3 4 5 6 7
        chunks of row group:  7 0 1 2 3 4 5 6     (turn 1)
    """
    rows, columns, group, width = across.length, inner.length, moved.width, computed.width
    places = (computed.slow, computed.fast), (moved.fast, moved.slow)
    if rows > columns:
        rows, columns, group, width = columns, rows, width, group
        places = (computed.fast, computed.slow), (moved.slow, moved.fast)
    chunk = max(width, BANK_BYTES // itemsize)
    pitch = -(-columns // chunk) * chunk
    lanes = min(BANKS, BANKS * BANK_BYTES // itemsize)  # elements that the banks serve at once
    turn = max(1, lanes * group // (rows * chunk))

    def position(row: Scalar, column: Scalar) -> Scalar:
        turned = column // chunk + row // group * turn
        return row * pitch + turned % (pitch // chunk) * chunk + column % chunk

    here, there = (position(*place) for place in places)
    return rows * pitch, (here, there)
