# SPDX-License-Identifier: Apache-2.0
"""A module and its jitted form -> the error of its output and of each gradient, beside eager's.

Errors are root mean squares against the same module in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

FACTOR = 1.2
FLOOR_ULPS = 2

Sample = tuple[torch.Tensor, torch.Tensor]  # the input, and the gradient of the output
Results = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One output or gradient: the RMS errors of the fused and the eager one, and the floor."""

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
    """The errors over all samples together. More samples make those of small tensors steadier."""
    double = copy.deepcopy(module).double()
    exact = [results(double, double, x.double(), gradient.double()) for x, gradient in samples]
    eager = [results(module, module, *sample) for sample in samples]
    fused = [results(jitted, module, *sample) for sample in samples]
    return [_of(name, exact, eager, fused) for name in exact[0]]


def results(
    function: Callable[..., Any], module: nn.Module, x: torch.Tensor, gradient: torch.Tensor
) -> Results:
    """The output, the gradient of the input, and that of each parameter, by name."""
    parameters = dict(module.named_parameters())
    x = x.clone().requires_grad_()
    out = function(x)
    gradients = torch.autograd.grad(out, [x, *parameters.values()], gradient)
    names = ["output", "d input", *(f"d {name}" for name in parameters)]
    return dict(zip(names, (out.detach(), *gradients), strict=True))


def _of(name: str, *runs: Sequence[Results]) -> Accuracy:
    """The errors of one result, from the runs of the exact, the eager and the fused module."""
    dtype = runs[1][0][name].dtype
    exact, eager, fused = (torch.stack([values[name].double() for values in run]) for run in runs)
    floor = FLOOR_ULPS * _ulp(_rms(exact), dtype)
    return Accuracy(name, _rms(fused - exact), _rms(eager - exact), floor)


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def _ulp(size: float, dtype: torch.dtype) -> float:
    """The distance from a size to the next larger number of the dtype.

    >>> _ulp(1.5, torch.bfloat16)
    0.0078125
    """
    if size == 0.0:
        return torch.finfo(dtype).smallest_normal
    return float(torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(size)))
