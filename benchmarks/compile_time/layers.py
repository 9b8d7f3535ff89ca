# SPDX-License-Identifier: Apache-2.0
"""The function of NVIDIA/Fuser#2916: the residual stream of a transformer, of any depth.

    x = tanh(x) @ attention + x;  x = tanh(x) @ mlp + x      N times

The matmuls are torch's, so each addition and the tanh after it are one region. The numbers are
small, for what is measured is the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

ROWS, COLUMNS = 32, 64

Function = Callable[..., Any]


def residual(x: Any, weights: Sequence[Any]) -> Any:
    """x: [rows, columns]; weights: two of [columns, columns] for each layer.

    By index, for Thunder's interpreter takes four times as long to follow zip and slices.
    """
    for at in range(0, len(weights), 2):
        x = torch.tanh(x) @ weights[at] + x
        x = torch.tanh(x) @ weights[at + 1] + x
    return x


def other(x: Any, weights: Sequence[Any]) -> Any:
    """A function with other kernels, to warm up with: imports, compilers, Thunder's own tables."""
    return torch.sin(x) @ weights[0] * 2


def arguments(layers: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The same numbers on every run; all of them get gradients."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, generator=random)
    weights = [
        torch.randn(COLUMNS, COLUMNS, generator=random) / COLUMNS for _ in range(2 * layers)
    ]
    return x.requires_grad_(), [weight.requires_grad_() for weight in weights]


def step(function: Function, layers: int) -> list[torch.Tensor]:
    """One training step: the result, then the gradient of its sum by each argument."""
    x, weights = arguments(layers)
    result = function(x, weights)
    result.sum().backward()
    return [result.detach(), *(one.grad for one in (x, *weights))]  # type: ignore[list-item]
