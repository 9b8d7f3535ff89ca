# SPDX-License-Identifier: Apache-2.0
"""Results and gradients of a function, held against eager torch and float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def with_gradients(
    function: Callable[..., Any], values: Sequence[Any], fixed: Sequence[int] = ()
) -> list[torch.Tensor]:
    """The result, then the gradient of each value that is made of floats and not fixed."""
    args = [
        v.clone().requires_grad_(v.is_floating_point() and at not in fixed)
        for at, v in enumerate(values)
    ]
    result = function(*args)
    torch.manual_seed(1)
    seed = torch.randn(result.shape).to(result)
    floats = [arg for arg in args if arg.requires_grad]
    gradients = torch.autograd.grad(result, floats, seed)
    return [result.detach(), *gradients]


def rms(values: torch.Tensor) -> float:
    return float(values.double().square().mean().sqrt())


def assert_as_exact_as_eager(
    got: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    ulps: float = 2,
) -> None:
    """No more than 1.2 times eager's RMS error, or 2 ulp of the largest value."""
    for at, (mine, usual, right) in enumerate(zip(got, eager, exact, strict=True)):
        assert (mine.dtype, mine.shape) == (usual.dtype, usual.shape)
        floor = ulps * torch.finfo(mine.dtype).eps * float(right.abs().max())
        allowed = max(1.2 * rms(usual - right), floor)
        found = rms(mine - right)
        assert found <= allowed, f"result {at}: {found:.3g} of {allowed:.3g}, {mine} for {right}"
