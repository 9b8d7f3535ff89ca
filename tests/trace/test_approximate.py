# SPDX-License-Identifier: Apache-2.0
"""Which functions of a trace with gradients are short on a GPU: texts of its kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser import FusionDefinition
from thunder_fuser.explain.jitted import fusions_of, jit
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


def exact_gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


def erf(x: torch.Tensor) -> torch.Tensor:
    """Small results keep their digits."""
    return torch.erf(x) * 0.5


def inverse(x: torch.Tensor) -> torch.Tensor:
    """The divisor may be too small for an approximate reciprocal."""
    return 1 / x + torch.reciprocal(x) + x / (x + 1)


def centred(x: torch.Tensor) -> torch.Tensor:
    return (x - x.float().mean(-1, keepdim=True)).to(x.dtype)


def thirds(x: torch.Tensor) -> torch.Tensor:
    return x / 3.5


def halves(x: torch.Tensor) -> torch.Tensor:
    """The reciprocal of so small a number is no float with all digits."""
    return x / 1e-39


def bent(x: torch.Tensor) -> torch.Tensor:
    """Small results keep their digits."""
    return torch.tanh(x) * 3


def soft_cap(x: torch.Tensor) -> torch.Tensor:
    """An error of the exponent is a relative one of the result."""
    return torch.exp(torch.tanh(x.float() / 30.0) * 30.0 - x.float().sum() - 2.0).to(x.dtype)


def large_cap(x: torch.Tensor) -> torch.Tensor:
    """Its tanh would add an error of 2^-15 to the exponent."""
    return torch.exp(torch.tanh(x.float()) * 300.0 - 300.0).to(x.dtype)


def seen_cap(x: torch.Tensor) -> torch.Tensor:
    """Not only an exp reads it."""
    capped = torch.tanh(x.float()) * 30.0
    return (torch.exp(capped - 3.0) + capped).to(x.dtype)


SHORT = {
    "gelu": (gelu, BF16, "short_tanh("),
    "exact gelu": (exact_gelu, BF16, "short_erf("),
    "silu": (silu, BF16, "short_exp("),
    "sigmoid": (silu, BF16, "approximate_reciprocal("),
    "number": (thirds, BF16, " * 0.2857143"),
    "softmax": (softmax, BF16, "short_exp("),
    "soft cap": (soft_cap, BF16, "short_tanh("),
    "loss": (loss, F32, "short_exp("),
    "loss of bf16": (loss, BF16, "short_exp("),
}
FULL = {
    "gelu": (gelu, F32, "short_tanh("),
    "silu": (silu, F32, "short_exp("),
    "exact gelu": (exact_gelu, F32, "short_erf("),
    "sigmoid": (silu, F32, "approximate_reciprocal("),
    "erf": (erf, BF16, "short_erf("),
    "inverse": (inverse, BF16, "approximate_reciprocal("),
    "number": (thirds, F32, " * 0.2857143"),
    "small number": (halves, BF16, " * inf"),
    "softmax": (softmax, F32, "short_exp("),
    "wide softmax": (wide_softmax, BF16, "short_exp("),
    "loss of others": (loss_of_others, F32, "short_exp("),
    "tanh": (bent, BF16, "short_tanh("),
    "soft cap": (soft_cap, F32, "short_tanh("),
    "large cap": (large_cap, BF16, "short_tanh("),
    "seen cap": (seen_cap, BF16, "short_tanh("),
    "mean": (centred, BF16, "quotient("),
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


def _quantized(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    steps = x / (x.abs().amax(-1, keepdim=True) / 41)
    return torch.floor(steps), (x / x[:, :1]).int(), torch.trunc(x / x[:, 1:2]), steps.round()


@pytest.mark.parametrize("repeatable", [False, True])
def test_whole_quotients_are_whole_where_a_fraction_is_dropped(repeatable: bool) -> None:
    """A shared divisor gives 1.9999999 for 82 / 41, whose integer part would be 1."""
    rows = torch.rand(64, 1, generator=torch.Generator().manual_seed(0)) + 0.5
    x = torch.cat([rows, rows, torch.arange(1, 42) * rows], 1)
    found = jit(_quantized, strict=True, emulate=True, repeatable=repeatable)(x)
    for ours, expected in zip(found, _quantized(x), strict=True):
        assert torch.equal(ours, expected)


def test_the_gradient_of_a_remainder_by_itself() -> None:
    x = (torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 7).requires_grad_()
    jit(torch.fmod, strict=True, emulate=True)(x, x).sum().backward()
    assert not x.grad.any()


def test_a_short_erf_is_as_exact_as_a_number_near_1() -> None:
    x = torch.cat([torch.linspace(-6, 6, 100001), torch.tensor([math.inf, -math.inf])])
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.erf(fd.from_pytorch(x), short=True))
    (found,) = fd.execute([x], target="emulator")
    error = (found.double() - torch.erf(x.double())).abs()
    assert error.max() < 4e-7 and error[x.abs() > 2].max() < 9e-8
    assert found[-2:].tolist() == [1.0, -1.0]
    (lost,) = fd.execute([torch.full_like(x, math.nan)], target="emulator")
    assert lost.isnan().all()
