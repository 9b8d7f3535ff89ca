# SPDX-License-Identifier: Apache-2.0
"""Images that the user sees lie as in eager torch, where convolutions ran in another order."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thunder import last_backward_traces, last_traces
from torch import nn
from torch.nn import functional as F

from thunder_fuser.executors.fuser import fuser
from thunder_fuser.executors.stride_orders import convolutions
from thunder_fuser.explain.jitted import fusions_of, jit
from thunder_fuser.functions import kernels

SIZES = (2, 8, 6, 8)


@pytest.fixture(autouse=True)
def taken() -> Any:
    """As if the CPU's images of any float were the tensor cores'."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolutions, "_may_run_last", lambda item: True)
        patch.setattr(kernels, "_is_on_gpu", lambda tensor: True)
        yield


class Level(nn.Module):
    """Of a U-Net: norms, a residual, half the size and back, and a product over all pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.down, self.pixels = nn.Conv2d(8, 8, 3, 2, 1), nn.Linear(8, 8)
        self.up = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.first(F.silu(self.norm(x)))
        y = F.max_pool2d(self.down(x), 3, 1, 1)
        y = y + self.pixels(y.flatten(2).transpose(1, 2)).transpose(1, 2).view(y.shape)
        made: torch.Tensor = self.up(torch.cat([x, F.interpolate(y, scale_factor=2.0)], 1))
        return made


def names(trace: Any, start: str) -> list[str]:
    return [one.sym.name for one in trace.bound_symbols if one.sym.name.startswith(start)]


def steps(model: nn.Module, jitted: Any, image: torch.Tensor) -> list[list[torch.Tensor]]:
    """The result and the gradients of each; that of the image as it comes, for it is no leaf."""
    found = []
    for one in (jitted, model):
        model.zero_grad()
        x = image.detach().requires_grad_() * 1
        seen: list[torch.Tensor] = []
        x.register_hook(seen.append)
        result = one(x)
        result.square().sum().backward()
        found.append([result, *seen, *(p.grad for p in model.parameters() if p.grad is not None)])
    return found


def check(got: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    for one, other in zip(got, right, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()


@cache
def jitted_level(trains: bool) -> tuple[nn.Module, Any]:
    """A level that was traced with contiguous images and weights."""
    torch.manual_seed(0)
    model = Level().double()
    jitted, image = jit(model, strict=True), torch.randn(SIZES).double()
    if trains:
        check(*steps(model, jitted, image))
    else:
        with torch.no_grad():
            check([jitted(image)], [model(image)])
    return model, jitted


def test_inference_runs_all_in_channels_last() -> None:
    _, jitted = jitted_level(trains=False)
    trace = last_traces(jitted)[-1]
    assert names(trace, "conv2d") == ["conv2d_last"] * 3
    assert len(names(trace, "image_in_order")) == 1


def test_training_runs_all_in_channels_last() -> None:
    """The result and the gradient of the image are seen."""
    _, jitted = jitted_level(trains=True)
    for trace, count in ((last_traces(jitted)[-1], 3), (last_backward_traces(jitted)[-1], 6)):
        found = names(trace, "conv2d")  # in the backward one of the image and one of the weights
        assert len(found) == count and all(name.endswith("_last") for name in found)
        assert len(names(trace, "image_in_order")) == 1


@settings(max_examples=6, deadline=None)
@given(
    axes=st.permutations(range(4)), step=st.integers(1, 2), last=st.booleans(), trains=st.booleans()
)
def test_strides_of_other_calls(axes: list[int], step: int, last: bool, trains: bool) -> None:
    """Thunder does not guard strides: such calls run what was traced for contiguous tensors."""
    model, jitted = jitted_level(trains)
    model.to(memory_format=torch.channels_last if last else torch.contiguous_format)
    sizes = [SIZES[at] for at in axes]
    wide = torch.randn(*sizes[:-1], sizes[-1] * step).double()[..., ::step]
    image = wide.permute([axes.index(at) for at in range(4)])
    assert image.shape == SIZES
    if trains:
        check(*steps(model, jitted, image))
    else:
        with torch.no_grad():
            check([jitted(image)], [model(image)])


def test_a_region_writes_the_order_itself() -> None:
    """The bias of the last convolution is added in a region: the copy gives back what it gets."""
    _, jitted = jitted_level(trains=False)
    (copy,) = (
        one for one in last_traces(jitted)[-1].bound_symbols
        if one.sym.name.startswith("image_in_order")
    )  # fmt: skip
    call = copy._call_ctx[copy.sym.name]
    made = torch.empty([int(size) for size in copy.args[0].shape], dtype=torch.float64)
    models = [torch.empty([int(s) for s in one.shape]) for one in copy.args[1:]]
    assert call(made, *models) is made
    last = made.contiguous(memory_format=torch.channels_last)
    assert call(last, *models).stride() == made.stride()


class Normalised(nn.Module):
    """Pixels of length 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x * x).sum(1, keepdim=True).rsqrt()


@pytest.mark.parametrize("norm", [False, True])
def test_a_norm_does_not_write_another_order(norm: bool) -> None:
    """It would do so element by element; what is pointwise writes whole sectors."""
    last = Normalised() if norm else nn.SiLU()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), last).double()
    jitted, image = jit(model, strict=True), torch.randn(2, 3, 8, 8).double()
    with torch.no_grad():
        check([jitted(image)], [model(image)])
    claims = fuser.last_claims
    assert claims is not None and len(names(last_traces(jitted)[-1], "image_in_order")) == 1
    *_, fusion = fusions_of(jitted)
    assert len(fusion.memory.row_major) == (not norm)


def in_order(model: Any, image: torch.Tensor) -> tuple[list[str], list[str]]:
    """(its convolutions, its copies) in inference, after a check of the result."""
    jitted = jit(model, strict=True)
    with torch.no_grad():
        check([jitted(image)], [model(image)])
    trace = last_traces(jitted)[-1]
    return names(trace, "conv2d"), names(trace, "image_in_order")


def test_one_convolution_gains_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).double()
    assert in_order(model, torch.randn(2, 3, 5, 5).double()) == (["conv2d"], [])


def test_an_image_traced_in_channels_last_order() -> None:
    """All that follows lies so by itself."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).double()
    image = torch.randn(2, 3, 8, 8).double()
    convolved, copies = in_order(model, image)
    assert convolved == ["conv2d_last"] * 2 and len(copies) == 1
    last = image.contiguous(memory_format=torch.channels_last)
    assert in_order(model, last) == (["conv2d"] * 2, [])


def test_a_result_that_is_seen_by_a_view_too() -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = self.second(self.first(x).relu()).relu()
            return made, made.permute(0, 2, 3, 1)

    model, image = Viewed().double(), torch.randn(2, 3, 8, 8).double()
    jitted = jit(model, strict=True)
    with torch.no_grad():
        got, right = jitted(image), model(image)
    check([*got], [*right])
    assert got[0].data_ptr() == got[1].data_ptr()
    assert not names(last_traces(jitted)[-1], "image_in_order")


def test_each_result_must_pay() -> None:
    """The second one is seen by a view too, so a copy would gain nothing."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            deep = x
            for one in self.all[:3]:
                deep = one(deep).relu()
            other = self.all[3](x).relu()
            return deep, other, other.permute(0, 2, 3, 1)

    model, image = Two().double(), torch.randn(2, 4, 8, 8).double()
    jitted = jit(model, strict=True)
    with torch.no_grad():
        check([*jitted(image)], [*model(image)])
    trace = last_traces(jitted)[-1]
    assert sorted(names(trace, "conv2d")) == ["conv2d", *["conv2d_last"] * 3]
    assert len(names(trace, "image_in_order")) == 1


def test_gradients_do_not_read_what_they_do_not_depend_on() -> None:
    """An image's gradient reads no image, a weight's no weight: those have no values then."""
    model, image = Level().double(), torch.randn(SIZES).double()
    torch.use_deterministic_algorithms(True)  # fills memory that is not written with NaN
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        check(*steps(model, jit(model, strict=True), image))
    finally:
        torch.use_deterministic_algorithms(False)


def test_volumes_and_masks_of_one_channel() -> None:
    model = nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), nn.Conv3d(4, 1, 3)).double()
    jitted, image = jit(model, strict=True), torch.randn(2, 2, 6, 6, 6).double()
    with torch.no_grad():
        check([jitted(image)], [model(image)])
    check(*steps(model, jit(model, strict=True), image))


class Mask(nn.Module):
    """Images of one channel, which lie in both orders."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.second(self.norm(self.first(x)).relu()).relu() + 1)
        return made


@pytest.mark.parametrize(("channels", "size"), [(1, 9), (2, 9), (4, 1)])
def test_a_result_may_be_written_in_place(channels: int, size: int) -> None:
    """Also where it lies in memory as in eager's order, and is only seen with other strides."""
    model = Mask(channels).double().eval()
    jitted, image = jit(model, strict=True), torch.randn(2, 3, size, size, dtype=torch.float64)
    found, wanted = (one(image) for one in (jitted, model))
    assert found.stride() == wanted.stride()
    for result in (found.sigmoid_(), wanted.sigmoid_()):
        result.sum().backward()
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        result = jitted(image)
    weight = torch.full_like(result, 2.0).requires_grad_()
    result.mul_(weight).sum().backward()
    torch.testing.assert_close(weight.grad, model(image).detach())
