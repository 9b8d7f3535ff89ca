# SPDX-License-Identifier: Apache-2.0
"""What policies make of Thunder's traces: bits of the gradients, bytes kept, ops made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser.executors.fuser import fuser
from thunder_fuser.executors.traces import jit
from thunder_fuser.explain.accuracy import results
from thunder_fuser.explain.blocks import SMALL, make_block, make_input
from thunder_fuser.rematerialization.apply import Remade

POLICIES = ("none", "time", "memory", "budget(0.5)")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def cut_of(jitted: Any, *args: torch.Tensor) -> Remade:
    """What the fuser decided for a function that it compiles now."""
    jitted(*args)
    assert fuser.last_cut is not None
    return fuser.last_cut


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ("gpt2", "llama"))
def test_bits_of_blocks(name: str, dtype: str) -> None:
    """Output and gradients are equal under every policy, bytes are in the order of the policies."""
    block = make_block(name, SMALL, DTYPES[dtype], "cpu")
    sample = make_input(SMALL, DTYPES[dtype], "cpu")
    wanted = None
    bytes = {}
    for policy in POLICIES:
        found = results(jit(block, strict=True, rematerialization=policy), block, *sample)
        assert fuser.last_cut is not None
        bytes[policy] = fuser.last_cut.plan.bytes
        wanted = wanted or found
        for key, value in wanted.items():
            assert torch.equal(found[key], value), (policy, key)
    assert bytes["memory"] <= bytes["budget(0.5)"] <= bytes["time"] < bytes["none"]


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = F.dropout(F.gelu(x * w, approximate="tanh"), 0.25)
    hidden = torch.exp(-hidden) @ w
    return F.dropout(torch.sigmoid(hidden) * hidden + x, 0.5)


def gradients(
    function: Callable[..., torch.Tensor], dtype: torch.dtype, **given: Any
) -> list[torch.Tensor]:
    """The result and the gradients of two seeded 24x24 matrices, with seeded random numbers."""
    generator = torch.Generator().manual_seed(5)
    args = [torch.randn(24, 24, generator=generator).to(dtype).requires_grad_() for _ in range(2)]
    torch.manual_seed(6)
    result = jit(function, strict=True, **given)(*args)
    result.backward(torch.ones_like(result))
    return [result, *(arg.grad for arg in args)]


@pytest.mark.parametrize("emulate", (False, True), ids=("cpu", "emulator"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_with_dropout(dtype: str, emulate: bool) -> None:
    wanted = gradients(chain, DTYPES[dtype], emulate=emulate, rematerialization="none")
    for policy in (*POLICIES[1:], "save_only()"):
        found = gradients(chain, DTYPES[dtype], emulate=emulate, rematerialization=policy)
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert torch.equal(one, other), (policy, at)
