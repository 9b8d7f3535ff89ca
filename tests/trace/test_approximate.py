# SPDX-License-Identifier: Apache-2.0
"""Which exps and tanhs of a trace with gradients are short on a GPU: texts of its kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser.executors.traces import fusions_of, jit
from thunder_fuser.explain.programs import compiled

Function = Callable[[torch.Tensor], torch.Tensor]
BF16, F32 = torch.bfloat16, torch.float32


def texts(function: Function, dtype: torch.dtype, **given: str | bool) -> str:
    """The kernels of a function and its gradient, without the prelude."""
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    jitted = jit(function, strict=True, **{"emulate": True, **given})
    result = jitted(x)
    result.backward(torch.ones_like(result))
    programs = [program for one in fusions_of(jitted) for program in compiled(one)]
    sources = [source.text for program in programs for _, source in program.kernels]
    return "\n".join(text[text.rindex('extern "C"') :] for text in sources)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def wide_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.float(), -1)


def loss(x: torch.Tensor) -> torch.Tensor:
    """Its result is a float; the exp of its forward is only summed."""
    return F.cross_entropy(x.float(), torch.arange(6))


def loss_of_others(x: torch.Tensor) -> torch.Tensor:
    """Summed, but not beside the largest of its own row."""
    return torch.exp(x.float() - x.float().amax(0, keepdim=True)).sum(-1)


def silu(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


def inverse(x: torch.Tensor) -> torch.Tensor:
    return 1 / x


def bent(x: torch.Tensor) -> torch.Tensor:
    """Small results keep their digits."""
    return torch.tanh(x) * 3


SHORT = {
    "gelu": (gelu, BF16, "short_tanh("),
    "silu": (silu, BF16, "short_exp("),
    "1 / x of silu": (silu, BF16, "short_reciprocal("),
    "softmax": (softmax, BF16, "short_exp("),
    "loss": (loss, F32, "short_exp("),
    "loss of bf16": (loss, BF16, "short_exp("),
}
FULL = {
    "gelu": (gelu, F32, "short_tanh("),
    "silu": (silu, F32, "short_exp("),
    "1 / x of silu": (silu, F32, "short_reciprocal("),
    "1 / x": (inverse, F32, "short_reciprocal("),
    "softmax": (softmax, F32, "short_exp("),
    "wide softmax": (wide_softmax, BF16, "short_exp("),
    "loss of others": (loss_of_others, F32, "short_exp("),
    "tanh": (bent, BF16, "short_tanh("),
}


@pytest.mark.parametrize("name", SHORT)
def test_what_may_be_short(name: str) -> None:
    function, dtype, call = SHORT[name]
    assert call in texts(function, dtype)


@pytest.mark.parametrize("name", FULL)
def test_what_may_not(name: str) -> None:
    function, dtype, call = FULL[name]
    assert call not in texts(function, dtype)


def test_all_copies_are() -> None:
    """Made again for the backward or not, each exp of the trace has one form."""
    for policy in ("none", "time", "memory"):
        made = texts(silu, BF16, rematerialization=policy)
        assert "short_exp(" in made and "expf(" not in made, policy


def test_a_cpu_has_no_short_form() -> None:
    assert "short_" not in texts(gelu, BF16, emulate=False)


def test_quotients_share_a_divisor() -> None:
    assert "quotient(" in texts(softmax, F32)
