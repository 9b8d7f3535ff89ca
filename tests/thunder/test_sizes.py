# SPDX-License-Identifier: Apache-2.0
"""A module that is called with other sizes: Thunder traces again, and kernels are shared."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser.explain import kernels
from thunder_fuser.explain.jitted import jit

WIDTH = 64


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))
        return torch.softmax(x, -1) * x.mean(1, keepdim=True)


def _texts(jitted: object) -> set[str]:
    return {kernel.full_source for kernel in kernels(jitted)}


def test_other_lengths_need_no_new_kernels() -> None:
    model = Block()
    jitted, first = jit(model, strict=True), set[str]()
    for length in (16, 32, 48, 64):
        x = torch.randn(4, length, WIDTH, requires_grad=True)
        y = torch.randn(4, length, WIDTH, requires_grad=True)
        y.data.copy_(x.data)
        found, expected = jitted(x), model(y)
        found.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
        first = first or _texts(jitted)
    assert _texts(jitted) == first and len(first) > 3


@pytest.mark.parametrize("length", [33, 9])
def test_an_odd_length_needs_few(length: int) -> None:
    """Where the number of elements is no multiple of a thread's chunk there is a guard.

    A sum of at most 8 is additions instead (presegment/unroll_short_sums.py), in other kernels.
    """
    model = Block()
    jitted = jit(model, strict=True)
    jitted(torch.randn(4, 32, WIDTH))
    first = _texts(jitted)
    x = torch.randn(4, length, WIDTH)
    torch.testing.assert_close(jitted(x), model(x))
    assert len(_texts(jitted) - first) <= 1
