# SPDX-License-Identifier: Apache-2.0
"""FusionDefinition: arithmetic, types, reductions and composites, on each target, against torch."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.cases import REAL, Runner, ints, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import COMPUTED, DataType
from thunder_fuser.runtime.torch_types import from_torch_dtype, to_torch_dtype

D = DataType
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def test_basic(run: Runner) -> None:
    x, y = rand(2, 4, 8), rand(2, 4, 8, seed=1)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        t2 = fd.ops.mul(fd.ops.add(t0, t1), fd.define_scalar(3.0))
        fd.add_output(fd.ops.sum(t2, [-1], False, D.Float))

    run(fusion, [x, y], [((x + y) * 3.0).sum(-1)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(run: Runner, dtype: torch.dtype) -> None:
    """16-bit results stay Float until the user casts them back."""
    x, y = rand(3, 37, dtype=dtype), rand(3, 37, dtype=dtype, seed=1)
    own, wide = from_torch_dtype(dtype), from_torch_dtype(dtype).compute

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        t2 = fd.ops.mul(fd.ops.exp(t0), t1)
        fd.add_output(t2)
        fd.add_output(fd.ops.cast(t2, own))
        fd.add_output(fd.ops.cast(fd.ops.sum(t2, [1]), own))

    wanted = x.to(to_torch_dtype(wide)).exp() * y.to(to_torch_dtype(wide))
    run(fusion, [x, y], [wanted, wanted.to(dtype), wanted.sum(1).to(dtype)])


def test_cast_double_to_half(run: Runner) -> None:
    x, y = rand(2, 4, dtype=torch.float64), rand(2, 4, dtype=torch.float64, seed=1)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        halves = [fd.ops.cast(t, D.Half) for t in (t0, t1)]
        fd.add_output(fd.ops.cast(fd.ops.relu(fd.ops.add(*halves)), D.Half))

    run(fusion, [x, y], [(x.half() + y.half()).relu()], tolerance=2e-3)


def test_casts_between_all_types(run: Runner) -> None:
    """Every type to every type, in one fusion; values that each type holds."""
    values = torch.tensor([0.0, 1.0, 2.0, 7.0, 100.0, 127.0])
    inputs = [values.to(to_torch_dtype(d)) for d in REAL]

    def fusion(fd: FusionDefinition) -> None:
        for x in inputs:
            t = fd.from_pytorch(x)
            for dtype in REAL:
                fd.add_output(fd.ops.cast(t, dtype))

    run(fusion, inputs, [x.to(to_torch_dtype(d)) for x in inputs for d in REAL])


def test_casts_that_round_and_truncate(run: Runner) -> None:
    x = torch.tensor([-1.9, -0.5, 0.0, 0.5, 1.9, 2.5, 65519.0, 1e-8, math.nan, math.inf])

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.cast(t, D.Half))
        fd.add_output(fd.ops.cast(t, D.BFloat16))
        fd.add_output(fd.ops.cast(t, D.Bool))
        finite = fd.ops.where(fd.ops.isfinite(t), t, 0.0)
        fd.add_output(fd.ops.cast(finite, D.Int))
        fd.add_output(fd.ops.cast(finite, D.Int32))

    finite = torch.where(x.isfinite(), x, 0.0)
    run(fusion, [x], [x.half(), x.bfloat16(), x.bool(), finite.long(), finite.int()])


def test_cast_of_scalars(run: Runner) -> None:
    x = ints(2, 4)

    def fusion(fd: FusionDefinition) -> None:
        t0 = fd.from_pytorch(x)
        c0 = fd.define_scalar(dtype=D.Double)
        fd.add_output(fd.ops.mul(fd.ops.cast(c0, D.Int), t0))
        fd.add_output(fd.ops.mul(fd.ops.cast(t0, D.Float), c0))

    run(fusion, [x, 3.7], [x * 3, x.float() * 3.7])


@pytest.mark.parametrize("left", COMPUTED, ids=lambda d: d.short)
def test_promotion(run: Runner, left: DataType) -> None:
    """A tensor of one type times tensors of all, and times numbers."""
    x = ints(5, low=0, high=5).to(to_torch_dtype(left))
    others = [ints(5, low=0, high=5).to(to_torch_dtype(d)) for d in COMPUTED]

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for other in others:
            fd.add_output(fd.ops.mul(t, fd.from_pytorch(other)))
        for number in (True, 2, 2.5):
            fd.add_output(fd.ops.mul(t, number))

    wanted = [x * y for y in others] + [x * n for n in (True, 2, 2.5)]
    run(fusion, [x, *others], [_wide(w, x) for w in wanted], tolerance=2e-2)


def _wide(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """16-bit arithmetic stays Float here."""
    return result.float() if result.dtype in (torch.float16, torch.bfloat16) else result


def test_promote_to_double(run: Runner) -> None:
    x, y = rand(2, 4, dtype=torch.float16), rand(2, 4, dtype=torch.float64, seed=1)

    def fusion(fd: FusionDefinition) -> None:
        t2 = fd.ops.add(fd.from_pytorch(x), fd.from_pytorch(y))
        fd.add_output(fd.ops.relu(t2))

    run(fusion, [x, y], [(x + y).relu()])


def test_where_promotes(run: Runner) -> None:
    condition = ints(7, low=0, high=2).bool()
    halves, numbers = rand(7, dtype=torch.float16), ints(7)

    def fusion(fd: FusionDefinition) -> None:
        c, h, n = (fd.from_pytorch(t) for t in (condition, halves, numbers))
        for a, b in ((h, h), (h, n), (n, n), (n, 1.5), (h, 2), (c, True), (n, True)):
            fd.add_output(fd.ops.where(c, a, b))

    c, h, n = condition, halves, numbers
    pairs = ((h, h), (h, n), (n, n), (n, 1.5), (h, 2), (c, True), (n, True))
    run(fusion, [c, h, n], [torch.where(c, a, b) for a, b in pairs])


def test_integer_division(run: Runner) -> None:
    x = torch.tensor([7, -7, 7, -7, 8, 0], dtype=torch.int64)
    y = torch.tensor([2, 2, -2, -2, 4, 5], dtype=torch.int64)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(fd.ops.div(t0, t1))
        fd.add_output(fd.ops.truediv(t0, t1))
        fd.add_output(fd.ops.remainder(t0, t1))
        fd.add_output(fd.ops.fmod(t0, t1))

    trunc = torch.div(x, y, rounding_mode="trunc")
    run(fusion, [x, y], [trunc, x / y, x % y, torch.fmod(x, y)])


def test_addcmul_and_lerp(run: Runner) -> None:
    x, y, z = rand(4, 5), rand(4, 5, seed=1), rand(4, 5, seed=2)

    def fusion(fd: FusionDefinition) -> None:
        t = [fd.from_pytorch(a) for a in (x, y, z)]
        fd.add_output(fd.ops.addcmul(*t, fd.define_scalar(0.1)))
        fd.add_output(fd.ops.lerp(*t))
        fd.add_output(fd.ops.clamp(t[0], -0.5, 0.5))

    run(fusion, [x, y, z], [torch.addcmul(x, y, z, value=0.1), x.lerp(y, z), x.clamp(-0.5, 0.5)])


def test_nan_and_infinity(run: Runner) -> None:
    """maximum, minimum, max and min keep NaN, as torch's do."""
    odd = torch.tensor([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan])
    x = odd.repeat(6, 1)
    y = odd[:, None].repeat(1, 6)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        for op in ("add", "mul", "maximum", "minimum", "truediv"):
            fd.add_output(getattr(fd.ops, op)(t0, t1))
        for op in ("eq", "lt", "ne"):
            fd.add_output(getattr(fd.ops, op)(t0, t1))

    wanted = [x + y, x * y, x.maximum(y), x.minimum(y), x / y, x == y, x < y, x != y]
    run(fusion, [x, y], wanted)


def test_constant_nan(run: Runner) -> None:
    x = torch.arange(5.0)

    def fusion(fd: FusionDefinition) -> None:
        t0 = fd.from_pytorch(x)
        keep = fd.ops.lt(t0, 3.0)
        fd.add_output(fd.ops.where(keep, t0, math.nan))
        fd.add_output(fd.ops.where(keep, t0, -math.inf))

    nan, low = torch.full_like(x, math.nan), torch.full_like(x, -math.inf)
    run(fusion, [x], [torch.where(x < 3, x, nan), torch.where(x < 3, x, low)])


# ---- reductions


@pytest.mark.parametrize("dims", [[0], [1], [2], [0, 1], [0, 2], [1, 2], [-1], None, []], ids=str)
def test_reductions(run: Runner, dims: list[int] | None) -> None:
    x = rand(5, 7, 33)
    axes = tuple(range(3)) if dims is None else tuple(dims)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for keepdim in (False, True):
            fd.add_output(fd.ops.sum(t, dims, keepdim))
            fd.add_output(fd.ops.max(t, dims, keepdim))
            fd.add_output(fd.ops.min(t, dims, keepdim))

    wanted = []
    for keepdim in (False, True):
        wanted += [x.sum(axes, keepdim), x.amax(axes, keepdim), x.amin(axes, keepdim)]
    run(fusion, [x], wanted if axes else [x] * 6, tolerance=1e-4)


def test_reduction_dtypes(run: Runner) -> None:
    """Sums of halves are Float, sums of integers and bools Int; dtype= says otherwise."""
    half, number, flag = (
        rand(4, 9, dtype=torch.float16),
        ints(4, 9, dtype=torch.int32),
        ints(4, 9) > 0,
    )

    def fusion(fd: FusionDefinition) -> None:
        h, n, b = (fd.from_pytorch(t) for t in (half, number, flag))
        for t in (h, n, b):
            fd.add_output(fd.ops.sum(t, [1]))
        fd.add_output(fd.ops.sum(h, [1], dtype=D.Half))
        fd.add_output(fd.ops.sum(h, [1], dtype=D.Double))
        fd.add_output(fd.ops.sum(n, [0], dtype=D.Float))
        fd.add_output(fd.ops.max(n, [0]))
        fd.add_output(fd.ops.prod(n, [0]))

    wanted = [half.float().sum(1), number.sum(1), flag.sum(1), half.sum(1, dtype=torch.float16)]
    wanted += [half.sum(1, dtype=torch.float64), number.sum(0, dtype=torch.float32)]
    wanted += [number.amax(0), number.prod(0)]
    run(fusion, [half, number, flag], wanted, tolerance=2e-3)


def test_prod(run: Runner) -> None:
    x = rand(2, 4, 8)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.prod(t, [2]))
        fd.add_output(fd.ops.prod(t, [1], keepdim=True))
        fd.add_output(fd.ops.prod(t))

    run(fusion, [x], [x.prod(2), x.prod(1, keepdim=True), x.prod()])


def test_reductions_keep_nan(run: Runner) -> None:
    x = rand(4, 70)
    x[1, 3] = math.nan
    x[2, 69] = math.inf
    x[3] = -math.inf

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for op in ("sum", "max", "min"):
            fd.add_output(getattr(fd.ops, op)(t, [1]))
            fd.add_output(getattr(fd.ops, op)(t, [0]))

    wanted = [x.sum(1), x.sum(0), x.amax(1), x.amax(0), x.amin(1), x.amin(0)]
    run(fusion, [x], wanted)


def test_reduction_then_pointwise_then_reduction(run: Runner) -> None:
    x = rand(6, 40)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        rows = fd.ops.sum(t, [1])
        fd.add_output(fd.ops.exp(rows))
        fd.add_output(fd.ops.max(rows, [0]))

    run(fusion, [x], [x.sum(1).exp(), x.sum(1).max()], tolerance=1e-4)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("correction", [-1, 0, 1, 2])
def test_var_mean(run: Runner, correction: int, keepdim: bool) -> None:
    x = rand(4, 3, 33)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for dims in ([2], [0], [0, 2], None):
            for value in fd.ops.var_mean(t, dims, correction, keepdim):
                fd.add_output(value)
        fd.add_output(fd.ops.var(t, [1], correction, keepdim))

    wanted: list[torch.Tensor] = []
    for dims in ([2], [0], [0, 2], None):
        wanted += torch.var_mean(x, dims, correction=correction, keepdim=keepdim)
    wanted.append(x.var(1, correction=correction, keepdim=keepdim))
    run(fusion, [x], wanted, tolerance=1e-5)


def test_var_of_one_element(run: Runner) -> None:
    """n - correction is 0: 0/0, as torch gives."""
    x = rand(4, 1)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for value in fd.ops.var_mean(t, [1], 1):
            fd.add_output(value)

    run(fusion, [x], [torch.full((4,), math.nan), x[:, 0]])


@pytest.mark.parametrize("correction", [-1, 0, 1])
def test_var_of_no_elements(run: Runner, correction: int) -> None:
    """NaN, though a negative correction has something to divide by."""
    x, dynamic = rand(3, 0), rand(3, 4)[:, :0]

    def fusion(fd: FusionDefinition) -> None:
        for t in (fd.from_pytorch(x), fd.define_tensor([-1, -1], [True, True])):
            fd.add_output(fd.ops.var(t, [1], correction))

    run(fusion, [x, dynamic.contiguous()], [torch.full((3,), math.nan)] * 2)


def test_welford(run: Runner) -> None:
    x = rand(2, 2, 17)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        mean, squares, count = fd.ops.welford(t, [2])
        fd.add_output(mean)
        fd.add_output(fd.ops.truediv(squares, count))

    run(fusion, [x], [x.mean(2), x.var(2, correction=0)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_and_layer_norm(run: Runner, dtype: torch.dtype) -> None:
    x, weight, bias = (
        rand(5, 130, dtype=dtype),
        rand(130, dtype=dtype, seed=1),
        rand(130, dtype=dtype),
    )
    own = from_torch_dtype(dtype)

    def fusion(fd: FusionDefinition) -> None:
        t, w, b = (fd.from_pytorch(v) for v in (x, weight, bias))
        peak = fd.ops.max(t, [1], keepdim=True)
        powers = fd.ops.exp(fd.ops.sub(t, peak))
        soft = fd.ops.truediv(powers, fd.ops.sum(powers, [1], keepdim=True))
        fd.add_output(fd.ops.cast(soft, own))
        variance, mean = fd.ops.var_mean(t, [1], 0, keepdim=True)
        scaled = fd.ops.mul(fd.ops.sub(t, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(scaled, w), b), own))

    wide = x.double()
    norm = torch.nn.functional.layer_norm(wide, (130,), weight.double(), bias.double())
    run(
        fusion,
        [x, weight, bias],
        [wide.softmax(1).to(dtype), norm.to(dtype)],
        tolerance=1e-5 if dtype.itemsize > 2 else 2e-2,
    )


def test_segment_set(run: Runner) -> None:
    x = rand(8, 9)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.ops.segment_set(fd.ops.neg(fd.from_pytorch(x)))
        fd.add_output(fd.ops.relu(t))

    run(fusion, [x], [(-x).relu()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_matmul_with_pointwise_around(run: Runner, dtype: torch.dtype) -> None:
    a, b = rand(6, 8, dtype=dtype), rand(8, 5, dtype=dtype, seed=1)
    weight, bias = rand(3, 5, dtype=dtype), rand(3, dtype=dtype)
    own = from_torch_dtype(dtype)

    def fusion(fd: FusionDefinition) -> None:
        ta, tb, tw, tc = (fd.from_pytorch(t) for t in (a, b, weight, bias))
        left = fd.ops.cast(fd.ops.relu(ta), own)
        product = fd.ops.matmul(left, tb)
        act = fd.ops.cast(fd.ops.sigmoid(product), own)
        fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.linear(act, tw, tc), 2.0), own))
        fd.add_output(fd.ops.linear(act, tw))
        fd.add_output(product)

    product = a.relu() @ b
    act = product.sigmoid()
    linear = torch.nn.functional.linear
    wanted = [(linear(act, weight, bias).float() * 2).to(dtype), linear(act, weight), product]
    run(fusion, [a, b, weight, bias], wanted, tolerance=None if dtype.itemsize > 2 else 5e-2)


@pytest.mark.parametrize(
    ("left", "right"),
    [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2))],
    ids=str,
)
def test_matmul_ranks(run: Runner, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = rand(*left), rand(*right, seed=1)

    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.neg(fd.ops.matmul(fd.from_pytorch(a), fd.from_pytorch(b))))

    run(fusion, [a, b], [-(a @ b)])
