# SPDX-License-Identifier: Apache-2.0
"""Vectors that regions read with more axes, and whose gradients views would give back unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser.executors.pipeline import REGION_PASSES
from thunder_fuser.executors.regions.dead_views import drop_identity_views
from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.trace.prepared import Pass

Function = Callable[..., torch.Tensor]
EMULATE = pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])
CHANNELS = 6
VIEWS = ("reshape", "unsqueeze", "expand", "shallow_copy", "permute", "squeeze")


def scaled(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x * w.reshape(1, CHANNELS, 1, 1) + b.view(CHANNELS, 1, 1)).relu()


def group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.group_norm(x, 2, w, b))


def two_norms(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """In two regions, each of which reads the vectors."""
    y = group_norm(x, w, b)
    return group_norm(y @ y.mT, w, b)


def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.conv2d(x, torch.ones_like(x)[:1].repeat(CHANNELS, 1, 1, 1), b)) * w.sum()


def arguments(
    shape: tuple[int, ...] = (2, CHANNELS, 4, 5), dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    sizes: list[tuple[int, ...]] = [shape, (CHANNELS,), (CHANNELS,)]
    made = [torch.randn(size, generator=generator) for size in sizes]
    return [one.to(dtype).requires_grad_() for one in made]


def gradients(function: Function, args: list[torch.Tensor]) -> list[torch.Tensor]:
    result = function(*args)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(7))
    return [result, *torch.autograd.grad(result, args, weights.to(result.dtype))]


def views(jitted: Any) -> list[str]:
    """The views that torch makes in the forward and the backward."""
    names = [bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols]
    return [name for name in names if any(view in name for view in VIEWS)]


@EMULATE
@pytest.mark.parametrize("function", [scaled, group_norm, two_norms, convolved])
def test_values_and_strides(function: Function, emulate: bool) -> None:
    args = arguments()
    jitted = jit(function, strict=True, emulate=emulate)
    for one, other in zip(gradients(jitted, args), gradients(function, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert one.stride() == other.stride()


def test_gradients_go_through_no_views() -> None:
    """Before: six views for each of them."""
    jitted = jit(scaled, strict=True)
    gradients(jitted, arguments())
    assert {*views(jitted)} <= {"reshape", "torch_prims_reshape_impl"} and len(views(jitted)) <= 4
    apart = jit(scaled, strict=True, skip_passes="drop_identity_views")
    gradients(apart, arguments())
    assert len(views(apart)) > len(views(jitted)) + 4


@EMULATE
@pytest.mark.parametrize("shape", [(0, CHANNELS, 4, 5), (1, CHANNELS, 1, 1), (3, CHANNELS, 0, 2)])
def test_sizes_of_0_and_1(shape: tuple[int, ...], emulate: bool) -> None:
    args = arguments(shape)
    jitted = jit(scaled, strict=True, emulate=emulate)
    torch.testing.assert_close(gradients(jitted, args), gradients(scaled, args))


@EMULATE
def test_a_strided_vector(emulate: bool) -> None:
    x, w, b = arguments()
    whole = torch.stack([w, b], 1).detach()

    def function(x: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        return scaled(x, whole[:, 0], whole[:, 1])

    def strided(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return scaled(x, w, b)

    jitted = jit(strided, strict=True, emulate=emulate)
    found = jitted(x, whole[:, 0], whole[:, 1])
    torch.testing.assert_close(found, function(x, whole))


def of_two(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Reshapes of several operands or results."""
    columns, rows = torch.atleast_2d(w, b)
    return x * w.view_as(x[:1, :, :1, :1]) + (columns * rows).sum()


@EMULATE
def test_reshapes_of_several_operands(emulate: bool) -> None:
    args = arguments()
    jitted = jit(of_two, strict=True, emulate=emulate)
    torch.testing.assert_close(gradients(jitted, args), gradients(of_two, args))


# ---------------------------------------------------------------------------------- what stays


def turned(x: torch.Tensor) -> torch.Tensor:
    """As many elements as before, in another order."""
    return (x * 2.0).reshape(2, 3).permute(1, 0).reshape(6)


def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2.0
    return y, y.unsqueeze(0).reshape(6)


def two_views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2.0
    return y.unsqueeze(0).reshape(6), y.unsqueeze(1).reshape(6)


def written(x: torch.Tensor) -> torch.Tensor:
    """Through a view that gives the vector back."""
    y = x * 2.0
    y.unsqueeze(0).reshape(6).add_(1.0)
    return y.unsqueeze(1).reshape(6)


@EMULATE
@pytest.mark.parametrize("function", [turned, twice, two_views, written])
def test_what_is_no_vector_given_back(function: Callable[..., Any], emulate: bool) -> None:
    x = torch.randn(6)
    jitted = jit(function, strict=True, emulate=emulate)
    found, expected = jitted(x), function(x)
    torch.testing.assert_close(found, expected)
    if isinstance(found, tuple):  # two tensors of one memory, as in eager
        assert found[0] is not found[1] and found[0].data_ptr() == found[1].data_ptr()


def test_once_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass leaves its own result as it is."""
    seen: list[tuple[Any, Any]] = []

    def both(plan: Any) -> Any:
        once = drop_identity_views(plan)
        seen.append((once.items, drop_identity_views(once).items))
        return once

    changed = tuple(Pass(both) if each.run is drop_identity_views else each
                    for each in REGION_PASSES)  # fmt: skip
    monkeypatch.setattr("thunder_fuser.executors.fuser.REGION_PASSES", changed)
    gradients(jit(scaled, strict=True), arguments())
    assert seen and all(one == two for one, two in seen)
