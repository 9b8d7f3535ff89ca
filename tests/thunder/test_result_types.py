# SPDX-License-Identifier: Apache-2.0
"""Functions of tensors of all types, 0-dim and not, beside numbers: eager's type, value or error.

Thunder has other rules for types than torch, above all for 0-dim tensors, which it promotes like
numbers. Each function is given small values, for which all types have room. Regions are evaluated
op by op: what is claimed and recorded is tested here, not the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.executors.traces import jit

Function = Callable[..., Any]

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (*INTEGERS, *FLOATS)
SHAPES = ((), (1,), (3,))
NUMBERS = (2, 1, True, 0.5, 2.0, math.nan, math.inf, -0.0, 0.1, 1e30, -1e-310)
ERRORS = (RuntimeError, TypeError, ValueError, OverflowError, NotImplementedError, IndexError)


def named(module: Any, names: str) -> dict[str, Function]:
    return {name: getattr(module, name) for name in names.split()}


UNARY: dict[str, Function] = {
    **named(torch, "abs ceil cos deg2rad erf exp exp2 expm1 floor frac isfinite isnan log1p"),
    **named(torch, "logical_not neg positive reciprocal relu round rsqrt sgn sigmoid sign signbit"),
    **named(torch, "sin sinc sqrt square tan tanh trunc sum mean prod amax argmax std var"),
    **named(F, "celu elu gelu hardtanh leaky_relu relu6 selu silu softplus softsign"),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "softmax": lambda x: torch.softmax(x, 0),
    "softmax f32": lambda x: torch.softmax(x, 0, dtype=torch.float32),
    "cumsum": lambda x: torch.cumsum(x, 0),
    "stack": lambda x: torch.stack([x, x]),
    "x // x": lambda x: x // x,
    "x << 1": lambda x: x << 1,
    "~x": lambda x: ~x,
    "-x": lambda x: -x,
    "x.half() + x": lambda x: x.half() + x,
    "x.double() * x": lambda x: x.double() * x,
    "(x > 1) + x": lambda x: (x > 1) + x,
    "2 & (x > 1)": lambda x: torch.stack([2 & (x > 1), x]),
    "(x > 1).sum() * x": lambda x: (x > 1).sum() * x,
    "full_like": lambda x: torch.full_like(x, 2),
    "full_like 2**63": lambda x: torch.full_like(x, 2**63),
    "masked_fill": lambda x: x.masked_fill(x > 1, 1),
    "threshold": lambda x: F.threshold(x, 1, 0.5),
    "alpha": lambda x: torch.add(x, x, alpha=2) * 2,
    "mean // x": lambda x: (x.float().mean() // x).sum(),
}  # fmt: skip
CASTS: dict[str, Function] = {
    f"{name} {dtype}": lambda x, f=getattr(torch, name), dtype=dtype: f(x, 0, dtype=dtype)
    for name in ("sum", "mean", "prod", "cumsum", "cumprod")
    for dtype in (torch.int8, torch.int64, torch.float16, torch.float64)
}
BINARY: dict[str, Function] = {
    **named(torch, "add sub mul true_divide floor_divide fmod remainder pow maximum minimum fmax"),
    **named(torch, "atan2 copysign eq lt ge logical_xor bitwise_and bitwise_or xlogy hypot"),
    **named(torch, "logaddexp heaviside rsub float_power"),
    "x // y": lambda x, y: x // y,
    "y // x": lambda x, y: y // x,
    "y - x": lambda x, y: y - x,
    "y / x": lambda x, y: y / x,
    "y ** x": lambda x, y: y**x,
    "x % y": lambda x, y: x % y,
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "add alpha": lambda x, y: torch.add(x, y, alpha=2),
    "add 0.5": lambda x, y: torch.add(x, y, alpha=0.5),
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=2),
    "clamp min": lambda x, y: x.clamp(min=y),
    "clamp max": lambda x, y: x.clamp(max=y),
    "clamp both": lambda x, y: torch.clamp(x, y, y),
    "clip": lambda x, y: torch.clip(x, y),
    "where": lambda x, y: torch.where(x > 1, x, y),
    "chained": lambda x, y: ((x + y) * 2 - x) * y,
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "lerp sum": lambda x, y: torch.lerp(x, y, 2.0).sum(),
    "in place": lambda x, y: (x * 1).mul_(y),
}
OF_TENSORS: dict[str, Function] = {
    "stack": lambda x, y: torch.stack([x, y]),
    "cat": lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    "lerp by": lambda x, y: torch.lerp(x, x, y),
}


def tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([2, 1, 3])[: math.prod(shape)].reshape(shape).to(dtype)


def outcome(function: Function, *args: Any) -> Any:
    try:
        return function(*args)
    except ERRORS as error:
        return error


def check(executor: ThunderFuser, functions: dict[str, Function], *args: Any) -> None:
    """All that torch computes, in one function; what it refuses is refused."""
    right = {name: outcome(function, *args) for name, function in functions.items()}
    taken = [name for name, one in right.items() if isinstance(one, torch.Tensor)]
    both = lambda *args: [functions[name](*args) for name in taken]  # noqa: E731
    got = thunder.jit(both, executors=[executor])(*args)
    for name, mine in zip(taken, got, strict=True):
        wanted = right[name]
        assert (name, mine.dtype, mine.shape) == (name, wanted.dtype, wanted.shape)
        torch.testing.assert_close(mine, wanted, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
    for name in right.keys() - taken:
        result = outcome(thunder.jit(functions[name], executors=[executor]), *args)
        assert not isinstance(result, torch.Tensor), (name, result, right[name])
