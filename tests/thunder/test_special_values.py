# SPDX-License-Identifier: Apache-2.0
"""Functions of floats at the ends of their types, forward and backward, as eager torch has them.

Each function has a leaf of its own, so that one compiled function holds them all. torch may have
two answers, one of its vectors and one of strided memory; each is accepted. What else differs, and
why, stands in DIFFERENCES, with where it may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser.explain.jitted import jit
from thunder_fuser.versions import parse

Function = Callable[..., torch.Tensor]
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INF, NAN = math.inf, math.nan


def specials(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, infinities, NaN, the largest and the smallest numbers, and some between."""
    limits = torch.finfo(dtype)
    smallest = limits.smallest_normal * limits.eps
    sizes = [0.0, smallest, limits.smallest_normal / 2, limits.tiny, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0,
             20.0, 90.0, 710.0, limits.max, INF]  # fmt: skip
    return torch.tensor([NAN, *sizes, *(-x for x in sizes)], dtype=dtype)


def rows(dtype: torch.dtype) -> torch.Tensor:
    """Rows of which each has another kind of special value."""
    top, tiny = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal / 2
    values = [
        [1, 2, 0.5, -1], [1, INF, 2, 0], [-INF] * 4, [INF] * 4, [INF, -INF, 0, 1], [1, -INF, 2, 3],
        [NAN, 1, 2, INF], [0, 1, NAN, -INF], [top, top, 1, 0], [-top, top, 0, 0], [-top] * 4,
        [0.0, -0.0, 0.0, -0.0], [tiny, 0, 0, 0], [tiny] * 4, [1, INF, INF, 1], [-0.0] * 4,
        [3, 3, 3, 3], [0, 0, 1, 2], [1e4, -1e4, 0, 1], [0, INF, 1, 2],
    ]  # fmt: skip
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def named(module: Any, names: str) -> dict[str, Function]:
    return {name: getattr(module, name) for name in names.split()}


UNARY: dict[str, Function] = {
    **named(torch, "abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc"),
    **named(torch, "erfinv exp exp2 expm1 floor frac isfinite isinf isnan isneginf isposinf"),
    **named(torch, "lgamma log log10 log1p log2 logit nan_to_num neg rad2deg reciprocal relu"),
    **named(torch, "round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc"),
    **named(torch.special, "entr"),
    **named(F, "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid"),
    **named(F, "mish relu6 selu silu softplus softshrink softsign tanhshrink"),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp min": lambda x: torch.clamp(x, min=0.5),
    "clip": lambda x: torch.clip(x, -1, 2),
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "logit eps": lambda x: torch.logit(x, 0.1),
    "1 / 0": lambda x: x / 0.0,
    "0 / x": lambda x: 0.0 / x,
    "x ** 0": lambda x: x**0,
    "x ** 0.5": lambda x: x**0.5,
    "x ** -0.5": lambda x: x**-0.5,
    "x ** 1": lambda x: x**1,
    "x ** 2": lambda x: x**2,
    "x ** 3": lambda x: x**3,
    "x ** -1": lambda x: x**-1,
    "x ** -2": lambda x: x**-2,
    "x ** 1.5": lambda x: x**1.5,
    "2 ** x": lambda x: 2.0**x,
    "0 ** x": lambda x: 0.0**x,
    "-2 ** x": lambda x: (-2.0) ** x,
}
BINARY: dict[str, Function] = {
    **named(torch, "add sub mul div atan2 pow fmod remainder maximum minimum fmax fmin logaddexp"),
    **named(torch, "xlogy copysign eq ne lt le gt ge"),
    **named(torch.special, "xlog1py"),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "where": lambda x, y: torch.where(x > y, x, y),
    "squared error": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "l1_loss": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "huber_loss": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="none"),
}


def _first(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(x.shape[0], dtype=torch.int64)


ROWS: dict[str, Function] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "softmin": lambda x: F.softmin(x, -1),
    "softmax of columns": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "log_softmax of columns": lambda x: torch.log_softmax(x, 0),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, -1),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1, -1),
    "norm inf": lambda x: torch.linalg.vector_norm(x, INF, -1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "var": lambda x: torch.var(x, -1),
    "std": lambda x: torch.std(x, -1),
    "mean": lambda x: x.mean(-1),
    "sum": lambda x: x.sum(-1),
    "prod": lambda x: x.prod(-1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "nansum": lambda x: x.nansum(-1),
    "nanmean": lambda x: x.nanmean(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "cross_entropy": lambda x: F.cross_entropy(x, _first(x), reduction="none"),
    "cross_entropy smoothed": lambda x: F.cross_entropy(
        x, _first(x), reduction="none", label_smoothing=0.1
    ),
    "cross_entropy of probabilities": lambda x: F.cross_entropy(
        x, torch.full_like(x, 0.25), reduction="none"
    ),
    "nll_loss": lambda x: F.nll_loss(torch.log_softmax(x, -1), _first(x), reduction="none"),
}

Place = Callable[..., torch.Tensor]


def _everywhere(*xs: torch.Tensor) -> torch.Tensor:
    return torch.ones(xs[0].shape[0], dtype=torch.bool)


def _any(mask: torch.Tensor) -> torch.Tensor:
    return mask.flatten(1).any(1) if mask.ndim > 1 else mask


def _nan(*xs: torch.Tensor) -> torch.Tensor:
    return _any(torch.stack([x.isnan() for x in xs]).any(0))


def _infinite(*xs: torch.Tensor) -> torch.Tensor:
    return _any(torch.stack([x.isinf() for x in xs]).any(0)) | _nan(*xs)


def _large(*xs: torch.Tensor) -> torch.Tensor:
    """Beyond a hundredth of the largest number, where sums and squares overflow."""
    sizes = [x.abs() > torch.finfo(x.dtype).max / 100 for x in xs]
    return _any(torch.stack(sizes).any(0))


def _small(*xs: torch.Tensor) -> torch.Tensor:
    """Not 0, but with a square that is."""
    squares = [(x != 0) & (x.float() if x.itemsize < 4 else x).square().eq(0) for x in xs]
    tiny = [(x != 0) & (x.abs() <= torch.finfo(x.dtype).tiny) for x in xs]
    return _any(torch.stack(squares + tiny).any(0))


def _far_apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _small(y) | _large(x, y) | _infinite(x, y) | _small(x)


# name: (where, why). Gradients of Thunder's own pieces are its own; so is what torch computes with
# another overflow.
DIFFERENCES: dict[str, tuple[Place, str]] = {
    **dict.fromkeys(
        ("hardshrink", "softshrink", "hardsigmoid", "hardswish", "hardtanh", "relu6"),
        (_nan, "the gradient at NaN, by choices of Thunder's that NaN falls to the other side of"),
    ),
    "copysign": (_infinite, "torch's gradient multiplies by x / x"),
    "gelu": (_large, "torch's vectors multiply by x before they halve"),
    "0 / x": (_small, "torch: 0 times the infinite gradient of 1 / x"),
    "fmod": (_far_apart, "torch's vectors have NaN where the quotient overflows"),
    "remainder": (_far_apart, "as fmod"),
    **dict.fromkeys(
        ("x ** 0.5", "x ** -0.5", "x ** 1.5"),
        (lambda x: _infinite(x) | (x == 0), "torch's float16 on a CPU has pow, elsewhere sqrt"),
    ),
    "kl_div": (_everywhere, "16-bit floats: torch rounds each of its steps"),
    "atan2": (_small, "float16: torch's sum of squares is rounded to 0"),
    "pow": (_everywhere, "16-bit floats: torch rounds x ** (y - 1) before it is used"),
    "logsumexp": (_large, "torch's gradient, exp(x - result), has the sum's logarithm rounded off"),
    "norm inf": (_nan, "torch's gradient is 0 where the norm is NaN"),
    "norm": (_large, "float16: torch divides by a norm that was rounded to infinity"),
    "normalize": (_everywhere, "float16: torch's 1e-12 is 0"),
    **dict.fromkeys(
        ("var", "layer_norm", "rms_norm", "prod", "nanmean", "cross_entropy smoothed"),
        (_large, "sums, squares and products overflow in another order"),
    ),
    "std": (lambda x: _large(x) | _small(x), "as var; and its squares vanish"),
    "sinc": (_large, "16-bit floats: torch rounds pi * x in its gradient"),
}
if parse(torch.__version__) > (2, 12):
    DIFFERENCES |= {
        **dict.fromkeys(
            ("clamp", "clamp min", "clip"),
            (lambda x: (x == -1) | (x == 0.5) | (x == 2), "the gradient at a limit, 1 until 2.11"),
        ),
        **dict.fromkeys(
            ("fmax", "fmin"),
            (lambda x, y: x == y, "the gradient of equal operands, which the first has until 2.11"),
        ),
    }
ONLY_IN_FLOAT16 = ("x ** 0.5", "x ** -0.5", "x ** 1.5", "norm", "normalize", "atan2")
ONLY_IN_16_BITS = ("pow", "kl_div", "nanmean", "cross_entropy smoothed", "sinc")

Results = list[torch.Tensor]


def with_gradients(call: Any, names: Sequence[str], inputs: Results) -> dict[str, Results]:
    """Of each function its value, and the gradients of its operands, of a gradient of ones.

    call(*leaves) gives the values of all functions; each has leaves of its own.
    """
    leaves = [[x.detach().requires_grad_() for x in inputs] for _ in names]
    values = call(*(leaf for own in leaves for leaf in own))
    differentiable = [value for value in values if value.requires_grad]
    torch.autograd.backward(differentiable, [torch.ones_like(value) for value in differentiable])
    return {
        name: [value.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in own)]
        for name, value, own in zip(names, values, leaves, strict=True)
    }


def all_of(table: dict[str, Function], count: int) -> Any:
    functions = list(table.values())

    def call(*leaves: torch.Tensor) -> list[torch.Tensor]:
        return [f(*leaves[count * at : count * (at + 1)]) for at, f in enumerate(functions)]

    return call


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between them, which torch computes one by one."""
    return x.repeat_interleave(2, dim=-1)[..., ::2]


def near(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    digits = max(torch.finfo(got.dtype).eps ** 0.5, 1e-6) if got.is_floating_point() else 0.0
    floor = 0.05 * digits
    return torch.isclose(got.double(), expected.double(), digits, floor, equal_nan=True)


def signs_agree(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Infinities count with their signs; zeros do not: gradients are sums, in any order."""
    return ~(got.isinf() & expected.isinf()) | (got == expected)


# In float32 all functions; in other types those that the fuser computes in its own way.
OWN = {
    "logit", "logit eps", "entr", "sinc", "relu", "sigmoid", "celu", "elu", "selu", "clamp", "clip",
    "x ** 0", "x ** 0.5", "x ** -0.5", "x ** 2", "x ** 1.5", "0 ** x", "atan2", "pow", "logaddexp",
    "xlogy", "xlog1py", "minimum", "remainder", "kl_div", *ROWS,
}  # fmt: skip
TABLES = {"unary": (UNARY, 1), "binary": (BINARY, 2), "rows": (ROWS, 1)}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", TABLES)
def test_as_eager(kind: str, dtype: torch.dtype) -> None:
    table, count = TABLES[kind]
    if dtype is not torch.float32:
        table = {name: call for name, call in table.items() if name in OWN}
    values = rows(dtype) if kind == "rows" else specials(dtype)
    inputs = [values]
    if count == 2:
        inputs = [values.repeat_interleave(len(values)), values.repeat(len(values))]
    names, call = list(table), all_of(table, count)
    got = with_gradients(jit(call), names, inputs)
    eager = [
        with_gradients(call, names, inputs),
        with_gradients(lambda *xs: call(*map(strided, xs)), names, inputs),
    ]
    wrong = {}
    for name in names:
        allowed = _allowed(name, dtype, inputs)
        for part, result in enumerate(got[name]):
            answers = [one[name][part] for one in eager]
            assert result.dtype is answers[0].dtype and result.shape == answers[0].shape
            right = torch.stack([near(result, one) & signs_agree(result, one) for one in answers])
            wrong_rows = ~_all(right.any(0)) & ~allowed
            if at := wrong_rows.nonzero().flatten()[:3].tolist():
                wrong[name, part] = [
                    ([x[i].tolist() for x in inputs], result[i].tolist(), answers[0][i].tolist())
                    for i in at
                ]
    lines = (f"{name}, part {part}: {shown}" for (name, part), shown in wrong.items())
    assert not wrong, "(operands, result, eager's)\n" + "\n".join(lines)


def _all(mask: torch.Tensor) -> torch.Tensor:
    return mask.flatten(1).all(1) if mask.ndim > 1 else mask


def _allowed(name: str, dtype: torch.dtype, inputs: Results) -> torch.Tensor:
    """The rows whose results may differ."""
    elsewhere = name in ONLY_IN_16_BITS and dtype.itemsize > 2
    elsewhere |= name in ONLY_IN_FLOAT16 and dtype is not torch.float16
    if name not in DIFFERENCES or elsewhere:
        return torch.zeros(inputs[0].shape[0], dtype=torch.bool)
    return DIFFERENCES[name][0](*inputs)


DIVISORS = (0.0, 1e-310, 1e-46, 1e-8, 3, 3.3, 7e4, 1e39, INF, NAN)
DIVISIONS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    **named(torch, "floor_divide fmod remainder"),
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
def test_division_by_numbers_that_a_type_does_not_hold(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 5, -7, 200], dtype=dtype)

    def all_of_them(x: torch.Tensor) -> list[torch.Tensor]:
        return [DIVISIONS[name](x, divisor) for divisor in DIVISORS]

    for ours, eager in zip(jit(all_of_them)(x), all_of_them(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
