# SPDX-License-Identifier: Apache-2.0
"""The transpose scheduler: what it takes, what crosses a tile, and that it moves every bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import pytest
import torch
from helpers.cases import assert_near, ints, poisoned
from helpers.graphs import Graph, biased, meta, rows, turned

from thunder_fuser.compiler import emit, schedule
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.domain import Domain, ParallelType, Split, Transform, apply
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.options import compile_options, options
from thunder_fuser.schedule.loop_index import LoopIndex, loop_index
from thunder_fuser.schedule.scheduled import ScheduledFusion, Tile
from thunder_fuser.schedule.scheduler import NoMatch
from thunder_fuser.schedule.transpose import Transpose
from thunder_fuser.target import CPU, EMULATOR, H200

D = DataType
Build = Callable[[FusionDefinition], None]

# One multiprocessor: a few tiles are work enough.
SMALL_GPU = replace(EMULATOR, name="small", sm_count=1)


def permuted(
    shape: Sequence[int], dims: Sequence[int], dtype: torch.dtype = torch.float32
) -> tuple[FusionDefinition, list[torch.Tensor]]:
    """A permutation alone."""
    fd = FusionDefinition()
    x = torch.empty(tuple(shape), dtype=dtype, device="meta")
    fd.add_output(fd.ops.permute(fd.from_pytorch(x), list(dims)))
    return fd, [x]


def scheduler_of(graph: Graph) -> str:
    fd, inputs = graph
    (segment,) = fd.plan(inputs, target=H200).segments
    return segment.scheduler.name


def refusal(graph: Graph) -> str:
    """Why transpose does not take a graph of one segment."""
    fd, inputs = graph
    (segment,) = fd.plan(inputs, target=H200).segments
    refused = Transpose.match(segment.part, H200, compile_options())
    assert isinstance(refused, NoMatch)
    return refused.reason


def scheduled(graph: Graph, alignment: int = 16) -> tuple[ScheduledFusion, Tile]:
    fd, inputs = graph
    (segment,) = fd.plan(inputs, target=SMALL_GPU).segments
    made = schedule(segment, dict.fromkeys(fd.fusion.inputs, alignment))
    assert made is not None and made.tile is not None
    return made, made.tile


# ---- what it takes


TAKEN = {
    "square": permuted((8192, 8192), (1, 0)),
    "bf16": permuted((32768, 1024), (1, 0), torch.bfloat16),
    "two columns": permuted((10**8, 2), (1, 0), torch.bfloat16),
    "two rows": permuted((2, 10**8), (1, 0), torch.bfloat16),
    "channels last": permuted((64, 256, 56, 56), (0, 2, 3, 1), torch.bfloat16),
    "channels first": permuted((64, 56, 56, 256), (0, 3, 1, 2)),
    "images": permuted((64, 224, 224, 3), (0, 3, 1, 2), torch.uint8),
    "three axes": permuted((400, 500, 600), (2, 1, 0)),
    "with a sum": turned(8192, 4096),
}


@pytest.mark.parametrize("name", TAKEN)
def test_takes(name: str) -> None:
    assert scheduler_of(TAKEN[name]) == "transpose"


def _two_fast_axes() -> Graph:
    """x + y in two further orders: three fast axes."""
    fd, x = rows(300, 300, 300)
    y, z = (fd.define_tensor([-1, -1, -1], contiguity=True) for _ in range(2))
    turned_y, turned_z = fd.ops.permute(y, [0, 2, 1]), fd.ops.permute(z, [2, 1, 0])
    fd.add_output(fd.ops.add(fd.ops.add(x, turned_y), turned_z))
    return fd, [meta(300, 300, 300) for _ in range(3)]


def _through_a_reshape() -> Graph:
    """The inner axis of the result runs over two axes of x, in the other order."""
    fd, x = rows(64, 50, 9000)
    fd.add_output(fd.ops.reshape(fd.ops.permute(x, [2, 1, 0]), [9000, 3200]))
    return fd, [meta(64, 50, 9000)]


def _expanded() -> Graph:
    fd = FusionDefinition()
    x = torch.empty((8192, 1), device="meta").expand(8192, 4096)
    fd.add_output(fd.ops.permute(fd.from_pytorch(x), [1, 0]))
    return fd, [x]


def _column() -> Graph:
    """[262144, 5120] * [262144, 1]: the column lies across, but is uniform along the rows."""
    fd, x = rows(262144, 5120, dtype=D.BFloat16)
    y = fd.define_tensor([-1, 1], contiguity=[True, None], dtype=D.BFloat16)
    fd.add_output(fd.ops.cast(fd.ops.mul(x, y), D.BFloat16))
    return fd, [meta(262144, 5120, dtype=D.BFloat16), meta(262144, 1, dtype=D.BFloat16)]


LEFT = {
    "same axis": (biased(8192, 8192), "all tensors have the same fast axis"),
    "inner kept": (permuted((64, 2048, 32, 128), (0, 2, 1, 3)), "same fast axis"),
    "column": (_column(), "no tensor with another fast axis"),
    "expanded": (_expanded(), "same fast axis"),
    "three fast axes": (_two_fast_axes(), "tensors across i2 are fast along i0, i1"),
    "reshape": (_through_a_reshape(), "T0 is read across i3 through a reshape"),
    "few bytes": (permuted((96, 64), (1, 0)), "24576 bytes are too few"),
    "tiny tiles": (permuted((10**6, 4, 4), (0, 2, 1)), "a tile of 4 x 4 elements is too small"),
}


@pytest.mark.parametrize("name", LEFT)
def test_leaves_to_pointwise(name: str) -> None:
    graph, reason = LEFT[name]
    assert scheduler_of(graph) == "pointwise"
    assert reason in refusal(graph)


def test_not_on_the_cpu() -> None:
    fd, inputs = TAKEN["square"]
    (segment,) = fd.plan(inputs, target=CPU).segments
    assert segment.scheduler.name == "pointwise"


# ---- tiles


@pytest.mark.parametrize("name", ["square", "bf16", "two columns", "channels last"])
def test_both_sides_are_16_bytes(name: str) -> None:
    graph = TAKEN[name]
    made, _ = scheduled(graph)
    width = 16 // graph[1][0].dtype.itemsize
    source = emit(made)
    assert source is not None
    assert all(f"{call}<{width}>" in source.text for call in ("= ldv", "getv", "  stv"))
    narrow = emit(scheduled(graph, alignment=2)[0])
    assert narrow is not None and "= ldv" not in narrow.text


def test_staged_is_what_is_smaller() -> None:
    """relu((a + b).T) computes in the order of a and b; the result alone crosses a tile."""
    fd, a = rows(4096, 8192)
    b = fd.define_tensor([-1, -1], contiguity=True)
    fd.add_output(fd.ops.relu(fd.ops.permute(fd.ops.add(a, b), [1, 0])))
    _, tile = scheduled((fd, [meta(4096, 8192), meta(4096, 8192)]))
    assert tile.loads == () and len(tile.stores) == 1


WALKED = [
    ((64, 64), (1, 0), torch.float32),
    ((67, 33), (1, 0), torch.float32),
    ((520, 2), (1, 0), torch.float32),
    ((3, 1031), (1, 0), torch.int16),
    ((2, 20, 36), (0, 2, 1), torch.float32),
    ((2, 3, 14, 14), (0, 2, 3, 1), torch.float64),
    ((100, 2, 3), (2, 1, 0), torch.int64),
]


@pytest.mark.parametrize(("shape", "dims", "dtype"), WALKED)
def test_both_walks_meet_in_the_tile(
    shape: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Each visits every element once, in the same block, at the same place, alone there."""
    made, tile = scheduled(permuted(shape, dims, dtype))
    computed = dict(places(made, made.transforms, tile.computed))
    moved = dict(places(made, tile.transforms, tile.moved))
    assert computed == moved
    assert len(computed) == reduce(int.__mul__, shape)
    assert len(set(computed.values())) == len(computed)
    assert all(0 <= at < tile.elements for _, at in computed.values())


def loops_of(made: ScheduledFusion, transforms: tuple[Transform, ...]) -> tuple[Domain, LoopIndex]:
    domain = reduce(apply, transforms, made.axes)
    return domain, loop_index(made.axes, transforms)


def places(
    made: ScheduledFusion, transforms: tuple[Transform, ...], position: Scalar
) -> list[tuple[tuple[int, ...], tuple[int, int]]]:
    """(point of the axes, (block, position in the tile)) for every iteration that is not guarded.

    An iteration visited twice would be there twice; `dict` would hide it, so it is refused here.
    """
    domain, loops = loops_of(made, transforms)
    names = [axis.name for axis in made.axes]
    wanted = [*(loops.index[name] for name in names), position]
    found = []
    for values in itertools.product(*(range(axis.extent.value) for axis in domain)):
        at = {str(loops.loops[a.name]): v for a, v in zip(domain, values, strict=True)}
        if not _guarded(loops, at):
            *point, place = (scalar.substitute(at).value for scalar in wanted)
            found.append((tuple(point), (values[0], place)))
    assert len({point for point, _ in found}) == len(found)
    return found


def _guarded(loops: LoopIndex, at: dict[str, int]) -> bool:
    """Adds the guarded variables to the values; True if a guard forbids the iteration."""
    waiting = list(loops.guards)
    while waiting:
        guard = next(g for g in waiting if g.value.symbols <= at.keys())
        value = guard.value.substitute(at).value
        if value >= guard.extent.value:
            return True
        at[str(guard.variable)] = value
        waiting.remove(guard)
    return False


CONFLICTS = [
    ((8192, 8192), (1, 0), 1),
    ((32768, 1024), (1, 0), 1),
    ((64, 256, 56, 56), (0, 2, 3, 1), 1),
    ((10**6, 32), (1, 0), 1),
    ((10**6, 16), (1, 0), 1),
    ((10**8, 2), (1, 0), 2),
    ((2, 10**8), (1, 0), 2),
    ((64, 3, 224, 224), (0, 2, 3, 1), 2),
]


@pytest.mark.parametrize(("shape", "dims", "most"), CONFLICTS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_bank_conflicts(
    shape: tuple[int, ...], dims: tuple[int, ...], most: int, dtype: torch.dtype
) -> None:
    made, tile = scheduled(permuted(shape, dims, dtype))
    for transforms, position in (
        (made.transforms, tile.computed),
        (tile.transforms, tile.moved),
    ):
        assert conflicts(made, transforms, position, dtype.itemsize) <= most


def test_conflicts_are_counted() -> None:
    """Rows that are not turned meet in the same banks: 8 threads, each on rows of its own."""
    made, tile = scheduled(permuted((8192, 8192), (1, 0), torch.bfloat16))
    (lane, row) = (f.factor for f in tile.transforms[1:3] if isinstance(f, Split))
    _, loops = loops_of(made, tile.transforms)
    straight = loops.index["i0.i"] + loops.index["i1.o.i"] * lane * 128
    assert lane * row == 64
    assert conflicts(made, tile.transforms, straight, 2) == 8


def conflicts(
    made: ScheduledFusion, transforms: tuple[Transform, ...], position: Scalar, itemsize: int
) -> int:
    """The most words that one bank has to give for one access of a warp."""
    domain, loops = loops_of(made, transforms)
    by = {axis.parallel: axis for axis in domain}
    thread, lane = (loops.loops[by[p].name] for p in (ParallelType.TIDX, ParallelType.VECTORIZE))
    for guard in reversed(loops.guards):
        position = position.substitute({str(guard.variable): guard.value})
    others = dict.fromkeys(position.symbols - thread.symbols - lane.symbols, 0)
    width = by[ParallelType.VECTORIZE].extent.value
    is_vector = width > 1 and not (position - lane).symbols & lane.symbols
    size = itemsize * width if is_vector else itemsize
    together = min(32, 128 // size)
    worst = 0
    for first in range(0, 256, together):
        for element in [0] if is_vector else range(width):
            at = {**others, str(lane): element}
            words: dict[int, set[int]] = {}
            for number in range(first, first + together):
                start = position.substitute({**at, str(thread): number}).value * itemsize
                for word in range(start // 4, -(-(start + size) // 4)):
                    words.setdefault(word % 32, set()).add(word)
            worst = max(worst, *map(len, words.values()))
    return worst


# ---- every bit


def run(build: Build, inputs: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """On a small emulated GPU, threads in both orders, in one transpose kernel, bit for bit."""
    with FusionDefinition() as fd:
        build(fd)
    segments = fd.plan(inputs, target=SMALL_GPU).segments
    assert [segment.scheduler.name for segment in segments] == ["transpose"]
    for backwards in (False, True):
        with poisoned(), options(emulate_reversed=backwards):
            results = fd.execute(inputs, target=SMALL_GPU)
        for result, value in zip(results, expected, strict=True):
            assert_near(result, value, 0.0)


PERMUTATIONS = [
    ((128, 256), (1, 0), torch.bfloat16),
    ((130, 250), (1, 0), torch.float16),
    ((129, 255), (1, 0), torch.bfloat16),
    ((129, 255), (1, 0), torch.uint8),
    ((1, 130, 90), (2, 1, 0), torch.float32),
    ((4096, 2), (1, 0), torch.float32),
    ((2, 4096), (1, 0), torch.bfloat16),
    ((2048, 3), (1, 0), torch.int16),
    ((3, 2057), (1, 0), torch.float32),
    ((4, 33, 70), (0, 2, 1), torch.bfloat16),
    ((4, 33, 70), (2, 0, 1), torch.bool),
    ((4, 33, 70), (2, 1, 0), torch.float64),
    ((2, 64, 14, 14), (0, 2, 3, 1), torch.bfloat16),
    ((2, 14, 14, 64), (0, 3, 1, 2), torch.float32),
    ((5, 3, 28, 28), (0, 2, 3, 1), torch.uint8),
    ((1000, 2, 3), (2, 1, 0), torch.int32),
    ((9, 56, 56), (0, 2, 1), torch.bfloat16),
    ((70, 4, 4, 40), (3, 2, 1, 0), torch.int64),
]


@pytest.mark.parametrize(("shape", "dims", "dtype"), PERMUTATIONS)
def test_permutation(shape: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype) -> None:
    x = ints(*shape, low=0, high=100, dtype=dtype)

    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.permute(fd.from_pytorch(x), list(dims)))

    run(fusion, [x], [x.permute(dims).contiguous()])


def test_nan_and_infinity() -> None:
    x = ints(130, 90, dtype=torch.bfloat16)
    x[::7, ::5], x[::11, ::3], x[::13] = float("nan"), float("inf"), float("-inf")

    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.permute(fd.from_pytorch(x), [1, 0]))

    run(fusion, [x], [x.t().contiguous()])


X, Y, Z = (ints(*shape, dtype=torch.float32) for shape in ((130, 90), (90, 130), (130, 90)))
SQUARE = ints(128, 128, dtype=torch.float32)
HALF = ints(130, 90, dtype=torch.bfloat16)


def _x(fd: FusionDefinition, *tensors: torch.Tensor) -> list[object]:
    return [fd.from_pytorch(tensor) for tensor in tensors]


def _beside_straight(fd: FusionDefinition, x: torch.Tensor, y: torch.Tensor) -> None:
    a, b = _x(fd, x, y)
    fd.add_output(fd.ops.add(fd.ops.permute(a, [1, 0]), b))


def _of_a_sum(fd: FusionDefinition, x: torch.Tensor, y: torch.Tensor) -> None:
    a, b = _x(fd, x, y)
    fd.add_output(fd.ops.relu(fd.ops.permute(fd.ops.add(a, b), [1, 0])))


def _both_orders(fd: FusionDefinition, x: torch.Tensor) -> None:
    (a,) = _x(fd, x)
    twice = fd.ops.mul(a, 2.0)
    fd.add_output(twice)
    fd.add_output(fd.ops.permute(twice, [1, 0]))


def _beside_itself(fd: FusionDefinition, x: torch.Tensor) -> None:
    (a,) = _x(fd, x)
    fd.add_output(fd.ops.sub(a, fd.ops.permute(a, [1, 0])))


def _biased(fd: FusionDefinition, x: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> None:
    a, b, c = _x(fd, x, row, column)
    fd.add_output(fd.ops.add(fd.ops.add(fd.ops.permute(a, [1, 0]), b), c))


def _in_and_out(fd: FusionDefinition, x: torch.Tensor, y: torch.Tensor) -> None:
    a, b = _x(fd, x, y)
    total = fd.ops.add(fd.ops.permute(a, [1, 0]), b)
    fd.add_output(total)
    fd.add_output(fd.ops.neg(total), stride_order=[0, 1])


def _sliced(fd: FusionDefinition, x: torch.Tensor) -> None:
    (a,) = _x(fd, x)
    fd.add_output(fd.ops.permute(fd.ops.slice(a, [3, 5], [123, 85]), [1, 0]))


def _padded(fd: FusionDefinition, x: torch.Tensor) -> None:
    (a,) = _x(fd, x)
    fd.add_output(fd.ops.permute(fd.ops.pad(a, [1, 2, 3, 0]), [1, 0]))


def _flipped(fd: FusionDefinition, x: torch.Tensor) -> None:
    (a,) = _x(fd, x)
    fd.add_output(fd.ops.permute(fd.ops.flip(a, [0]), [2, 1, 0]))


def _joined(fd: FusionDefinition, x: torch.Tensor, y: torch.Tensor) -> None:
    a, b = _x(fd, x, y)
    fd.add_output(fd.ops.cat([fd.ops.permute(a, [1, 0]), b], 1))


def _mixed(fd: FusionDefinition, x: torch.Tensor, y: torch.Tensor) -> None:
    a, b = _x(fd, x, y)
    fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.permute(a, [1, 0]), b), D.Half))


ROW, COLUMN = ints(130, dtype=torch.float32), ints(90, 1, dtype=torch.float32)
MANY = ints(7, 90, 130, dtype=torch.float32)
HEADS = ints(40, 32, 96, dtype=torch.float32).permute(1, 2, 0)
VIEW = ints(200, 300, dtype=torch.float32)[3:133, 5:95]
EXPANDED = X[None].expand(3, 130, 90)
OFFSET = ints(130 * 90 + 1, dtype=torch.bfloat16)[1:].view(130, 90)

FUSED = {
    "beside a straight one": (_beside_straight, [X, Y], [X.t() + Y]),
    "misaligned": (_beside_straight, [OFFSET, Y], [OFFSET.t() + Y]),
    "view": (_beside_straight, [VIEW, Y], [VIEW.t() + Y]),
    "less axes": (_beside_straight, [X, MANY], [X.t() + MANY]),
    "of a sum": (_of_a_sum, [X, Z], [(X + Z).relu().t().contiguous()]),
    "both orders": (_both_orders, [X], [X * 2, (X * 2).t().contiguous()]),
    "beside itself": (_beside_itself, [SQUARE], [SQUARE - SQUARE.t()]),
    "row and column": (_biased, [X, ROW, COLUMN], [X.t() + ROW + COLUMN]),
    "in and out": (_in_and_out, [X, Y], [X.t() + Y, -(X.t() + Y)]),
    "sliced": (_sliced, [X], [X[3:123, 5:85].t().contiguous()]),
    "padded": (_padded, [X], [torch.nn.functional.pad(X, [1, 2, 3, 0]).t().contiguous()]),
    "flipped": (_flipped, [HEADS], [HEADS.flip(0).permute(2, 1, 0).contiguous()]),
    "joined": (_joined, [X, Y], [torch.cat([X.t(), Y], 1)]),
    "mixed types": (_mixed, [HALF, Y], [(HALF.float().t() + Y).half()]),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str) -> None:
    fusion, inputs, expected = FUSED[name]
    run(lambda fd: fusion(fd, *inputs), inputs, expected)  # type: ignore[operator]


def test_expanded() -> None:
    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.permute(fd.from_pytorch(EXPANDED), [0, 2, 1]))

    run(fusion, [EXPANDED], [EXPANDED.permute(0, 2, 1).contiguous()])


def test_wide_indices() -> None:
    """Elements beyond 2**31: offsets take 64 bits, on both sides."""
    fd, inputs = permuted((50000, 50000), (1, 0), torch.uint8)
    (segment,) = fd.plan(inputs, target=H200).segments
    made = schedule(segment, {"T0": 16})
    source = emit(made)
    assert segment.scheduler.name == "transpose" and source is not None
    assert "const i64" in source.text and "const i32" not in source.text
