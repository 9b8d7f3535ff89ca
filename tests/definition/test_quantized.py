# SPDX-License-Identifier: Apache-2.0
"""Packed 4-bit floats, quantization in blocks, and the products that take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import Runner, rand

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.rules.build import define
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.eager.scaled import from_tiles, pack_e2m1, unpack_e2m1
from thunder_fuser.runtime.torch_types import from_torch_dtype

PACKED, E4M3, E8M0 = torch.float4_e2m1fn_x2, torch.float8_e4m3fn, torch.float8_e8m0fnu
FLOAT4, FLOAT8 = DataType.Float4_e2m1fn_x2, DataType.Float8_e4m3fn
FLOAT4_NUMBERS = DataType.Float4_e2m1fn
SIZES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8)


def equal(results: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    """Equal in dtype, and to the bit."""
    pairs = list(zip(results, expected, strict=True))
    return all(a.dtype is b.dtype and torch.equal(bits(a), bits(b)) for a, b in pairs)


# ---- packed floats

def numbers_of(x: torch.Tensor, axis: int = -1) -> torch.Tensor:
    """The codes of packed floats, one an element: the low half of each byte, then the high one."""
    pairs = bits(x).movedim(axis, -1)
    return torch.stack([pairs % 16, pairs // 16], -1).flatten(-2).movedim(-1, axis)


def pairs_of(codes: torch.Tensor, axis: int = -1) -> torch.Tensor:
    """Codes in pairs along an axis, the fastest one in memory."""
    moved = codes.movedim(axis, -1)
    pairs = (moved[..., ::2] + 16 * moved[..., 1::2]).contiguous()
    return pairs.view(PACKED).movedim(-1, axis)


def floats_of(codes: torch.Tensor) -> torch.Tensor:
    return torch.tensor([*SIZES, *(-size for size in SIZES)])[codes.int()].contiguous()


MOVES: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "set": (lambda o, t: o.set(t), lambda x: x),
    "permute": (lambda o, t: o.permute(t, [1, 0]), lambda x: x.t()),
    "permute back": (lambda o, t: o.permute(o.permute(t, [1, 0]), [-1, 0]), lambda x: x),
    "reshape": (lambda o, t: o.reshape(t, [4, 48]), lambda x: x.reshape(4, 48)),
    "reshape to a rest": (lambda o, t: o.reshape(t, [-1]), lambda x: x.reshape(-1)),
    "reshape to sizes": (
        lambda o, t: o.reshape(t, [o.mul(o.size(t, 0), 2), o.div(o.size(t, 1), 2)]),
        lambda x: x.reshape(12, 16),
    ),
    "permute and reshape": (
        lambda o, t: o.reshape(o.permute(t, [1, 0]), [8, 24]), lambda x: x.t().reshape(8, 24)
    ),
    "reshape and permute": (
        lambda o, t: o.permute(o.reshape(t, [2, 3, 32]), [1, 2, 0]),
        lambda x: x.reshape(2, 3, 32).permute(1, 2, 0),
    ),
    "slice": (lambda o, t: o.slice(t, [1, 3], [5, 29]), lambda x: x[1:5, 3:29]),
    "every second": (lambda o, t: o.slice(t, [0, 1], [6, 32], [1, 2]), lambda x: x[:, 1::2]),
    "pad": (lambda o, t: o.pad(t, [1, 3]), lambda x: F.pad(x, (1, 3))),
    "cat": (lambda o, t: o.cat([t, o.slice(t, [0, 1], [6, 3]), t], 1),
            lambda x: torch.cat([x, x[:, 1:3], x], 1)),
    "flip": (lambda o, t: o.flip(t, [1]), lambda x: x.flip(1)),
    "where": (lambda o, t: o.where(o.eq(1, 1), t, t), lambda x: x),
    "broadcast": (lambda o, t: o.broadcast(t, [False, True, False]), lambda x: x[:, None]),
    "expand": (
        lambda o, t: o.broadcast_in_dim(t, [3, 6, 32], [1, 2]), lambda x: x.expand(3, 6, 32)
    ),
    "columns": (
        lambda o, t: o.index_select(t, o.iota(8, 0, 3, DataType.Int), 1), lambda x: x[:, 0:24:3]
    ),
}  # fmt: skip


def sources() -> dict[str, tuple[torch.Tensor, int]]:
    """[6, 32] numbers, and the axis of their pairs: the fastest one in memory."""
    x = torch.arange(96, dtype=torch.uint8).reshape(6, 16) * 7
    wide = torch.arange(360, dtype=torch.int32).reshape(10, 36).to(torch.uint8)
    return {
        "rows": (x.view(PACKED), 1),
        "columns": (x.reshape(32, 3).view(PACKED).t(), 0),
        "with gaps": (wide.view(PACKED)[2:8, 1:33:2], 1),
    }


@pytest.mark.parametrize("source", sources())
@pytest.mark.parametrize("name", MOVES)
def test_packed_floats_move(run: Runner, name: str, source: str) -> None:
    """Sizes count numbers, also where no pair stays together; also op by op in torch."""
    call, expected = MOVES[name]
    x, axis = sources()[source]
    fd = FusionDefinition()
    moved = call(fd.ops, fd.from_pytorch(x, static_sizes=source != "columns"))
    assert moved.dtype() is DataType.Float4_e2m1fn
    fd.add_output(moved)
    fd.add_output(fd.ops.cast(moved, DataType.Float))
    codes = expected(numbers_of(x, axis))
    wanted = [pairs_of(codes), floats_of(codes)]
    results = run.execute(fd, [x])
    assert equal(results, wanted) and results[0].is_contiguous()
    assert equal(evaluate(fd.fusion, [x]), wanted)
    assert rebuild(str(fd.fusion)) == fd.fusion


DEFINED: dict[str, dict[str, Any]] = {
    "in numbers": {"shape": [6, 32], "contiguity": [True, True], "dtype": FLOAT4_NUMBERS},
    "in pairs": {"shape": [6, 16], "contiguity": True, "dtype": FLOAT4},
    "of any size": {"shape": [-1, -1], "contiguity": True, "dtype": FLOAT4_NUMBERS},
    "columns in numbers": {
        "shape": [6, 32], "contiguity": True, "dtype": FLOAT4_NUMBERS, "stride_order": [0, 1]
    },
    "columns in pairs": {
        "shape": [3, 32], "contiguity": True, "dtype": FLOAT4, "stride_order": [0, 1]
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DEFINED)
def test_nvfusers_definitions_of_packed_floats(run: Runner, name: str) -> None:
    """Float4_e2m1fn says numbers, Float4_e2m1fn_x2 pairs; both have numbers from then on."""
    x, axis = sources()["columns" if "columns" in name else "rows"]
    fd = FusionDefinition()
    t = fd.define_tensor(**DEFINED[name])
    fd.add_output(fd.ops.reshape(t, [3, 64]))
    fd.add_output(fd.ops.cast(fd.ops.size(t, 0), DataType.Int))
    fd.add_output(fd.ops.cast(t.size(1), DataType.Int))
    codes = numbers_of(x, axis)
    wanted, rows, columns = run.execute(fd, [x])
    assert equal([wanted], [pairs_of(codes.reshape(3, 64))])
    assert [int(rows), int(columns)] == [6, 32]


@pytest.mark.parametrize("dtype", [FLOAT4, FLOAT4_NUMBERS])
def test_one_pair_is_two_numbers(run: Runner, dtype: DataType) -> None:
    """Of sizes that the definition says, with strides, in columns; torch's strides count pairs."""
    count = 2 if dtype is FLOAT4_NUMBERS else 1
    x = sources()["rows"][0][:, 2:3]
    fd = FusionDefinition()
    t = fd.define_tensor([6, count], [False, True], dtype, strides=[16 * count, 1])
    fd.add_output(fd.ops.reshape(t, [3, 4]))
    fd.add_output(fd.ops.mul(fd.ops.cast(t, DataType.Float), 2.0))
    codes = numbers_of(x)
    wanted = [pairs_of(codes.reshape(3, 4)), floats_of(codes) * 2]
    assert equal(run.execute(fd, [x]), wanted)


def test_the_text_of_packed_floats_makes_them_again() -> None:
    """Before and after the definition is typed: its tensors print in pairs, and are read so."""
    x, _ = sources()["rows"]
    fd = FusionDefinition()
    t = fd.from_pytorch(x)
    fd.add_output(fd.ops.permute(fd.ops.reshape(t, [8, 24]), [1, 0]))
    fd.add_output(t, stride_order=[0, 1])
    fd.add_output(fd.ops.nv_block_quantize(fd.ops.cast(t, DataType.Float))[0])
    texts = [repr(fd)]
    expected = fd.execute([x])
    texts.append(repr(fd))
    for text in texts:
        scope: dict[str, Any] = {"DataType": DataType}
        exec(text, scope)
        again = FusionDefinition()
        scope["fusion"](again)
        assert equal(again.execute([x]), expected)
        assert again.fusion == fd.fusion


def test_pairs_lie_along_the_fastest_axis_of_a_result(run: Runner) -> None:
    """Of the stride order that is asked for, of the value's own, of the argument it overwrites."""
    x, axis = sources()["columns"]
    codes = numbers_of(x, axis)
    fd = FusionDefinition()
    t, target = fd.from_pytorch(x), fd.from_pytorch(x)
    turned = fd.ops.flip(t, [1])
    fd.add_output(turned, stride_order=[0, 1])
    fd.add_output(fd.ops.stride_order(turned, [0, 1]))
    fd.add_output(t)
    fd.add_output(t, stride_order=[1, 0])
    fd.add_output(turned, target)
    written = x.view(torch.uint8).clone(memory_format=torch.preserve_format).view(PACKED)
    results = run.execute(fd, [x, written])
    flipped = pairs_of(codes.flip(1), 0)
    assert equal(results, [flipped, flipped, x, pairs_of(codes)])
    assert [one.stride() for one in results] == [(1, 3), (1, 3), (1, 3), (16, 1)]
    assert equal([written], [flipped])


def test_pairs_stay_together_where_nothing_takes_them_apart(run: Runner) -> None:
    """A copy and a permute move bytes; a product's operands are the arguments themselves."""
    x, _ = sources()["rows"]
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.permute(fd.from_pytorch(x), [1, 0]), stride_order=[0, 1])
    assert "pack_e2m1" not in repr(fd)
    assert equal(run.execute(fd, [x]), [x.t()])


@pytest.mark.parametrize("sizes", [(0, 4), (3, 0), (1,), (2, 1, 3)])
@pytest.mark.parametrize("static", [True, False])
def test_few_packed_floats(run: Runner, sizes: tuple[int, ...], static: bool) -> None:
    x = torch.arange(torch.Size(sizes).numel(), dtype=torch.uint8).reshape(sizes).view(PACKED)
    fd = FusionDefinition()
    t = fd.from_pytorch(x, static)
    fd.add_output(fd.ops.reshape(t, [-1 if 0 not in sizes else 0]))
    fd.add_output(fd.ops.cast(fd.ops.neg(fd.ops.cast(t, DataType.Float)), FLOAT4))
    codes = numbers_of(x)
    assert equal(run.execute(fd, [x]), [pairs_of(codes.reshape(-1)), pairs_of(codes ^ 8)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, E4M3, torch.bool])
def test_other_types_become_4_bit_floats(run: Runner, dtype: torch.dtype) -> None:
    """At once, through a move, cast twice, and cast on."""
    x = (torch.arange(64).reshape(4, 16) / 5 - 6).to(dtype)
    fd = FusionDefinition()
    numbers = fd.ops.cast(fd.from_pytorch(x), FLOAT4)
    turned = fd.ops.permute(numbers, [1, 0])
    for one in (numbers, turned, fd.ops.cast(turned, FLOAT4), fd.ops.cast(turned, DataType.Half)):
        fd.add_output(one)
    packed = pack_e2m1(x.float()[:, ::2], x.float()[:, 1::2])
    codes = numbers_of(packed).t()
    wanted = [packed, pairs_of(codes), pairs_of(codes), floats_of(codes).half()]
    assert equal(run.execute(fd, [x]), wanted)
    assert equal(evaluate(fd.fusion, [x]), wanted)


def test_an_odd_number_of_floats_is_no_pairs() -> None:
    x, _ = sources()["rows"]
    expected = r"axis 1 of 4-bit floats, along which memory holds pairs: expected an even size"
    with pytest.raises(DefinitionError, match="define_tensor: " + expected + ", got 5"):
        FusionDefinition().define_tensor([4, 5], dtype=FLOAT4_NUMBERS)
    fd = FusionDefinition()
    with pytest.raises(DefinitionError, match="add_output: " + expected + ", got 29"):
        fd.add_output(fd.ops.slice(fd.from_pytorch(x, True), [0, 3], [6, 32]))
    with FusionDefinition() as fd:  # of sizes that the call tells
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.slice(t, [0, 29], t.shape()))
    with pytest.raises(DefinitionError, match="reshape: expected 18 elements, got 12"):
        fd.execute([x])


def test_numbers_are_packed(run: Runner) -> None:
    """Every size, what lies between two, its neighbours, infinity, NaN, and both signs."""
    sizes = torch.tensor(SIZES)
    middle = (sizes[1:] + sizes[:-1]) / 2
    around = [torch.nextafter(middle, torch.tensor(to)) for to in (-torch.inf, torch.inf)]
    edges = torch.tensor([7.0, 8.0, 1e38, torch.inf, 1e-45])
    x = torch.cat([sizes, middle, *around, edges])
    x = torch.cat([x, -x, torch.tensor([torch.nan, 0.0])])
    nearest = (x.abs()[:, None] - sizes).abs().nan_to_num(posinf=0.0)
    fd = FusionDefinition()
    t = fd.from_pytorch(x)
    fd.add_output(fd.ops.cast(t, DataType.Float4_e2m1fn))
    fd.add_output(fd.ops.pack_e2m1(t, 1.5))
    packed, beside = run.execute(fd, [x])
    assert equal([packed, beside], [pack_e2m1(x[::2], x[1::2]), pack_e2m1(x, torch.tensor(1.5))])
    numbers = unpack_e2m1(packed)
    finite = x.abs() <= 6
    least = nearest.min(1).values[finite]
    assert torch.equal((numbers - x).abs()[finite], least)
    ties = ((nearest == nearest.min(1, keepdim=True).values).sum(1) == 2) & finite
    assert (unpacked_codes(packed)[ties] % 2 == 0).all()
    assert torch.equal(numbers[~finite].abs(), torch.full_like(numbers[~finite], 6.0))
    assert torch.equal(numbers.signbit(), x.signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, E4M3, PACKED])
@pytest.mark.parametrize("static", [True, False])
def test_packed_floats_are_cast(run: Runner, dtype: torch.dtype, static: bool) -> None:
    """All codes in both places, to the bit; an op after it, and a cast back, in one kernel."""
    x = torch.arange(256, dtype=torch.uint8).reshape(8, 32).view(PACKED)
    fd = FusionDefinition()
    numbers = fd.ops.cast(fd.from_pytorch(x, static_sizes=static), from_torch_dtype(dtype))
    fd.add_output(numbers)
    if dtype is torch.float32:
        fd.add_output(fd.ops.cast(fd.ops.neg(numbers), FLOAT4))
        fd.add_output(fd.ops.sum(numbers, [1]))
    wide = unpack_e2m1(x)
    wanted = [x if dtype is PACKED else wide.to(dtype)]
    if dtype is torch.float32:
        wanted += [(bits(x) ^ 0x88).view(PACKED), wide.sum(1)]
    assert equal(run.execute(fd, [x]), wanted)
    assert equal(evaluate(fd.fusion, [x]), wanted)
    assert rebuild(str(fd.fusion)) == fd.fusion


def unpacked_codes(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([bits(packed) & 7, bits(packed) >> 4 & 7], -1).flatten()


# ---- quantization

def with_extremes(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Blocks of zeros, of tiny numbers, of huge ones, with infinity, with NaN."""
    x = rand(*shape, dtype=torch.float32) * torch.logspace(-3, 3, shape[0])[:, None]
    for row, value in enumerate((0.0, 1e-42, 1e38, torch.inf, torch.nan)):
        x[row, : 32 if row < 3 else 1] = value
    return x.to(dtype)


def to_float4(x: torch.Tensor, scale: torch.Tensor | None) -> list[torch.Tensor]:
    blocks = x.float().unflatten(-1, (-1, 16))
    most = blocks.abs().amax(-1) * (1.0 if scale is None else scale)
    scales = (most * (1 / 6)).clamp(max=448.0).to(E4M3)
    wide = scales.float()
    by = torch.where(wide > 0, wide.reciprocal() * (1.0 if scale is None else scale), 0.0)
    numbers = (blocks * by[..., None]).flatten(-2)
    return [pack_e2m1(numbers[..., ::2], numbers[..., 1::2]), scales]


def to_float8(x: torch.Tensor) -> list[torch.Tensor]:
    """A scale is the next power of two from max / 448 on."""
    blocks = x.float().unflatten(-1, (-1, 32))
    least = blocks.abs().amax(-1) * (1 / 448)
    mantissa, exponent = torch.frexp(least.double())
    power = torch.ldexp(torch.ones_like(mantissa), exponent - (mantissa == 0.5).int())
    scale = torch.where(least > 2.0**-127, power, 2.0**-127).to(torch.float32)
    scale = torch.where(least.isfinite(), scale, torch.nan)
    return [(blocks * scale.reciprocal()[..., None]).flatten(-2).to(E4M3), scale.to(E8M0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scaled", [False, True])
def test_blocks_of_4_bit_floats(run: Runner, dtype: torch.dtype, scaled: bool) -> None:
    x, scale = with_extremes(7, 96, dtype=dtype), torch.tensor(2.5)
    fd = FusionDefinition()
    t, s = fd.from_pytorch(x), fd.define_tensor([], dtype=DataType.Float)
    for one in fd.ops.nv_block_quantize(t, s if scaled else None):
        fd.add_output(one)
    assert equal(run.execute(fd, [x, scale]), to_float4(x, scale if scaled else None))
    (segment,) = fd.plan([x, scale], target="h200").segments
    assert segment.scheduler.name == "persistent"
    assert rebuild(repr(fd)) == define(fd.definition)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("static", [False, True])
def test_blocks_of_8_bit_floats(run: Runner, dtype: torch.dtype, static: bool) -> None:
    x = with_extremes(7, 128, dtype=dtype)
    fd = FusionDefinition()
    t = fd.from_pytorch(x, static_sizes=static)
    for one in fd.ops.nv_block_quantize(t, None, False, 32, FLOAT8):
        fd.add_output(one)
    results, expected = run.execute(fd, [x]), to_float8(x)
    assert torch.equal(results[0].float().nan_to_num(), expected[0].float().nan_to_num())
    assert equal(results[1:], expected[1:])
    (segment,) = fd.plan([x], target="h200").segments
    assert segment.scheduler.name == "persistent"


def test_other_ranks_and_work_around(run: Runner) -> None:
    """Between a norm before and nothing after; one axis, three axes."""
    x, y = rand(2, 3, 64, dtype=torch.bfloat16), rand(32, dtype=torch.bfloat16, seed=1)
    fd = FusionDefinition()
    t, u = fd.from_pytorch(x), fd.from_pytorch(y)
    for one in (*fd.ops.nv_block_quantize(fd.ops.mul(t, 2.0)), *fd.ops.nv_block_quantize(u)):
        fd.add_output(one)
    assert equal(run.execute(fd, [x, y]), [*to_float4(x * 2, None), *to_float4(y, None)])


# ---- scales in tiles


def tiles(scales: torch.Tensor) -> torch.Tensor:
    """By the words of the format: row r, column c of a tile at (r % 32) * 16 + r // 32 * 4 + c."""
    rows, columns = scales.shape
    high, wide = -(-rows // 128), -(-columns // 4)
    found = torch.zeros(high * wide * 512, dtype=torch.uint8)
    r, c = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    tile, inside = r // 128 * wide + c // 4, r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    found[(tile * 512 + inside).flatten()] = bits(scales).flatten()
    return found.view(high * 128, wide * 4).view(scales.dtype)


@pytest.mark.parametrize("sizes", [(5, 96), (128, 64), (200, 352)])
@pytest.mark.parametrize("dtype", [FLOAT4, FLOAT8])
def test_scales_in_tiles(run: Runner, dtype: DataType, sizes: tuple[int, int]) -> None:
    x = rand(*sizes)
    fd = FusionDefinition()
    block = 16 if dtype is FLOAT4 else 32
    _, scales = fd.ops.nv_block_quantize(fd.from_pytorch(x), None, True, block, dtype)
    fd.add_output(scales)
    (result,) = run.execute(fd, [x])
    linear = (to_float4(x, None) if dtype is FLOAT4 else to_float8(x))[1]
    assert equal([result], [tiles(linear)])
    assert equal([from_tiles(result, *linear.shape)], [linear])


@pytest.mark.parametrize("counts", [(3, 0, 130, 4), (0, 0, 137, 0), (1,)])
def test_scales_of_groups(run: Runner, counts: tuple[int, ...]) -> None:
    """Tiles of a group begin at multiples of 128 rows; some groups are empty."""
    x = rand(sum(counts), 96)
    ends = torch.tensor(counts).cumsum(0)
    starts = (ends - torch.tensor(counts)).int()
    whole = -(-torch.tensor(counts) // 128) * 128
    placed = (whole.cumsum(0) - whole).int()
    fd = FusionDefinition()
    for one in fd.ops.nv_grouped_block_quantize(*map(fd.from_pytorch, (x, starts, placed))):
        fd.add_output(one)
    numbers, scales = run.execute(fd, [x, starts, placed])
    expected, linear = to_float4(x, None)
    groups = [tiles(linear[a:b]) for a, b in zip(starts, ends, strict=True) if b > a]
    rest = scales.shape[0] - sum(len(one) for one in groups)
    assert 0 <= rest <= 128 * len(counts)
    empty = torch.zeros(rest, 8, dtype=torch.uint8).view(E4M3)
    placed_groups = torch.cat([bits(one) for one in [*groups, empty]]).view(E4M3)
    assert equal([numbers, scales], [expected, placed_groups])


# ---- products


@pytest.mark.parametrize("dtype", [FLOAT4, FLOAT8])
def test_a_product_of_quantized_matrices(run: Runner, dtype: DataType) -> None:
    """One is quantized in the definition, the other comes quantized; alpha and a bias."""
    a, b, bias = rand(40, 64), rand(24, 64, seed=1), rand(24, seed=2)
    block, quantize = (16, lambda x: to_float4(x, None)) if dtype is FLOAT4 else (32, to_float8)
    numbers, linear = quantize(b)
    other, scales = numbers.t(), tiles(linear)

    def build(fd: FusionDefinition) -> None:
        x, y, s, c = map(fd.from_pytorch, (a, other, scales, bias))
        left, scale = fd.ops.nv_block_quantize(x, None, True, block, dtype)
        out, _, _ = fd.ops.scaled_mm(left, y, scale, s, 2.0, c, dtype=DataType.Float)
        fd.add_output(out)
        fd.add_output(fd.ops.scaled_mm(left, y, scale, s)[0])

    wide = [number_of(*quantize(x), block) for x in (a, b)]
    product = wide[0] @ wide[1].t()
    run(build, [a, other, scales, bias], [2 * product + bias, product.bfloat16()], tolerance=1e-2)
    error = (2 * product - 2 * a @ b.t()).norm() / (2 * a @ b.t()).norm()
    assert error < (0.2 if dtype is FLOAT4 else 0.05)  # it is a quantization of that product


@pytest.mark.parametrize("dtype", [FLOAT4, FLOAT8])
def test_a_product_with_a_quantized_result(run: Runner, dtype: DataType) -> None:
    a, b, scale = (rand(*shape) for shape in ((8, 16), (16, 64), ()))
    quantize, size, of = (
        (lambda x: to_float4(x, None), 16, DataType.Float8_e4m3fn) if dtype is FLOAT4
        else (to_float8, 32, DataType.Float8_e8m0fnu)
    )  # fmt: skip
    fd = FusionDefinition()
    x, y, s = map(fd.from_pytorch, (a, b, scale))
    s = fd.ops.broadcast(fd.ops.abs(s), [])
    numbers, scales, gamma = fd.ops.scaled_mm(
        x, y, s, s, dtype=dtype, output_block_scale_size=size, output_block_scale_dtype=of
    )
    assert gamma is None
    fd.add_output(numbers)
    fd.add_output(scales)
    wide = (a * scale.abs()) @ (b * scale.abs())
    assert equal(run.execute(fd, [a, b, scale]), quantize(wide))


def number_of(numbers: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    wide = unpack_e2m1(numbers) if numbers.dtype is PACKED else numbers.float()
    return wide * scales.float().repeat_interleave(block, -1)


@pytest.mark.parametrize("dtype", [E4M3, torch.bfloat16], ids=str)
def test_a_grouped_product_with_scales(run: Runner, dtype: torch.dtype) -> None:
    a, b = rand(16, 32).to(dtype), rand(3, 32, 16, seed=1).to(dtype)
    one, two = rand(16, 1, seed=2).abs() + 0.5, rand(3, 1, 16, seed=3).abs() + 0.5
    ends = torch.tensor([4, 4, 16], dtype=torch.int32)
    left, right = a.float() * one, b.float() * two
    product = torch.cat([left[:4] @ right[0], left[4:] @ right[2]])

    def build(fd: FusionDefinition) -> None:
        x, y, o, s = map(fd.from_pytorch, (a, b, ends, two))
        t = fd.define_tensor([-1, 1], True)
        out, no_scale, no_gamma = fd.ops.grouped_mm(x, y, o, t, s)
        assert no_scale is None and no_gamma is None
        fd.add_output(out)
        fd.add_output(fd.ops.grouped_mm(x, y, o, t, s, alpha=2.0, dtype=DataType.Float)[0])

    run(build, [a, b, ends, two, one], [product.bfloat16(), 2 * product], tolerance=1e-2)


@pytest.mark.parametrize("counts", [(3, 0, 130, 4), (137, 0), (0, 0)])
@pytest.mark.parametrize("dtype", [FLOAT4, FLOAT8])
def test_a_grouped_product_with_scales_of_blocks(
    run: Runner, dtype: DataType, counts: tuple[int, ...]
) -> None:
    """Rows are quantized in the definition, with the tiles of each group; some groups are empty."""
    block, quantize = (16, lambda x: to_float4(x, None)) if dtype is FLOAT4 else (32, to_float8)
    a, b = rand(137, 96), rand(len(counts), 24, 96, seed=1)
    sizes = torch.tensor(counts)
    ends, whole = sizes.cumsum(0), -(-sizes // 128) * 128
    starts, placed = (ends - sizes).int(), (whole.cumsum(0) - whole).int()
    pairs = [quantize(one) for one in b]
    numbers = torch.stack([one.view(torch.uint8) for one, _ in pairs]).view(pairs[0][0].dtype)
    scales = torch.stack([bits(tiles(one)) for _, one in pairs]).view(pairs[0][1].dtype)
    inputs = [a, numbers.mT, ends.int(), scales, starts, placed]

    def build(fd: FusionDefinition) -> None:
        x, y, o, s, first, at = map(fd.from_pytorch, inputs)
        left, scale = fd.ops.nv_grouped_block_quantize(x, first, at, None, block, dtype)
        fd.add_output(fd.ops.grouped_mm(left, y, o, scale, s, 2.0, dtype=DataType.Float)[0])
        fd.add_output(fd.ops.grouped_mm(left, y, o, scale1=scale, scale2=s)[0])

    wide, others = number_of(*quantize(a), block), [number_of(*one, block) for one in pairs]
    product = torch.cat([
        wide[end - count : end] @ other.t()
        for end, count, other in zip(ends.tolist(), counts, others, strict=True)
    ])  # fmt: skip
    fd = FusionDefinition()
    build(fd)
    out, rounded = run.execute(fd, inputs)
    torch.testing.assert_close(out[: len(product)], 2 * product, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rounded[: len(product)], product.bfloat16(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("factor", [1.0, 1e-6, 0.0])
def test_a_global_scale_of_a_result(run: Runner, factor: float) -> None:
    """With it the numbers of a small result keep their digits."""
    a, b, one = rand(8, 16), rand(16, 64, seed=1) * factor, torch.ones(1)
    fd = FusionDefinition()
    x, y, s = map(fd.from_pytorch, (a, b, one))
    results = fd.ops.scaled_mm(
        x, y, s, s, dtype=FLOAT4, output_block_scale_size=16, output_gamma=True
    )
    for each in results:
        fd.add_output(each)
    numbers, scales, gamma = run.execute(fd, [a, b, one])
    wide = a @ b
    largest = wide.abs().max()
    torch.testing.assert_close(gamma, 2688 / largest if factor else torch.tensor(1.0))
    assert equal([numbers, scales], to_float4(wide, gamma))
    error = number_of(numbers, scales, 16) / gamma - wide
    assert error.norm() <= 0.2 * wide.norm()


# ---- what is refused

REFUSED: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "arithmetic": (lambda o, t, p: o.add(p, p), DtypeError, "a type with arithmetic, got Float4"),
    "no pairs": (lambda o, t, p: o.unpack_e2m1(t, 0), DtypeError, "expected Float4_e2m1fn_x2, and"),
    "a place": (
        lambda o, t, p: o.unpack_e2m1(o.pack_e2m1(t, t), 0.5), DtypeError,
        "got Float4_e2m1fn_x2, Double",
    ),
    "pairs of numbers": (
        lambda o, t, p: o.unpack_e2m1(p, 0), DtypeError, "got Float4_e2m1fn, Int",
    ),
    "implicit cast": (lambda o, t, p: o.set(o.cast(0.5, FLOAT4)), DtypeError, "is one number"),
    "a number": (lambda o, t, p: o.where(o.eq(1, 1), p, 0), DtypeError, "a number of type Float4"),
    "full": (lambda o, t, p: o.full([3], 0.0, FLOAT4), DtypeError, "a number of type Float4"),
    "pad": (lambda o, t, p: o.pad(p, [1, 1], 2.0), DtypeError, "a number of type Float4"),
    "beside": (lambda o, t, p: o.cat([p, t]), DtypeError, "equal dtypes"),
    "a cast of pairs": (
        lambda o, t, p: o.cast(o.pack_e2m1(t, t), DataType.Float), DtypeError,
        r"one number, got Float4_e2m1fn_x2 to Float .at T3 = fd.ops.cast.*take pairs apart",
    ),
    "a complex number": (
        lambda o, t, p: o.cast(o.complex(t, t), FLOAT4), DtypeError,
        "one number, got ComplexFloat to Float4_e2m1fn",
    ),
    "rank 0": (
        lambda o, t, p: o.cast(o.sum(t), FLOAT4), DefinitionError,
        "add_output: 4-bit floats: expected a tensor with an axis, for pairs",
    ),
    "complex": (
        lambda o, t, p: o.pack_e2m1(o.complex(t, t), t), DtypeError, "expected a real type",
    ),
    "block size": (
        lambda o, t, p: o.nv_block_quantize(t, None, False, 32)[0],
        DefinitionError, "block_size: expected 16 for Float4_e2m1fn_x2, got 32",
    ),
    "a part of a block": (
        lambda o, t, p: o.nv_block_quantize(o.slice(t, [0, 0], [4, 24]))[0],
        DefinitionError, "an axis, the last, of blocks of 16",
    ),
    "integers": (
        lambda o, t, p: o.nv_block_quantize(o.cast(t, DataType.Int))[0],
        DtypeError, "input: expected floats, got Int",
    ),
    "another type": (
        lambda o, t, p: o.nv_block_quantize(t, None, False, 32, DataType.Float8_e5m2)[0],
        DtypeError, "dtype: expected Float4_e2m1fn_x2 or Float8_e4m3fn",
    ),
    "a global scale": (
        lambda o, t, p: o.nv_block_quantize(t, 2.0, False, 32, FLOAT8)[0],
        DefinitionError, "expected None for 8-bit floats",
    ),
    "a scale of the result": (
        lambda o, t, p: o.scaled_mm(t, t, t, t, output_gamma=True)[0],
        DefinitionError, "output_gamma: expected a result in blocks of Float4_e2m1fn_x2",
    ),
    "scales of blocks": (
        lambda o, t, p: o.scaled_product(
            p, o.permute(p, [1, 0]), *[o.nv_block_quantize(t)[1]] * 2
        ),
        DefinitionError, r"scale1: expected 128 x 4 scales, in tiles, got \[4, 2\]",
    ),
    "columns of groups with scales of blocks": (
        lambda o, t, p: o.grouped_mm(
            o.broadcast(p, [True, False, False]), o.permute(p, [1, 0]), o.iota(1),
            *[o.nv_block_quantize(t)[1]] * 2
        )[0],
        DefinitionError, r"expected groups of rows, mat1 \[m, k\] and mat2 \[groups, k, n\]",
    ),
    "scales of other groups": (
        lambda o, t, p: o.grouped_mm(
            p, o.broadcast(o.permute(p, [1, 0]), [True, False, False]), o.iota(1),
            *[o.nv_block_quantize(t)[1]] * 2
        )[0],
        DefinitionError, r"scale1: expected rows of 4 scales, in tiles, got \[4, 2\]",
    ),
    "scales of other blocks": (
        lambda o, t, p: o.scaled_product(
            p, o.permute(p, [1, 0]), *[o.nv_block_quantize(t, None, True, 32, FLOAT8)[1]] * 2
        ),
        DtypeError, "scale1: expected Float, or Float8_e4m3fn for Float4_e2m1fn_x2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    call, kind, message = REFUSED[name]
    fd = FusionDefinition()
    with pytest.raises(kind, match=message):
        t, p = fd.define_tensor([4, 32]), fd.define_tensor([16, 16], dtype=FLOAT4)
        fd.add_output(call(fd.ops, t, p))
        fd.fusion
