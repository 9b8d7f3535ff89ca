# SPDX-License-Identifier: Apache-2.0
"""Complex functions over all pairs of special parts, against torch, on each target.

torch has several answers for some of them: that of its vectors, of strided memory, of one element.
Each is accepted.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable

import pytest
import torch
from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.explain.jitted import jit
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS

DTYPES = (torch.complex64, torch.complex128)
UNARY = ("abs", "exp", "log", "log2", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
         "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "rsqrt", "reciprocal", "neg",
         "isreal", "isfinite", "isinf", "isnan", "real", "imag")  # fmt: skip
BINARY = {"mul": torch.mul, "div": torch.div, "truediv": torch.true_divide, "eq": torch.eq,
          "ne": torch.ne, "add": torch.add, "sub": torch.sub}  # fmt: skip
# torch multiplies by 1 / x for the real part of x subnormal, which is infinity; and it adds 1 + 0j
# times the other number. Both make NaN where the numbers themselves do not.
# Its sigmoid divides by exp(-x), whose parts may be infinite.
MORE_NAN_IN_TORCH = {"reciprocal", "add", "sub", "sigmoid"}
# Of doubles, it is pi / 2 - asin(x), whose zeros are all positive.
OTHER_ZEROS_IN_TORCH = {"acos"} | MORE_NAN_IN_TORCH


def specials(dtype: torch.dtype) -> torch.Tensor:
    """All pairs of special real and imaginary parts."""
    limits = torch.finfo(dtype)
    sizes = [0.0, 0.5, 1.0, 2.0, 20.5, 89.0, 710.0, 1e30, limits.max, limits.smallest_normal / 4]
    parts = [*sizes, math.inf, *(-x for x in (*sizes, math.inf)), math.nan]
    real = torch.tensor(parts, dtype=dtype.to_real())
    return torch.complex(real.repeat_interleave(len(parts)), real.repeat(len(parts)))


def answers(call: Callable[..., torch.Tensor], *xs: torch.Tensor) -> list[torch.Tensor]:
    """torch's: of vectors, of strided memory, of elements alone."""
    strided = (x.repeat_interleave(2)[::2] for x in xs)
    found = [call(*xs), call(*strided)]
    if len(xs) == 1:
        found.append(torch.stack([call(x) for x in xs[0]]))
    return found


def parts_of(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x) if x.is_complex() else x.unsqueeze(-1).double()


def agrees(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Each part, to some digits of the larger one; an infinity beside NaN may have either sign."""
    digits = 1e-5 if dtype is torch.complex64 else 1e-12
    size = torch.where(expected.isfinite(), expected.abs(), 0).amax(-1, keepdim=True)
    near = (got - expected).abs() <= digits * size + torch.finfo(dtype).tiny
    beside_nan = expected.isnan().any(-1, keepdim=True) & (got.abs() == expected.abs())
    same = (got == expected) | (got.isnan() & expected.isnan()) | beside_nan
    return torch.where(expected.isfinite(), near & got.isfinite(), same)


def overflown(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Where the product of two finite parts is infinite: torch adds it to that of the other parts
    without rounding it first, and beside an infinity of the other sign that is no NaN."""
    parts = parts_of(x).unsqueeze(-1) * parts_of(y).unsqueeze(-2)
    finite = parts_of(x).isfinite().unsqueeze(-1) & parts_of(y).isfinite().unsqueeze(-2)
    return (parts.isinf() & finite).flatten(-2).any(-1, keepdim=True)


def lost_near_one(name: str, got: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """acos(1 + ti) is (1 - i) sqrt(t) for a small t, of which torch's has no real part."""
    t = x.imag.abs() if x.is_complex() else torch.zeros_like(x)
    near = (x.real == 1) & (t > 0) & (t < 1e-300) & (name in ("acos", "acosh"))
    root = t.sqrt().unsqueeze(-1)
    return near.unsqueeze(-1) & ((parts_of(got).abs() - root).abs() <= 1e-12 * root)


def assert_as_torch(
    name: str, got: torch.Tensor, call: Callable[..., torch.Tensor], *xs: torch.Tensor
) -> None:
    found, dtype = parts_of(got), xs[0].dtype
    expected = [parts_of(one) for one in answers(call, *xs)]
    right = torch.stack([agrees(found, one, dtype) for one in expected]).any(0)
    right |= lost_near_one(name, got, xs[0])
    if name in MORE_NAN_IN_TORCH:
        right |= expected[0].isnan()
    if name == "mul":
        right |= overflown(*xs) & found.isnan() & expected[0].isinf()
    wrong = (~right).any(-1).nonzero().flatten()[:5]
    shown = [([x[at].item() for x in xs], got[at].item(), call(*xs)[at].item()) for at in wrong]
    assert not shown, f"{name}: (operands, result, torch's) {shown}"
    # Signs of zeros, where all of torch's answers have the same one, and no part is NaN.
    zero = torch.stack([one == 0 for one in expected]).all(0) & (found == 0)
    zero &= ~expected[0].isnan().any(-1, keepdim=True)
    signs = torch.stack([one.signbit() for one in expected])
    agreed = (signs == signs[0]).all(0) & zero & (name not in OTHER_ZEROS_IN_TORCH)
    assert torch.equal(found.signbit()[agreed], signs[0][agreed]), f"{name}: signs of zeros"


@pytest.mark.parametrize("name", ["atan", "atanh", "asinh", "acosh", "log"])
def test_far_from_zero(run: Runner, name: str) -> None:
    """A part that is near pi / 2 differs from it by the other part over the square of the size."""
    sizes = torch.tensor([1e7, 1e8, 3e12, 1e150], dtype=torch.float64)
    x = torch.cat([torch.complex(sizes * a, sizes * b) for a in (1e-4, 1, -1) for b in (1, -1e-4)])
    with FusionDefinition() as fd:
        fd.add_output(getattr(fd.ops, name)(fd.from_pytorch(x)))
    expected = torch.tensor([getattr(cmath, name)(one) for one in x.tolist()], dtype=x.dtype)
    torch.testing.assert_close(run.execute(fd, [x])[0], expected, rtol=1e-15, atol=0)


def test_no_function_is_left_out() -> None:
    rows = {r.name for r in OPS.values() if r.kind is OpKind.POINTWISE and r.c_complex}
    assert rows == {*UNARY, *BINARY}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_one(run: Runner, dtype: torch.dtype) -> None:
    x = specials(dtype)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        for name in UNARY:
            fd.add_output(getattr(fd.ops, name)(t))
    for name, got in zip(UNARY, run.execute(fd, [x]), strict=True):
        assert_as_torch(name, got, getattr(torch, name), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_two(run: Runner, dtype: torch.dtype) -> None:
    """Of pairs of a sample."""
    generator = torch.Generator().manual_seed(0)
    some = specials(dtype)
    some = some[torch.randperm(len(some), generator=generator)[:60]]
    x, y = some.repeat_interleave(len(some)), some.repeat(len(some))
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(x), fd.from_pytorch(y)
        for name in BINARY:
            fd.add_output(getattr(fd.ops, name)(a, b))
    for (name, call), got in zip(BINARY.items(), run.execute(fd, [x, y]), strict=True):
        assert_as_torch(name, got, call, x, y)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    return torch.complex(rand(5, 7), rand(5, 7, seed=1)).to(dtype) + (3 - 2j)


def test_variance(run: Runner) -> None:
    """Real: the mean of the squared distances from the mean."""
    inputs = [numbers(dtype) for dtype in DTYPES]
    expected = []

    def build(fd: FusionDefinition) -> None:
        for x in inputs:
            t = fd.from_pytorch(x)
            variance, mean = fd.ops.var_mean(t, [1], 0, True)
            for value in (fd.ops.var(t, [0]), fd.ops.var(t), variance, mean):
                fd.add_output(value)

    for x in inputs:
        expected += [x.var(0), x.var(), *torch.var_mean(x, 1, correction=0, keepdim=True)]
    run(build, inputs, expected)


def test_a_mean_of_infinite_parts(run: Runner) -> None:
    """Each part is divided alone, where a complex quotient of (0, inf) is (NaN, inf)."""
    inf, nan = float("inf"), float("nan")
    parts = (0.0, 2.0, inf, -inf, nan)
    whole = [complex(re, im) for re in parts for im in parts]
    inputs = [torch.tensor([whole, whole], dtype=dtype) for dtype in DTYPES]

    def build(fd: FusionDefinition) -> None:
        for x in inputs:
            fd.add_output(fd.ops.var_mean(fd.from_pytorch(x), [0], 0)[1])

    run(build, inputs, [x[0] for x in inputs])


SPREADS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "var": lambda x: (x.var(), x.var(-1), torch.var(x * 2, 0, correction=0) + 1),
    "std": lambda x: (torch.std(x), x.std(0, keepdim=True)),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "std_mean": lambda x: torch.std_mean(x * 2, 0, keepdim=True),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SPREADS)
def test_variance_through_thunder(name: str, dtype: torch.dtype) -> None:
    """With its gradient, which Thunder alone refuses, or gives without the imaginary part."""
    results = []
    for call in (jit(SPREADS[name]), SPREADS[name]):
        x = numbers(dtype).requires_grad_()
        found = call(x)
        torch.autograd.backward(found, [torch.ones_like(y) for y in found])
        results.append([*(y.detach() for y in found), x.grad])
    torch.testing.assert_close(*results)
