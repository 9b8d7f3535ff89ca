# SPDX-License-Identifier: Apache-2.0
"""Nearest interpolation that repeats pixels a whole number of times is part of regions."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients
from helpers.pairs import pairs
from helpers.where_it_ran import where_it_ran
from torch import nn

from thunder_fuser.executors.record.torch_function import torch_function
from thunder_fuser.executors.stride_orders import convolutions
from thunder_fuser.executors.support.upsampling import repeats
from thunder_fuser.explain import kernels as kernels_of
from thunder_fuser.explain.jitted import fusions_of, jit
from thunder_fuser.functions import kernels

CALLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "twice": ((2, 4, 6, 5), {"scale_factor": 2.0}),
    "one factor an axis": ((2, 4, 3, 7), {"scale_factor": (3, 1.0)}),
    "sizes": ((2, 4, 3, 7), {"size": (12, 21)}),
    "one size": ((1, 3, 5, 5), {"size": torch.Size((10, 15))}),
    "recomputed": ((2, 4, 3, 7), {"scale_factor": 2.0, "recompute_scale_factor": True}),
    "exact": ((2, 4, 3, 7), {"scale_factor": (2.0, 41.0), "mode": "nearest-exact"}),
    "as it is": ((2, 4, 3, 7), {"size": (3, 7)}),
    "one pixel": ((2, 3, 1, 1), {"size": (4, 3)}),
    "one row": ((2, 3, 1, 5), {"scale_factor": 2.0}),
    "one channel": ((2, 1, 4, 6), {"scale_factor": 2.0}),
    "one image": ((1, 2, 4, 6), {"scale_factor": 2.0}),
    "line": ((2, 4, 9), {"scale_factor": 3.0}),
    "volume": ((2, 3, 2, 4, 3), {"scale_factor": (1, 2, 2)}),
}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ran = partial(where_it_ran, region="upsample", torch="interpolate")


def image(shape: tuple[int, ...], dtype: torch.dtype, *, last: bool = False) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.ndim]) if last and x.ndim in formats else x


def check(function: Any, x: torch.Tensor, **options: Any) -> Any:
    """Equal results, gradients as exact as eager's, strides of both. Gives the jitted function."""
    jitted = jit(function, strict=True, **options)
    got, eager = with_gradients(jitted, [x]), with_gradients(function, [x])
    assert torch.equal(got[0], eager[0])
    assert_as_exact_as_eager(got, eager, with_gradients(function, [x.double()]))
    assert [one.stride() for one in got] == [one.stride() for one in eager]
    return jitted


@pytest.mark.parametrize(
    ("call", "last", "emulate"), pairs([*CALLS], [False, True], [False, True])
)
def test_values_gradients_and_strides(call: str, last: bool, emulate: bool) -> None:
    shape, keywords = CALLS[call]
    x = image(shape, torch.float32, last=last)
    few = call != "exact"  # 82 pixels each: torch sums them on a CPU
    assert ran(check(lambda x: F.interpolate(x, **keywords), x, emulate=emulate)) == {
        "region" if few else "torch"
    }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("factor", [2, 4])
def test_types(dtype: torch.dtype, factor: int) -> None:
    """Gradients are sums in float32, rounded once: within an ulp of float64's."""
    x = image((2, 8, 6, 5), dtype, last=True)
    assert ran(check(lambda x: F.interpolate(x, scale_factor=factor), x)) == {"region"}
    y = jit(lambda x: F.interpolate(x, scale_factor=factor))(x.requires_grad_())
    g = torch.randn(y.shape).to(dtype)
    (found,) = torch.autograd.grad(y, x, g)
    right = g.double().unflatten(3, (-1, factor)).unflatten(2, (-1, factor)).sum((3, 5))
    if dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(found, right.float().to(dtype)) or factor == 4
    torch.testing.assert_close(found, right.to(dtype))


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_repeats_are_a_reduction(
    format: torch.memory_format, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_is_on_gpu", lambda tensor: True)
    x = image((2, 8, 3, 5), dtype).to(memory_format=format)
    assert ran(check(lambda x: F.interpolate(x, scale_factor=5), x, emulate=True)) == {"region"}


@pytest.mark.parametrize("axes", [(0, 1, 3, 2), (1, 0, 2, 3), (3, 1, 2, 0), (0, 2, 1, 3)], ids=str)
def test_permuted_and_strided(axes: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.permute(axes)[:, :, ::2], scale_factor=2.0) + 1

    assert ran(check(function, image((2, 5, 4, 6), torch.float32))) == {"region"}


def test_special_values() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]).view(1, 1, 2, 2)
    y = jit(lambda x: F.interpolate(x, scale_factor=2.0))(x)
    right = F.interpolate(x, scale_factor=2.0)
    torch.testing.assert_close(y, right, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(y.signbit(), right.signbit())


class Level(nn.Module):
    """Of a U-Net: a sum before the upsampling, a cat behind it, convolutions around both."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.side = nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.up, self.larger = nn.Conv2d(16, 4, 3, padding=1), nn.Upsample(scale_factor=2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.larger(self.down(x) + self.side(x))
        result: torch.Tensor = self.up(torch.cat([F.silu(x), y], 1))
        return result.mean((2, 3))


@pytest.mark.parametrize("emulate", [False, True])
def test_between_convolutions_images_stay_channels_last(
    emulate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pointwise kernel from the sum to the cat, and no kernel that transposes."""
    monkeypatch.setattr(convolutions, "_may_run_last", lambda item: True)
    torch.manual_seed(0)
    model, x = Level(), image((2, 8, 8, 8), torch.float32)
    jitted = jit(model, strict=True, emulate=emulate)
    jitted(x).square().sum().backward()
    got = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for found, parameter in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-5)
    assert ran(jitted) == {"region"}
    numbers = [
        number for number, fusion in enumerate(fusions_of(jitted))
        if any("upsample" in leaf.sym.name for leaf in fusion.region.leaves)
    ]
    every = kernels_of(jitted)
    assert "transpose" not in {kernel.scheduler for kernel in every}
    forward, backward = (
        [kernel for kernel in every if kernel.fusion == f"thunderFusion{number}"]
        for number in numbers
    )
    assert [(k.scheduler, {"add", "broadcast_in_dim", "cat"} <= {*k.ops}) for k in forward] == [
        ("pointwise", True)
    ]
    assert backward[0].scheduler == "pointwise" and backward[0].ops.count("slice") >= 4
    if emulate:  # channels are the innermost axis: four of them are a vector
        bodies = (kernel.source.split("pointwise(")[-1] for kernel in (*forward, backward[0]))
        assert all("ldv" in body for body in bodies)


TO_TORCH: dict[str, dict[str, Any]] = {
    "half as many": {"scale_factor": 0.5},
    "not whole": {"scale_factor": 2.1},
    "not a multiple": {"size": (9, 14)},
    "bilinear": {"scale_factor": 2.0, "mode": "bilinear"},
    "area": {"scale_factor": 2.0, "mode": "area"},
    "41 times": {"scale_factor": (1.0, 41.0)},
}


@pytest.mark.parametrize("call", TO_TORCH)
def test_what_stays_with_torch(call: str) -> None:
    x = image((2, 4, 5, 5), torch.float32)
    jitted = check(lambda x: F.interpolate(x, **TO_TORCH[call]), x)
    assert "region" not in ran(jitted)


def test_bytes_stay_with_torch() -> None:
    x = torch.arange(12, dtype=torch.uint8).view(1, 1, 3, 4)
    assert torch.equal(jit(F.interpolate)(x, scale_factor=2), F.interpolate(x, scale_factor=2))


@pytest.mark.parametrize(
    "keywords",
    [{}, {"size": 4, "scale_factor": 2.0}, {"scale_factor": 2.0, "align_corners": True},
     {"scale_factor": (2.0,)}, {"scale_factor": 2.0, "antialias": True}],
    ids=", ".join,
)  # fmt: skip
def test_wrong_calls(keywords: dict[str, Any]) -> None:
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)):
        jit(lambda x: F.interpolate(x, **keywords))(image((1, 2, 3, 4), torch.float32))


def test_no_images_stay_with_thunder() -> None:
    """Thunder refuses tensors without elements."""
    with pytest.raises(RuntimeError, match="greater than 0"):
        jit(lambda x: F.interpolate(x, scale_factor=2.0))(torch.empty(0, 2, 3, 4))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_the_rule_is_that_of_torch(mode: str) -> None:
    """Every factor of a line that the rule takes repeats all elements, also in float64."""
    refused = []
    for count in range(1, 130):
        for dtype in (torch.float32, torch.float64):
            x = torch.arange(50, dtype=dtype).view(1, 1, -1)
            y = F.interpolate(x, scale_factor=float(count), mode=mode)
            if repeats((50,), y.shape[2:], float(count), mode) != (count,):
                refused.append(count)
            else:
                assert torch.equal(y, x.repeat_interleave(count, 2))
    assert sorted({*refused})[:3] == ([41, 47, 49] if mode == "nearest" else [])


def test_a_region_that_cannot_be_compiled_runs_in_torch() -> None:
    x = image((2, 4, 6, 5), torch.float32, last=True).requires_grad_()
    jitted = jit(lambda x: F.interpolate(x, scale_factor=(2.0, 3.0)), strict=True)
    y = jitted(x)
    g = torch.randn_like(y)
    (right,) = torch.autograd.grad(y, x, g)
    for fusion, argument, result in zip(fusions_of(jitted), (x, g), (y, right), strict=True):
        (found,) = torch_function(fusion.region, "fallback")(argument.detach())
        torch.testing.assert_close(found, result.detach())


def in_place_behind(x: torch.Tensor) -> torch.Tensor:
    return F.relu(F.interpolate(x, scale_factor=2.0), inplace=True) * 2


def in_place_before(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    y = F.interpolate(x, scale_factor=2.0)
    x.add_(1)
    return torch.cat([y, F.interpolate(x, scale_factor=2.0)], 1)


@pytest.mark.parametrize("function", [in_place_behind, in_place_before])
def test_writes_in_place_are_in_the_same_region(function: Any) -> None:
    """What is made shares no memory with the image."""
    x = image((2, 4, 6, 5), torch.float32)
    jitted = check(function, x)
    assert len(fusions_of(jitted)) == 2 and ran(jitted) == {"region"}


def test_the_backward_repeats_pixels_again() -> None:
    """It keeps the small image."""
    x = image((2, 4, 6, 5), torch.float32)
    jitted = check(lambda x: F.interpolate(x * 2, scale_factor=2.0).square(), x)
    backward = fusions_of(jitted)[-1].region
    assert "upsample_nearest" in {leaf.sym.name for leaf in backward.leaves}


def test_the_result_is_new_memory() -> None:
    x = image((2, 4, 6, 5), torch.float32)
    y = jit(lambda x: F.interpolate(x, size=(6, 5)))(x)
    assert torch.equal(x, y) and x.data_ptr() != y.data_ptr()
