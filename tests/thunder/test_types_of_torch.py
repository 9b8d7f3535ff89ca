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
