# SPDX-License-Identifier: Apache-2.0
"""A module and its jitted form -> the error of its output and of each gradient, beside eager's.

Errors are root mean squares against the same module in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

FACTOR = 1.2
FLOOR_ULPS = 2

Sample = tuple[torch.Tensor, torch.Tensor]  # the input, and the gradient of the output


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One output or gradient: RMS error of the fused and of the eager one, and the floor."""

    name: str
    fused: float
    eager: float
    floor: float

    @property
    def limit(self) -> float:
        """1.2 times eager's error, or 2 ulp of the dtype at the value's RMS size."""
        return max(FACTOR * self.eager, self.floor)

    @property
    def passes(self) -> bool:
        return self.fused <= self.limit


def accuracy(
    module: nn.Module, jitted: Callable[..., Any], samples: Sequence[Sample]
) -> list[Accuracy]:
    """The errors over all samples together. More samples steady the figures of small tensors."""
    double = copy.deepcopy(module).double()
    runs = [
        (
            results(double, double, x.double(), gradient.double()),
            results(module, module, x, gradient),
            results(jitted, module, x, gradient),
        )
        for x, gradient in samples
    ]
    return [_row(name, runs) for name in runs[0][0]]


def results(
    function: Callable[..., Any], module: nn.Module, x: torch.Tensor, gradient: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The output, the gradient of the input, and that of each parameter, by name."""
    parameters = dict(module.named_parameters())
    x = x.clone().requires_grad_()
    out = function(x)
    found = torch.autograd.grad(out, [x, *parameters.values()], gradient)
    return dict(zip(("output", "d input", *(f"d {n}" for n in parameters)),
                    (out.detach(), *found), strict=True))


Run = tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]


def _row(name: str, runs: Sequence[Run]) -> Accuracy:
    dtype = runs[0][1][name].dtype
    exact, eager, fused = (torch.stack([run[at][name].double() for run in runs]) for at in range(3))
    floor = FLOOR_ULPS * _ulp(_rms(exact), dtype)
    return Accuracy(name, _rms(fused - exact), _rms(eager - exact), floor)


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def _ulp(size: float, dtype: torch.dtype) -> float:
    """The distance to the next number of the dtype above a size.

    >>> _ulp(1.5, torch.bfloat16)
    0.0078125
    """
    if size == 0.0:
        return torch.finfo(dtype).smallest_normal
    return float(torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(size)))
