# SPDX-License-Identifier: Apache-2.0
"""Integers beside numbers and 0-dim tensors: torch's value, type, or an error as in torch.

Numbers are small, at the ends of a type, beyond them, and beyond int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from thunder_fuser.explain.jitted import jit
from thunder_fuser.versions import parse

Op = Callable[[Any, Any], Any]

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Beyond the ends of a type, torch raises or wraps: it depends on the function.
NUMBERS = (
    -(10**30), -(2**63), -(2**31) - 1, -32769, -200, -129, -128, -3, -2, 1, 2, 3, 127, 128, 200,
    255, 256, 300, 32768, 2**31, 2**40, 2**63 - 1, 2**63, 10**30,
)  # fmt: skip


def in_place(method: str) -> Op:
    def op(x: Any, y: Any) -> Any:
        t = x * 1
        getattr(t, method)(y)
        return t

    return op


OPS: dict[str, Op] = {
    "add": torch.add,
    "x + y": lambda x, y: x + y,
    "y - x": lambda x, y: y - x,
    "sub": torch.sub,
    "mul": torch.mul,
    "x // y": lambda x, y: x // y,
    "floor_divide": torch.floor_divide,
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "true_divide": torch.true_divide,
    "remainder": torch.remainder,
    "%": lambda x, y: x % y,
    "fmod": torch.fmod,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "x > y": lambda x, y: x > y,
    "ge": torch.ge,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": torch.bitwise_xor,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "where, other side": lambda x, y: torch.where(x > 0, y, x),
    "clamp from": lambda x, y: x.clamp(min=y),
    "clamp to": lambda x, y: torch.clamp(x, max=y),
    "clip": lambda x, y: torch.clip(x, y, None),
    "clamp_min": torch.clamp_min,
    "clamp_max": lambda x, y: x.clamp_max(y),
    "chained": lambda x, y: (x + y) * 2 - x,
    "chained where": lambda x, y: torch.where(x > 0, x, y) + 1,
    "add_": in_place("add_"),
    "mul_": in_place("mul_"),
}
OF_NUMBERS: dict[str, Op] = {
    "add of alpha": lambda x, y: torch.add(x, x, alpha=y),
    "full": lambda x, y: torch.full((2,), y, dtype=x.dtype),
    "full_like": torch.full_like,
    "masked_fill": lambda x, y: x.masked_fill(x > 0, y),
}
OF_TENSORS: dict[str, Op] = {"maximum": torch.maximum, "minimum": torch.minimum}
SMALL: dict[str, Op] = {  # whose other operand is a count, or an exponent
    "shift left": lambda x, y: x << y,
    "shift right": lambda x, y: x >> y,
    "pow": torch.pow,
}

# Where Thunder alone differs from torch, and so do we.
KNOWN = {
    ("masked_fill", torch.bool): "Thunder promotes to the number's type, torch keeps bool",
    ("clamp from", torch.bool): "Thunder refuses bool",
    ("clamp to", torch.bool): "Thunder refuses bool",
    ("full_like", torch.bool): "Thunder asks Python for the bool of a number beyond int64",
    ("full", torch.bool): "Thunder asks Python for the bool of a number beyond int64",
}

# Torch 2.15 takes a number beyond the type; here it raises, as in older ones (docs/limitations.md).
CLAMPS = ("clamp from", "clamp to", "clip", "clamp_min", "clamp_max")
TAKES_ALL = parse(torch.__version__) >= (2, 15)


def is_known(name: str, dtype: torch.dtype, number: Any) -> bool:
    if (name, dtype) in KNOWN:
        return True
    if not TAKES_ALL or name not in CLAMPS or dtype == torch.bool or torch.is_tensor(number):
        return False
    ends = torch.iinfo(dtype)
    return not ends.min <= number <= ends.max


def tensor(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([-100, -7, -1, 0, 1, 6, 100]).to(dtype)


def outcome(op: Callable[..., Any], *args: Any) -> Any:
    try:
        return op(*args)
    except (RuntimeError, TypeError, ValueError, OverflowError, NotImplementedError) as error:
        return error


def check(ops: dict[str, Op], x: torch.Tensor, y: Any) -> None:
    """What torch computes is computed, all in one function; what it refuses is refused."""
    right = {name: outcome(op, x, y) for name, op in ops.items() if not is_known(name, x.dtype, y)}
    taken = [name for name, one in right.items() if isinstance(one, torch.Tensor)]
    got = jit(lambda x, y: [ops[name](x, y) for name in taken], strict=True)(x, y)
    for name, mine in zip(taken, got, strict=True):
        assert (name, mine.dtype) == (name, right[name].dtype)
        assert torch.equal(mine, right[name]), (name, mine, right[name])
    for name in right.keys() - taken:
        result = outcome(jit(ops[name], strict=True), x, y)
        assert not isinstance(result, torch.Tensor), (name, result, right[name])


@settings(max_examples=4, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.sampled_from(DTYPES), st.sampled_from(NUMBERS))
def test_numbers(dtype: torch.dtype, number: int) -> None:
    check(OPS | OF_NUMBERS, tensor(dtype), number)


@settings(max_examples=4, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.sampled_from((1, 3, 100, 300, -3)))
def test_0_dim_tensors(dtype: torch.dtype, other: torch.dtype, number: int) -> None:
    check(OPS | OF_TENSORS, tensor(dtype), torch.tensor(number).to(other))


@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES))
def test_tensors(dtype: torch.dtype, other: torch.dtype) -> None:
    check(OPS | OF_TENSORS, tensor(dtype), torch.tensor([1, 2, 3, 100, -3, 5, 6]).to(other))


@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.sampled_from(DTYPES), st.sampled_from((torch.uint8, torch.int64)))
def test_counts(dtype: torch.dtype, other: torch.dtype) -> None:
    check(SMALL, tensor(dtype), 3)
    check(SMALL, tensor(dtype), torch.tensor(3).to(other))


@pytest.mark.parametrize(
    ("op", "dtype", "y"),
    [
        ("x // y", torch.uint8, -2),
        ("clamp to", torch.uint8, 300),
        ("clip", torch.int8, -200),
        ("mul", torch.int64, 10**30),
        ("full", torch.uint8, 300),
        ("x + y", torch.uint8, torch.tensor(300)),
        ("sub", torch.bool, torch.tensor(3)),
        ("chained", torch.uint8, torch.tensor(300)),
    ],
)  # fmt: skip
def test_what_was_wrong(op: str, dtype: torch.dtype, y: Any) -> None:
    check({op: (OPS | OF_NUMBERS)[op]}, tensor(dtype), y)


@pytest.mark.parametrize("numbers", [(2, 0.5), (1.5, 3), (2, -1.5), (True, 7)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.float32], ids=str)
def test_a_threshold_keeps_the_type(dtype: torch.dtype, numbers: tuple[Any, Any]) -> None:
    def function(x: Any) -> Any:
        return torch.nn.functional.threshold(x, *numbers).clamp(2, 2), torch.threshold(x, *numbers)

    x = torch.tensor([1, 2, 3, -4], dtype=dtype)
    torch.testing.assert_close(jit(function, strict=True)(x), function(x), rtol=0, atol=0)


def test_a_threshold_to_infinity_is_refused_in_torchs_words() -> None:
    for numbers in ((2, -math.inf), (math.nan, 3), (2, 1j)):
        with pytest.raises(RuntimeError, match="cannot be converted to type uint8_t"):
            jit(lambda x, n=numbers: torch.threshold(x, *n))(torch.ones(3, dtype=torch.uint8))


def test_comparisons_with_zero_are_of_the_common_type() -> None:
    """That of a tensor of no dimension gives way: -2**63 is 0 in int32."""

    def function(x: Any, y: Any) -> Any:
        return torch.logical_and(x, y), torch.logical_or(x, y), torch.logical_xor(x, y)

    for x, y in (
        (torch.tensor(-(2**63)), torch.tensor([1, 0], dtype=torch.int32)),
        (torch.tensor([1e-50, 0.0], dtype=torch.float64), torch.tensor([True, False])),
        (torch.ones(0, dtype=torch.complex128), torch.tensor(1.0).to(torch.float8_e5m2)),
    ):
        for pair in ((x, y), (y, x)):
            torch.testing.assert_close(jit(function)(*pair), function(*pair), rtol=0, atol=0)
