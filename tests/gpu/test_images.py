# SPDX-License-Identifier: Apache-2.0
"""Convolutions in channels-last order on a CUDA device: weights that change their order together,
gradients in one call of torch, an upsampling and max pooling inside of regions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from thunder import last_traces
from torch import nn

import thunder_fuser
from thunder_fuser.explain import kernels as kernels_of
from thunder_fuser.explain.jitted import jit

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


class Level(nn.Module):
    """Of a U-Net: half the size and back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32)
        self.down, self.batch = nn.Conv2d(32, 48, 3, 2, 1), nn.BatchNorm2d(48)
        self.pixel = nn.Conv2d(48, 32, 1, bias=False)
        self.up = nn.Conv2d(64, 16, (3, 5), padding=(1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(self.first(x)))
        y = self.pixel(F.relu(self.batch(self.down(x))))
        y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.up(torch.cat([x, y], 1))


def model(dtype: torch.dtype = torch.bfloat16) -> tuple[Level, torch.Tensor]:
    torch.manual_seed(0)
    return Level().to("cuda", dtype), torch.randn(4, 16, 32, 24, device="cuda").to(dtype)


def gradients(module: nn.Module, call: Any, x: torch.Tensor) -> list[torch.Tensor]:
    result = call(x)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(7)).to(result)
    return [result, *torch.autograd.grad(result, [*module.parameters()], weights)]


def doubled(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    double = copy.deepcopy(module).double()
    return gradients(double, double, x.double())


def off(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The error of all tensors together, each of its own size."""
    errors = [(a - b).norm() / b.norm() for a, b in zip(found, exact, strict=True)]
    return float(torch.stack(errors).square().mean().sqrt())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels last"])
def test_a_step(dtype: torch.dtype, last: bool) -> None:
    module, x = model(dtype)
    if last:
        module = module.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    eager = copy.deepcopy(module)
    jitted = jit(module, strict=True)
    for _ in range(2):
        found, expected = gradients(module, jitted, x), gradients(eager, eager, x)
        exact = doubled(eager, x)
        assert off(found[:1], exact[:1]) <= 1.2 * off(expected[:1], exact[:1])
        assert off(found[1:], exact[1:]) <= 1.2 * off(expected[1:], exact[1:])
        assert [one.stride() for one in found] == [one.stride() for one in expected]
    copies = [
        len(bsym.subsymbols) for bsym in last_traces(jitted)[-1].bound_symbols
        if bsym.subsymbols and all(part.sym.name == "stride_order" for part in bsym.subsymbols)
    ]  # fmt: skip
    assert copies == ([] if last else [3])


@pytest.mark.parametrize("graphs", [False, True])
def test_weights_that_change_in_a_way_that_nobody_sees(graphs: bool) -> None:
    module, x = model()
    module.eval()
    jitted = thunder_fuser.jit(module, fuser_strict=True, fuser_cuda_graphs=graphs)
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(jitted(x), module(x), rtol=3e-2, atol=3e-2)
            for parameter in module.parameters():
                parameter.data.mul_(-1.1)


class Pooled(nn.Module):
    """The beginning of a ResNet, and a pooling by tiles."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.second, self.third = nn.Conv2d(32, 24, 1), nn.Conv2d(32, 24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        return F.max_pool2d(self.second(y) + self.third(y), 2, ceil_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("graphs", [False, True])
def test_max_pooling(dtype: torch.dtype, graphs: bool) -> None:
    torch.manual_seed(0)
    module = Pooled().to("cuda", dtype)
    x = torch.randn(4, 16, 38, 30, device="cuda").to(dtype)
    eager = copy.deepcopy(module)
    jitted = thunder_fuser.jit(module, fuser_strict=True, fuser_cuda_graphs=graphs)
    for _ in range(4):
        found, expected = gradients(module, jitted, x), gradients(eager, eager, x)
        exact = doubled(eager, x)
        assert off(found[:1], exact[:1]) <= 1.2 * off(expected[:1], exact[:1]) + 1e-6
        if dtype is torch.float32:  # in bfloat16, elements that are nearly equal are equal
            assert off(found[1:], exact[1:]) <= 1.2 * off(expected[1:], exact[1:]) + 1e-5
        del found
    assert sum("isnan" in kernel.ops for kernel in kernels_of(jitted)) == 2  # both poolings


@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "window", [(3, 2, 1), (2,), (3, 1, 1), ((2, 3), (1, 2), (1, 0))], ids=str
)
def test_windows(window: tuple[Any, ...], dtype: torch.dtype, last: bool) -> None:
    """Few values, so that windows have equal elements: the gradients say which one was taken."""
    x = torch.randint(-4, 4, (3, 24, 17, 31), device="cuda").to(dtype)
    x[0, 0, 0, 3], x[1] = float("nan"), -float("inf")
    x = (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()
    jitted = jit(lambda x: F.max_pool2d(x, *window), strict=True)
    y, expected = jitted(x), F.max_pool2d(x, *window)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    g = torch.randint(-8, 8, y.shape, device="cuda").to(dtype)
    found, right = (torch.autograd.grad(one, x, g)[0] for one in (y, expected))
    assert found.stride() == right.stride()
    # Torch's channels-last kernel gives the gradients of windows of -inf to the image's first
    # element, its other kernels to the first one of the window.
    rows = x.detach().contiguous().requires_grad_()
    assert torch.equal(found, torch.autograd.grad(F.max_pool2d(rows, *window), rows, g)[0])
