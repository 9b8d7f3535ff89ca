# SPDX-License-Identifier: Apache-2.0
"""Kernels of a CUDA graph that start while the ones before them run: the same bits, each time."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import thunder_fuser
from benchmarks.decode.tokens import Model, make
from thunder_fuser.options import options

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]
STEPS = 40


def chain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each kernel reads what the one before it has written, and much of it late."""
    for step in range(STEPS):
        x = F.rms_norm(x, x.shape[-1:], weight) + x.sum(0, keepdim=True) * 1e-3
        x = torch.where(x > step, x.flip(0), x.roll(1, -1))
    return x


def written(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A later kernel writes what earlier ones read, and torch's run between them."""
    total = x.clone()
    for step in range(STEPS):
        y = F.softmax(total * weight, -1)
        total.mul_(0.5).add_(y.sum(0) + step)
        total = total + (y @ y.t()).mean(-1, keepdim=True)
    return total


@pytest.mark.parametrize("function", [chain, written])
@pytest.mark.parametrize("sizes", [(3, 64), (700, 1000), (64, 40000)], ids=str)
def test_the_same_bits(function: Callable[..., torch.Tensor], sizes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    one_by_one = thunder_fuser.jit(function)
    early = thunder_fuser.jit(function, fuser_cuda_graphs=True)
    in_turn = thunder_fuser.jit(
        function, fuser_cuda_graphs=True, fuser_dependent_launches=False
    )
    with torch.no_grad():
        for _ in range(6):
            values = torch.randn(sizes, device="cuda"), torch.rand(sizes[1], device="cuda")
            expected = one_by_one(*values).clone()
            for graphs in (early, in_turn):
                assert torch.equal(graphs(*values), expected)


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_tokens(batch: int) -> None:
    """Products, norms and caches of a Llama: the compiler moved loads before the wait there."""
    device = torch.device("cuda")
    model = make(Model(2, 2048, 32, 8, 8192, 4096, 512), batch, device)
    early = thunder_fuser.jit(model, fuser_cuda_graphs=True)
    in_turn = thunder_fuser.jit(model, fuser_cuda_graphs=True, fuser_dependent_launches=False)
    with torch.no_grad():
        for place in range(STEPS):
            tokens = torch.randint(4096, (batch, 1), device=device)
            values = tokens, torch.tensor([place], device=device)
            assert torch.equal(early(*values), in_turn(*values))


class Changing(nn.Module):
    """The kernel in front of a product writes its matrix, in place or as a result."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(width, width) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in range(STEPS):
            x = F.rms_norm(x, x.shape[-1:])
            self.weight.mul_(0.97).add_(x.mean() * 0.01)
            x = F.linear(x, self.weight) + x
            x = F.linear(F.rms_norm(x, x.shape[-1:]), (self.weight + step * 1e-3).relu_())
        return x


@pytest.mark.parametrize("width", [64, 1024])
def test_a_matrix_that_is_written(width: int) -> None:
    """A product of several rows reads its matrix before it waits, but not such a one."""
    torch.manual_seed(0)
    model = Changing(width).to("cuda", torch.bfloat16)
    models = [copy.deepcopy(model) for _ in range(2)]
    jitted = [
        thunder_fuser.jit(model, fuser_cuda_graphs=True, fuser_dependent_launches=early)
        for model, early in zip(models, (True, False), strict=True)
    ]
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(8, width, device="cuda", dtype=torch.bfloat16)
            y, expected = (run(x).clone() for run in jitted)
            assert torch.equal(y, expected) and y.isfinite().all()
            assert torch.equal(models[0].weight, models[1].weight)


def test_a_graph_of_torch() -> None:
    """Also in graphs that the user captures, with the option of the process."""
    x, weight = torch.randn(64, 1000, device="cuda"), torch.rand(1000, device="cuda")
    jitted = thunder_fuser.jit(chain)
    with torch.no_grad():
        expected = jitted(x, weight).clone()
        for early in (True, False):
            graph = torch.cuda.CUDAGraph()
            with options(dependent_launches=early), torch.cuda.graph(graph):
                result = jitted(x, weight)
            for _ in range(3):
                result.fill_(float("nan"))
                graph.replay()
                assert torch.equal(result, expected)
