# SPDX-License-Identifier: Apache-2.0
"""Operands of convolutions in channels-last order: one fusion copies many row-major weights, and an
image once for all its convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from thunder import last_backward_traces, last_traces
from thunder.core.devices import DeviceType
from torch import nn

from thunder_fuser.executors.pipeline import REGION_PASSES
from thunder_fuser.executors.stride_orders import convolutions, operands
from thunder_fuser.executors.stride_orders.operands import copy_images_once, copy_weights_together
from thunder_fuser.explain.jitted import jit
from thunder_fuser.trace.prepared import Pass

EMULATE = pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])
LAST = torch.channels_last


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU's images of any float were the tensor cores'."""
    monkeypatch.setattr(convolutions, "_may_run_last", lambda item: True)
    monkeypatch.setattr(operands, "_DEVICES", (DeviceType.CPU,))


class Images(nn.Module):
    """Four convolutions, one of a single pixel, to a score for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.pixel, self.third = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 6, (2, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.second(F.relu(self.first(x))))
        return F.relu(self.third(self.pixel(x).relu())).mean((2, 3))


class Shared(nn.Module):
    """One weight for two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.convolve(F.relu(self.convolve(x)))).mean((2, 3))


class Volumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv3d(2, 4, 3), nn.Conv3d(4, 4, (1, 2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x)))).mean((2, 3, 4))


def image(channels: int = 3, rank: int = 4) -> torch.Tensor:
    sizes = (2, channels, *(9 - at for at in range(rank - 2)))
    return torch.randn(sizes, generator=torch.Generator().manual_seed(3)).requires_grad_()


def step(model: nn.Module, call: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    """The result and all gradients."""
    result = call(x)
    made = torch.randn(result.shape, generator=torch.Generator().manual_seed(5))
    return [result, *torch.autograd.grad(result, [x, *model.parameters()], made)]


def check(model: nn.Module, jitted: Any, x: torch.Tensor) -> None:
    found, expected = step(model, jitted, x), step(model, model, x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert strides(one) == strides(other)


def strides(tensor: torch.Tensor) -> list[int]:
    """Of the axes that have any."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]


def copies(jitted: Any) -> list[list[int]]:
    """How many weights each fusion of copies takes, in the forward and in the backward."""
    traces = last_traces(jitted)[-1], last_backward_traces(jitted)[-1]
    return [
        [
            len(bsym.subsymbols) for bsym in trace.bound_symbols
            if bsym.subsymbols and all(part.sym.name == "stride_order" for part in bsym.subsymbols)
        ]
        for trace in traces
    ]  # fmt: skip


@EMULATE
def test_one_fusion_copies_all(emulate: bool) -> None:
    """Not the weight of a single pixel, which lies in both orders. The user sees the strides of the
    first image's gradient, which therefore is computed in eager's order."""
    model, x = Images(), image()
    jitted = jit(model, strict=True, emulate=emulate)
    check(model, jitted, x)
    assert copies(jitted) == [[3], [2]]


@EMULATE
@pytest.mark.parametrize("make", [Shared, Volumes])
def test_shared_weights_and_volumes(make: Callable[[], nn.Module], emulate: bool) -> None:
    model = make()
    x = image(4) if make is Shared else image(2, 5)
    jitted = jit(model, strict=True, emulate=emulate)
    check(model, jitted, x)
    assert copies(jitted) == ([[1], [1]] if make is Shared else [[2], [1]])


@pytest.mark.parametrize("most", [0, 3 * 8 * 9 * 4, (3 + 8) * 8 * 9 * 4])
def test_the_bytes_of_a_fusion(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so many, or one weight of more."""
    monkeypatch.setattr(operands, "MOST_BYTES", most)
    model, x = Images(), image()
    jitted = jit(model, strict=True)
    check(model, jitted, x)
    forward, _ = copies(jitted)
    assert forward == ([2, 1] if most == (3 + 8) * 8 * 9 * 4 else [1, 1, 1])


def test_weights_in_channels_last_order_are_not_copied() -> None:
    model, x = Images().to(memory_format=LAST), image()
    jitted = jit(model, strict=True)
    check(model, jitted, x)
    assert copies(jitted) == [[], []]


def test_weights_that_change_their_order_later() -> None:
    """Thunder guards no strides: the fusion returns weights as they are, if they lie right."""
    model, x = Images(), image()
    jitted = jit(model, strict=True)
    check(model, jitted, x)
    for convolution in (model.first, model.second, model.third):
        convolution.weight.data = convolution.weight.data.contiguous(memory_format=LAST)
    check(model, jitted, x)
    assert copies(jitted) == [[3], [2]]


def test_weights_that_change_their_values() -> None:
    """Through data, which no version tells of."""
    model, x = Images(), image()
    jitted = jit(model, strict=True)
    check(model, jitted, x)
    for parameter in model.parameters():
        parameter.data.mul_(-1.5)
    check(model, jitted, x)


def test_a_weight_that_the_trace_writes() -> None:
    """It is copied when its convolution comes."""

    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = F.relu(F.conv2d(x, w, padding=1))
        v.mul_(2.0)
        return F.relu(F.conv2d(y, v, padding=1)).mean((2, 3))

    x, w = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3)
    ours, theirs = w.clone(), w.clone()
    jitted = jit(function, strict=True)
    for _ in range(2):
        torch.testing.assert_close(jitted(x, w, ours), function(x, w, theirs))
        torch.testing.assert_close(ours, theirs)
    (trace,) = [last_traces(jitted)[-1]]
    names = [part.sym.name for bsym in trace.bound_symbols for part in bsym.subsymbols]
    assert names.count("stride_order") == 1


# ------------------------------------------------------------------------------------------- images


class Normed(nn.Module):
    """A norm of the user's row-major image, which a convolution reads, and something else too."""

    def __init__(self, *, is_read: bool = False) -> None:
        super().__init__()
        self.norm, self.is_read = nn.GroupNorm(2, 4), is_read
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(x))
        y = F.relu(self.second(F.relu(self.first(x))))
        return (y.mean((2, 3)) + x.amax((2, 3))) if self.is_read else y.mean((2, 3))


def image_copies(jitted: Any) -> list[str]:
    """The images that fusions copy in the forward, by the names that convolutions do not read."""
    trace = last_traces(jitted)[-1]
    arguments = {proxy.name for proxy in trace.args}
    return [
        part.args[0].name for bsym in trace.bound_symbols for part in bsym.subsymbols
        if part.sym.name == "stride_order" and part.args[0].name not in arguments
    ]  # fmt: skip


@EMULATE
def test_an_image_is_copied_once(emulate: bool) -> None:
    """For the convolution and for the gradient of its weight, which saves the copy."""
    model, x = Normed(), image(4)
    jitted = jit(model, strict=True, emulate=emulate)
    check(model, jitted, x)
    (copied,) = image_copies(jitted)
    backward = last_backward_traces(jitted)[-1]
    names = {arg.name for bsym in backward.bound_symbols for arg in bsym.flat_proxy_args}
    assert copied not in names


def test_an_image_that_lies_right_later() -> None:
    """The fusion returns it as it is."""
    model, x = Normed(), image(4)
    jitted = jit(model, strict=True)
    check(model, jitted, x)
    lying = x.detach().contiguous(memory_format=LAST).requires_grad_()
    found, expected = step(model, jitted, lying), step(model, model, lying)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(image_copies(jitted)) == 1


def test_images_that_lie_right_or_have_other_readers_are_not_copied() -> None:
    for model, x in (
        (Normed(is_read=True), image(4)),
        (Normed(), image(4).detach().contiguous(memory_format=LAST).requires_grad_()),
        (Images(), image()),
    ):
        jitted = jit(model, strict=True)
        found, expected = step(model, jitted, x), step(model, model, x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert image_copies(jitted) == []


@pytest.mark.parametrize("run", [copy_images_once, copy_weights_together])
def test_once_is_enough(run: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any]] = []

    def both(plan: Any) -> Any:
        once = run(plan)
        seen.append((once.items, run(once).items))
        return once

    changed = tuple(
        Pass(both) if each.run is run else each for each in REGION_PASSES
    )
    monkeypatch.setattr("thunder_fuser.executors.fuser.REGION_PASSES", changed)
    for model, channels in ((Images(), 3), (Normed(), 4)):
        step(model, jit(model, strict=True), image(channels))
    assert seen and all(one == two for one, two in seen)
