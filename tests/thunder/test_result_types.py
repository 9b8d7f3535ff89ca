# SPDX-License-Identifier: Apache-2.0
"""Functions of tensors of all types, 0-dim and not, beside numbers: eager's type, value or error.

Thunder has other rules for types than torch, above all for 0-dim tensors, which it promotes like
numbers. Each function is given small values, for which all types have room. Regions are evaluated
op by op: what is claimed and recorded is tested here, not the kernels.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from thunder.core.prims import OpTags
from thunder.torch import _torch_to_thunder_function_map

from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.explain.jitted import fusions_of, jit
from thunder_fuser.ir.record import Definition
from thunder_fuser.ir.rules.build import define
from thunder_fuser.runtime.eager.evaluate import evaluate

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
    f"{name} {dtype}": lambda x, name=name, dtype=dtype: getattr(torch, name)(x, 0, dtype=dtype)
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
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "add alpha": lambda x, y: torch.add(x, y, alpha=2),
    "add 0.5": lambda x, y: torch.add(x, y, alpha=0.5),
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=2),
    "clamp min": lambda x, y: x.clamp(min=y),
    "clamp max": lambda x, y: x.clamp(max=y),
    "clamp both": lambda x, y: torch.clamp(x, y, y),
    "clip": torch.clip,
    "where": lambda x, y: torch.where(x > 1, x, y),
    "chained": lambda x, y: ((x + y) * 2 - x) * y,
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "lerp sum": lambda x, y: torch.lerp(x, y, 2.0).sum(),
}
OF_TENSORS: dict[str, Function] = {
    "stack": lambda x, y: torch.stack([x, y]),
    "cat": lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    "lerp by": lambda x, y: torch.lerp(x, x, y),
}


def evaluated(definition: Definition, name: str, args: Any) -> Any:
    fusion = define(definition)
    return lambda *args: evaluate(fusion, args)


EVALUATED = ThunderFuser("evaluated", evaluated)


def tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([2, 1, 3])[: math.prod(shape)].reshape(shape).to(dtype)


def outcome(function: Function, *args: Any) -> Any:
    try:
        return function(*args)
    except ERRORS as error:
        return error


def check(functions: dict[str, Function], *args: Any) -> None:
    """All that torch computes, in one function; what it refuses is refused."""
    right = {name: outcome(function, *args) for name, function in functions.items()}
    taken = [name for name, one in right.items() if isinstance(one, torch.Tensor)]
    both = lambda *args: [functions[name](*args) for name in taken]  # noqa: E731
    got = thunder.jit(both, executors=[EVALUATED])(*args)
    for name, mine in zip(taken, got, strict=True):
        wanted = right[name]
        assert (name, mine.dtype, mine.shape) == (name, wanted.dtype, wanted.shape)
        torch.testing.assert_close(mine, wanted, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
    for name in right.keys() - taken:
        if isinstance(right[name], (NotImplementedError, TypeError)):
            continue  # torch has no kernel for the type, or takes no number: here it may be taken
        result = outcome(thunder.jit(functions[name], executors=[EVALUATED]), *args)
        assert not isinstance(result, torch.Tensor), (name, result, right[name])


KNOWN = {
    "masked_fill": "Thunder promotes bool to the number's type",
    "logsumexp": "Thunder raises for 0-dim tensors",
}


@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.sampled_from(DTYPES), st.sampled_from(SHAPES))
def test_functions_of_one(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    functions = {name: one for name, one in UNARY.items() if name not in KNOWN}
    check(functions | CASTS, tensor(dtype, shape))


@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.sampled_from(NUMBERS))
def test_beside_numbers(dtype: torch.dtype, shape: tuple[int, ...], number: float) -> None:
    check(BINARY, tensor(dtype, shape), number)


@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(*map(st.sampled_from, (DTYPES, SHAPES, DTYPES, SHAPES)))
def test_functions_of_two(
    dtype: torch.dtype, shape: tuple[int, ...], other: torch.dtype, others: tuple[int, ...]
) -> None:
    check(BINARY | OF_TENSORS, tensor(dtype, shape), tensor(other, others))


HALVES = (torch.float16, torch.bfloat16)
WHOLE = torch.tensor([1, 2, 3], dtype=torch.uint8)


FLOATS_OF_BYTES: dict[str, Function] = {
    "x / 2": lambda x: x / 2,
    "x / 2.5": lambda x: x / 2.5,
    "2.5 / x": lambda x: 2.5 / x,
    "x.sin().neg()": lambda x: x.sin().neg(),
    "atan2": lambda x: torch.atan2(x, x.sin()),
    "softmax": lambda x: torch.softmax(x, 0, dtype=torch.float32),
    "polygamma": lambda x: torch.polygamma(1, x),
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "(x > 1) / x": lambda x: (x > 1) / x,
}


@functools.cache
def floats_of_bytes() -> dict[str, Function]:
    """Those, and all of torch's in C++ that Thunder defines and that make floats of one or two."""
    found = dict(FLOATS_OF_BYTES)
    known = {
        function.__name__: function
        for function, symbol in _torch_to_thunder_function_map.items()
        if inspect.isbuiltin(function)
        and OpTags.AUTO_REGISTERED not in (getattr(symbol, "tags", None) or ())
    }
    for name, function in known.items():
        for count in (1, 2):
            one = lambda x, f=function, count=count: f(*[x] * count)  # noqa: E731
            result = outcome(one, WHOLE.clone())
            if isinstance(result, torch.Tensor) and result.dtype is torch.float32:
                found[f"{name}, {count}"] = one
    return found


@pytest.mark.parametrize("dtype, has_gradient", [(torch.float16, False), (torch.bfloat16, True)])
def test_floats_of_integers_beside_halves(dtype: torch.dtype, has_gradient: bool) -> None:
    """Thunder says that they are weak; then the result would be of 16 bits."""
    functions = floats_of_bytes()
    assert len(functions) > 35

    def beside(x: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor]:
        return [one(x) * h for one in functions.values()]

    h = tensor(dtype, (3,)).requires_grad_(has_gradient)
    got = thunder.jit(beside, executors=[EVALUATED])(WHOLE, h)
    for name, mine, right in zip(functions, got, beside(WHOLE, h), strict=True):
        assert (name, mine.dtype) == (name, right.dtype)
        torch.testing.assert_close(mine, right, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")


def test_a_float_of_an_integer_divided_by_a_half() -> None:
    """As the fuzzer found it."""
    h = tensor(torch.bfloat16, (3,))
    functions: dict[str, Function] = {
        "/": lambda x, h: torch.lgamma(x) / h,
        "trunc": lambda x, h: torch.div(torch.lgamma(x), h, rounding_mode="trunc"),
        "floor": lambda x, h: torch.div(torch.lgamma(x), h, rounding_mode="floor"),
    }
    check(functions, WHOLE, h)


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("dtype", HALVES)
def test_quotients_keep_their_type_for_their_readers(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    functions: dict[str, Function] = {
        "logaddexp": lambda x: torch.logaddexp(x // 2, x),
        "add": lambda x: (x // x) + x,
        "atan2": lambda x: torch.atan2(x, x.floor_divide(2)),
    }
    for function in functions.values():
        x = tensor(dtype, shape)
        torch.testing.assert_close(jit(function, strict=True)(x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda m: m + 2, lambda m: m * 2, lambda m: 2**m, lambda m: m // 2, lambda m: m & 1,
        lambda m: torch.fmod(m, 2), lambda m: torch.floor_divide(m, 2),
        lambda m: torch.where(m, m, 2), lambda m: torch.clamp(m, 0, 300), lambda m: m < 300,
    ],
)  # fmt: skip
def test_bools_beside_a_number_are_int64(function: Function) -> None:
    """For readers that ask for its type, too."""
    m = torch.tensor([True, False, True])
    made, like = jit(lambda m: (function(m), function(m).new_full((2,), 1)), strict=True)(m)
    assert (made.dtype, like.dtype) == (function(m).dtype, function(m).dtype)
    assert torch.equal(made, function(m))


@pytest.mark.parametrize("shape", [(), (3,)])
def test_int8_stays_int8(shape: tuple[int, ...]) -> None:
    x = torch.full(shape, -3, dtype=torch.int8)
    for function in (torch.abs, torch.neg, torch.sign, torch.square, lambda x: x + 2):
        assert torch.equal(jit(function, strict=True)(x), function(x))
        assert jit(function, strict=True)(x).dtype is torch.int8


@pytest.mark.parametrize(
    "function",
    [
        lambda b, x: torch.stack([b, x]), lambda b, x: torch.cat([x, b]),
        lambda b, x: torch.hstack([b, x]),
    ],
)  # fmt: skip
def test_8_bit_floats_are_not_joined_with_bools(function: Function) -> None:
    x, b = torch.ones(2).to(torch.float8_e5m2), torch.tensor([True, False])
    for one in (function, jit(function, strict=True)):
        with pytest.raises(RuntimeError, match="Promotion for Float8"):
            one(b, x)


@pytest.mark.parametrize("exponent", [1e-310, -1e-50, 2.0**-150, 2.0**-149, 1e50, -1e50])
def test_exponents_beyond_float32(exponent: float) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, torch.inf, -torch.inf, torch.nan])
    made = jit(lambda x: x**exponent, strict=True)(x)
    torch.testing.assert_close(made, x**exponent, equal_nan=True)


def test_without_the_executor_thunder_has_its_own_types() -> None:
    jitted = thunder.jit(lambda x, h: torch.lgamma(x) * h, executors=[])
    h = tensor(torch.bfloat16, (3,)).requires_grad_()
    assert jitted(WHOLE, h).dtype is torch.bfloat16


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.tril(x, 2), lambda x: torch.triu(x, 1),
        lambda x: torch.arange(0)[:, None] + x, lambda x: torch.arange(x.shape[0]),
        lambda x: torch.arange(0).unsqueeze(0) + 1.5,
    ],
)  # fmt: skip
def test_a_range_of_no_numbers_has_an_axis(function: Function) -> None:
    x = torch.ones(0, 2)
    made, like = jit(function, strict=True)(x), function(x)
    assert (made.shape, made.dtype) == (like.shape, like.dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_floats_of_integers_and_a_number_are_weak(dtype: torch.dtype) -> None:
    """So Thunder's own tests have it: torch's type would be float32."""
    x, y = tensor(torch.int64, (3,)), tensor(dtype, (3,))
    made = jit(lambda x, y: x + 3.0 + y, strict=True)(x, y)
    assert made.dtype is dtype
    torch.testing.assert_close(made, (x + 3.0 + y).to(dtype))


ONE_DIM = torch.tensor([1, 5], dtype=torch.int32)
BYTES = torch.tensor([1, 200, 128, 128], dtype=torch.uint8)
WRONG: list[tuple[Function, tuple[Any, ...]]] = [
    (lambda x: x // x, (torch.float16, torch.int8)),
    (lambda x: 2 // x, (torch.bfloat16,)),
    (lambda x: x.clamp(max=2), (torch.float16, torch.bfloat16)),
    (lambda x: x.clamp(2, 0.1), (torch.float64,)),
    (lambda x: x.clamp(max=math.nan), (torch.float32, torch.uint8)),
    (lambda x: x.clamp(-(2**31), math.nan), (torch.uint8,)),
    (lambda x: x.clamp(2**31, math.inf), (torch.int32,)),
    (lambda x: torch.stack([x, x]), (torch.int8,)),
    (lambda x: torch.pow(torch.atan(ONE_DIM), x.double()), (torch.int32,)),
    (lambda x: torch.pow(x, True), (torch.bool,)),
    (lambda x: torch.add(x, x, alpha=2) * 2, (torch.bool,)),
    (lambda x: torch.sub(ONE_DIM, x * 200, alpha=2), (torch.uint8,)),
    (lambda x: torch.cumsum(x, 0, dtype=torch.int8), (torch.int64,)),
    (lambda x: torch.mean(x * 70000, 0, dtype=torch.float16), (torch.int32,)),
    (lambda x: torch.copysign(x, -0.0), (torch.int32, torch.float32, torch.bool)),
    (lambda x: torch.copysign(x, x.double()), (torch.bool, torch.float32)),
    (lambda x: torch.copysign(x.reshape(1), -x.reshape(1).half()), (torch.bfloat16, torch.int64)),
    (lambda x: torch.copysign(x.reshape(1), -x.reshape(1).double()), (torch.half, torch.int64)),
    (lambda x: (x & x.argmin()).new_zeros(2), (torch.uint8,)),
    (lambda x: torch.stack([2 & (x > 9), x]), (torch.int16,)),
    (lambda x: torch.lerp(x, x.reshape(1), 2.0).sum(), (torch.bfloat16,)),
    (lambda x: F.threshold(x, 2, 0.5), (torch.int16,)),
    (lambda x: torch.full_like(x, 2**63), (torch.bfloat16,)),
    (lambda x: torch.addcmul(x, x, x > 0), (torch.int8,)),
    (lambda x: BYTES < x * 100 + 200, (torch.int16, torch.int64)),
    (lambda x: BYTES < -x, (torch.int8, torch.int16, torch.int64)),
    (lambda x: torch.cumprod(BYTES, 0).amax(0, keepdim=True) <= BYTES, (torch.int32,)),
]


def test_what_was_wrong() -> None:
    cases = {
        f"{at} {dtype}": lambda x, f=function, dtype=dtype: f(x.to(dtype))
        for at, (function, dtypes) in enumerate(WRONG) for dtype in dtypes
    }  # fmt: skip
    check(cases, torch.tensor(1, dtype=torch.int32))


def test_log_of_a_sum_of_integers_does_not_wrap() -> None:
    x = torch.tensor([-128, 100], dtype=torch.int8)
    check({"logsumexp": lambda x: torch.logsumexp(x, 0)}, x)


REFUSED: list[Function] = [
    lambda x: torch.add(x, 2, alpha=0.5),
    lambda x: torch.mean(x.float(), 0, dtype=torch.int8),
    lambda x: torch.lerp(x.half(), x.float(), 0.5),
    lambda x: torch.lerp(x.half(), x.half(), x.float()),
    lambda x: F.threshold(x, math.inf, 2),
    lambda x: x // (x - x),
    lambda x: x // 0,
    lambda x: 2 % (x - x),
    lambda x: torch.fmod(x, 0),
    lambda x: torch.div(x, 0, rounding_mode="trunc"),
    lambda x: torch.softmax(x, 0),
    lambda x: torch.heaviside(x, 1),
    lambda x: x.sub(True),
    lambda x: x.int() - True,
]


def test_what_torch_refuses_is_refused() -> None:
    check({str(at): one for at, one in enumerate(REFUSED)}, tensor(torch.uint8, (3,)))


def test_a_division_by_a_number_is_fused() -> None:
    """Others may be divisions by 0, for which torch raises on a CPU."""
    jitted = jit(lambda x: (x + 1) // 3 + 1, strict=True)
    x = torch.tensor([-7, 8], dtype=torch.int32)
    assert torch.equal(jitted(x), (x + 1) // 3 + 1)
    assert len(fusions_of(jitted)) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_gradients_of_0_dim_tensors(dtype: torch.dtype) -> None:
    """They have the type of the tensor, and so has the result."""
    ours, theirs = (torch.tensor(1.5, dtype=dtype, requires_grad=True) for _ in range(2))

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(0.1, 2) * torch.copysign(x, -0.0) + torch.clip(x, max=0.7)

    mine, right = jit(function)(ours), function(theirs)
    mine.backward()
    right.backward()
    torch.testing.assert_close(mine, right)
    torch.testing.assert_close(ours.grad, theirs.grad)
