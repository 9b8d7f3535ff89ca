# SPDX-License-Identifier: Apache-2.0
"""Programs that ask for the type of a tensor take the branch that they take in eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.explain.jitted import jit

KINDS = {torch.float32: 3.0}
DOORS: dict[str, Callable[[Any], Any]] = {
    "thunder.jit": lambda f: thunder.jit(f, executors=[fuser]),
    "thunder_fuser.jit": thunder_fuser.jit,
}
CONDITIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], bool]] = {
    "==": lambda x, y: x.dtype == torch.float32,
    "== from the left": lambda x, y: torch.float32 == x.dtype,
    "!=": lambda x, y: x.dtype != torch.float32,
    "is": lambda x, y: x.dtype is torch.float32,
    "in": lambda x, y: x.dtype in (torch.float16, torch.float32),
    "a dictionary": lambda x, y: KINDS.get(x.dtype, 2.0) == 3.0,
    "a computed tensor": lambda x, y: (x * 2).dtype == torch.float32,
    "another tensor": lambda x, y: x.dtype == y.dtype,
    "bools": lambda x, y: (x > 0).dtype == torch.bool,
    "an attribute": lambda x, y: x.dtype.is_floating_point,
    "a name": lambda x, y: str(x.dtype) == "torch.float32",
    "the default": lambda x, y: x.dtype == torch.get_default_dtype(),
    "a limit": lambda x, y: torch.finfo(x.dtype).bits == 32,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", CONDITIONS)
def test_a_branch(name: str, door: str) -> None:
    condition = CONDITIONS[name]

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y if condition(x, y) else x - y

    jitted = DOORS[door](function)
    for dtype in (torch.float32, torch.bfloat16):
        x, y = torch.tensor([1.0], dtype=dtype), torch.tensor([2.0])
        assert torch.equal(jitted(x, y), function(x, y))


@pytest.mark.parametrize("door", DOORS)
def test_a_type_is_an_argument(door: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.zeros(2, dtype=x.dtype)
        return y.to(x.dtype), made + 1, torch.ones_like(y, dtype=x.dtype), y.type_as(x)

    x, y = torch.ones(2, dtype=torch.float16), torch.tensor([1.5, 2.5])
    for ours, eager in zip(DOORS[door](function)(x, y), function(x, y), strict=True):
        assert ours.dtype is eager.dtype
        assert torch.equal(ours, eager)


LITERALS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "floats": lambda x: torch.tensor([70000.0]) * x,
    "floats and integers": lambda x: torch.tensor([[1, 2.5], [3, True]])[1:] * x[:2],
    "integers": lambda x: torch.tensor([1, 2, 3]) * x,
    "bools": lambda x: torch.tensor([True, False, True]) * x,
    "a number": lambda x: torch.tensor(0.1) * 2 + x,
    "a range of floats": lambda x: torch.arange(0, 70000, 30000.5) * x,
    "a given type": lambda x: torch.tensor([1, 2, 3], dtype=torch.float16) * x,
    "masked bools": lambda x: (x > 0).masked_fill(x > 1, 0),
    "masked numbers": lambda x: x.masked_fill(x > 1, 0),
    "ldexp": lambda x: torch.ldexp(x, torch.tensor([1, 20, 3])),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("name", LITERALS)
def test_tensors_of_literals(name: str, dtype: torch.dtype) -> None:
    """They do not give way to other types, with gradients and without."""
    function = LITERALS[name]
    for needs_gradient in {False, dtype.is_floating_point}:
        x = torch.tensor([1, 2, 3], dtype=dtype).div(64).to(dtype).requires_grad_(needs_gradient)
        got, right = jit(function)(x), function(x)
        assert got.dtype is right.dtype
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("name", ["floats", "a number"])
def test_literals_have_the_default_type(name: str) -> None:
    function = LITERALS[name]
    jitted, before = jit(function), torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            got, right = jitted(torch.arange(3)), function(torch.arange(3))
            assert got.dtype is right.dtype is dtype
            assert torch.equal(got, right)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("row", [-1, -3, 2, None])
def test_the_padding_row_of_an_embedding(row: int | None, dtype: torch.dtype) -> None:
    found = []
    for wrap in (lambda function: function, jit):
        w = torch.arange(10.0).view(5, 2).requires_grad_()
        lookup = wrap(lambda i, w: torch.nn.functional.embedding(i, w, padding_idx=row))
        lookup(torch.tensor([[0, 4], [2, 4]], dtype=dtype), w).exp().sum().backward()
        found.append(w.grad)
    torch.testing.assert_close(*found)
