# SPDX-License-Identifier: Apache-2.0
"""Gradients of primitives that Thunder has none for, or NaN where torch has a number."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import with_gradients

from thunder_fuser.explain.jitted import fusions_of, jit

Function = Callable[..., Any]
ROWS: dict[str, Function] = {
    "flip": lambda x, z: torch.flip(x, (0, 2)) * z,
    "minimum": torch.minimum,
    "minimum, equal": lambda x, z: torch.minimum(x, x * 1) * z,
    "minimum, number of no dimension": lambda x, z: torch.minimum(x, z.sum()),
    "remainder": torch.remainder,
    "%": lambda x, z: x % z,
    "remainder, number": lambda x, z: torch.remainder(x, 0.7) * z,
    "lerp": lambda x, z: torch.lerp(x, z, x * 2),
    "power of a number": lambda x, z: 2.5**x * z,
    "power of a number too small for the type": lambda x, z: 1e-310 ** (x * 0) * z,
    "lerp, number": lambda x, z: torch.lerp(x, z, 0.3),
    "prod": lambda x, z: (x * z).prod(),
    "prod, rows": lambda x, z: (x * z).prod(1),
    "round": lambda x, z: torch.round(x) * z + x,
    "trunc": lambda x, z: torch.trunc(x) * z + x,
    "isfinite": lambda x, z: torch.where(torch.isfinite(x), x * z, z),
    "argmin": lambda x, z: x.argmin(1) + (x * z).sum(1),
}


@pytest.mark.parametrize("name", ROWS)
def test_as_eager(name: str) -> None:
    torch.manual_seed(0)
    given = [torch.randn(3, 4, 5), torch.randn(3, 4, 5)]
    got, eager = (with_gradients(one, given) for one in (jit(ROWS[name], strict=True), ROWS[name]))
    torch.testing.assert_close(got, eager)


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_prod_with_zeros(zeros: int) -> None:
    x = torch.rand(3, 5) + 0.5
    x[1, :zeros] = 0

    def function(x: Any) -> Any:
        return x.prod(1)

    jitted = jit(function, strict=True)
    got, eager = (with_gradients(one, [x]) for one in (jitted, function))
    torch.testing.assert_close(got, eager)
    assert len(fusions_of(jitted)) == 2


def test_prod_beside_a_zero_is_nan_where_another_is_not_finite() -> None:
    """Each row of three of these numbers with a zero; without any, torch divides inf by inf."""
    inf, nan = float("inf"), float("nan")
    rows = itertools.product((0.0, 2.0, -1.0, inf, -inf, nan), repeat=3)
    x = torch.tensor([row for row in rows if 0.0 in row])
    got, eager = (with_gradients(one, [x]) for one in
                  (jit(lambda x: x.prod(1), strict=True), lambda x: x.prod(1)))  # fmt: skip
    torch.testing.assert_close(got, eager, equal_nan=True)


def test_nan_goes_to_both_sides_of_minimum() -> None:
    nan = float("nan")
    given = [torch.tensor([nan, 1.0, nan, 2.0]), torch.tensor([1.0, nan, nan, 2.0])]
    got, eager = (with_gradients(one, given) for one in (jit(torch.minimum), torch.minimum))
    torch.testing.assert_close(got, eager, equal_nan=True)


@pytest.mark.parametrize("name", ["F.relu", "inplace", "method"])
def test_relu_has_a_gradient_at_nan(name: str) -> None:
    functions = {
        "F.relu": lambda x: F.relu(x * 1.5),
        "inplace": lambda x: F.relu(x * 1.5, inplace=True),
        "method": lambda x: (x * 1.5).relu_(),
    }
    x = torch.tensor([torch.nan, -1.0, 0.0, 2.0, torch.inf])
    jitted = jit(functions[name], strict=True)
    got, eager = (with_gradients(one, [x]) for one in (jitted, functions[name]))
    torch.testing.assert_close(got, eager, equal_nan=True)


def test_a_remainder_of_infinity_has_no_gradient() -> None:
    """torch's is -floor(x / z) of the exact quotient, as its floor division computes it."""
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0, 7.0, 1.0, 1.1], dtype=torch.float64)
    z = torch.tensor([0.5, 0.5, 0.5, torch.inf, -torch.inf, 0.0, 0.1], dtype=torch.float64)
    jitted = jit(torch.remainder, strict=True)
    got, eager = (with_gradients(one, [x, z]) for one in (jitted, torch.remainder))
    torch.testing.assert_close(got, eager, equal_nan=True)


def test_an_infinite_gradient_of_an_exponent_is_multiplied_by_zero() -> None:
    given = [torch.tensor([0.0, 2.0, 0.0]), torch.tensor([1.0, 3.0, -1.0])]
    function = lambda x, z: torch.rsqrt(x**z)  # noqa: E731
    got, eager = (with_gradients(one, given) for one in (jit(function, strict=True), function))
    torch.testing.assert_close(got, eager, equal_nan=True)


def test_a_sign_has_no_gradient_though_infinity_asks_for_it() -> None:
    function = lambda x: torch.sgn(x) * x + torch.sign(x) * float("inf")  # noqa: E731
    given = [torch.tensor([float("inf"), 2.0, 0.0])]
    got, eager = (with_gradients(one, given) for one in (jit(function, strict=True), function))
    torch.testing.assert_close(got, eager, equal_nan=True)


def test_a_gradient_of_rank_0_that_is_not_there() -> None:
    """Thunder makes zeros for it."""
    function = lambda x: torch.var_mean(x, (0,), correction=0)[0] * 2  # noqa: E731
    given = [torch.tensor(3.0)]
    got, eager = (with_gradients(one, given) for one in (jit(function), function))
    torch.testing.assert_close(got, eager)


OF_TWO: dict[str, Function] = {
    "add": torch.add, "atan2": torch.atan2, "clamp": torch.clamp, "clamp_max": torch.clamp_max,
    "copysign": torch.copysign, "div": torch.div, "fmax": torch.fmax, "fmin": torch.fmin,
    "fmod": torch.fmod, "hypot": torch.hypot, "lerp": lambda x, z: torch.lerp(x, z, 0.3),
    "logaddexp": torch.logaddexp, "maximum": torch.maximum, "minimum": torch.minimum,
    "mul": torch.mul, "pow": lambda x, z: abs(x) ** z, "remainder": torch.remainder,
    "rsub": torch.rsub, "sub": lambda x, z: torch.sub(x, z, alpha=2),
    "where": lambda x, z: torch.where(x > z, x, z), "xlogy": lambda x, z: torch.xlogy(x, abs(z)),
    "addcmul": lambda x, z: torch.addcmul(x, x, z), "addcdiv": lambda x, z: torch.addcdiv(z, x, z),
    "masked_fill": lambda x, z: (x * z).masked_fill(x > z, 2.0), "dist": torch.dist,
}  # fmt: skip


@pytest.mark.parametrize("is_first", [True, False])
def test_beside_a_sum_of_no_dimension(is_first: bool) -> None:
    """Thunder takes it for a number on a CPU: it broadcasts nothing, and sums no gradient."""

    def all_of(x: Any) -> Any:
        total = x.sum() * 0.3
        both = (total, x) if is_first else (x, total)
        return torch.cat([one(*both).reshape(-1) for one in OF_TWO.values()])

    x = torch.tensor([[0.7, -1.2, 2.5], [3.1, 0.4, -0.6]])
    got, eager = (with_gradients(one, [x]) for one in (jit(all_of, strict=True), all_of))
    torch.testing.assert_close(got, eager)


def test_masked_fill_by_a_sum_of_no_dimension() -> None:
    def filled(x: Any) -> Any:
        return x.masked_fill(x > 1, x.sum()) * x.amax()

    x = torch.tensor([[0.7, -1.2, 2.5], [3.1, 0.4, -0.6]])
    got, eager = (with_gradients(one, [x]) for one in (jit(filled, strict=True), filled))
    torch.testing.assert_close(got, eager)


IN_PLACE: dict[str, Function] = {
    "clamp": lambda x: (x * 1).clamp_(-2, 2),
    "clamp, one bound": lambda x: torch.roll(x, 1, 0).clamp_(max=2),
    "clamp, read after": lambda x: (y := torch.roll(x, 1, 0)).clamp_(-2, 2) + y,
    "clamp, by tensors": lambda x: (x * 1).clamp_(torch.tensor(-2.0), torch.tensor([2.0])),
    "copysign": lambda x: torch.nan_to_num(x, 1.0, 4.0).copysign_(torch.tensor([-0.0])),
    "lerp": lambda x: (x * 1).lerp_(torch.tensor([4.0]), 0.25),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_written_in_place(name: str) -> None:
    """As the function that makes a new tensor: NaN has no gradient, a value at a bound has one."""
    given = [torch.tensor([float("nan"), 2.0, -2.0, 3.0, float("inf"), 0.5])]
    function = IN_PLACE[name]
    got, eager = (with_gradients(one, given) for one in (jit(function, strict=True), function))
    torch.testing.assert_close(got, eager, equal_nan=True)


INDEX = torch.tensor([2, 0, 2])
APART = torch.tensor([3, 1, 0])
WRITES: dict[str, Function] = {
    "index_add": lambda x, z: torch.index_add(x, 0, INDEX, z),
    "index_add, alpha": lambda x, z: torch.index_add(x, 0, INDEX, z, alpha=3),
    "index_put": lambda x, z: torch.index_put(x, (APART,), z),
    "index_put, accumulate": lambda x, z: torch.index_put(x, (INDEX,), z, True),
    "index_put, one row": lambda x, z: torch.index_put(x, (APART,), z[0]),
    "index_put, two indices": lambda x, z: torch.index_put(x, (APART, INDEX), z[:, 0]),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_at_computed_places(name: str) -> None:
    given = [torch.randn(4, 3), torch.randn(3, 3)]
    got, eager = (with_gradients(one, given) for one in (jit(WRITES[name]), WRITES[name]))
    torch.testing.assert_close(got, eager)
