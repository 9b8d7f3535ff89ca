# SPDX-License-Identifier: Apache-2.0
"""Convolutions run in channels-last order where nobody sees it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thunder import last_backward_traces, last_traces
from torch import nn

from thunder_fuser.executors.stride_orders import convolutions as of_convolutions
from thunder_fuser.explain.jitted import jit


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU's images of any float were the tensor cores'."""
    monkeypatch.setattr(of_convolutions, "_may_run_last", lambda item: True)


class Images(nn.Module):
    """Convolutions, a norm and a pool, to a score for each image, or to an image."""

    def __init__(self, *, sees_image: bool = False) -> None:
        super().__init__()
        self.sees_image = sees_image
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, stride=2), nn.Linear(8, 2)
        self.narrow = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.narrow(self.norm(self.first(x)).relu() + 1))
        if self.sees_image:
            return x
        score: torch.Tensor = self.head(x.relu().mean((2, 3)))
        return score


def convolutions(trace: Any) -> list[str]:
    names = (bsym.sym.name for bsym in trace.bound_symbols)
    return [name for name in names if name.startswith("conv2d")]


def both(model: nn.Module, image: torch.Tensor) -> tuple[Any, list[Any], list[Any]]:
    """A step of each: the result, and the gradients of the image and the parameters."""
    jitted, found = jit(model, strict=True), []
    for one in (jitted, model):
        for tensor in (image, *model.parameters()):
            tensor.grad = None
        result = one(image)
        result.square().sum().backward()
        gradients = [image.grad, *(p.grad for p in model.parameters())]
        found.append([result, *(one for one in gradients if one is not None)])
    return jitted, found[0], found[1]


@pytest.mark.parametrize("sees_image", [False, True])
@pytest.mark.parametrize("sees_gradient", [False, True])
def test_values_and_strides(taken: None, sees_image: bool, sees_gradient: bool) -> None:
    """What the user sees lies as in eager torch; see test_restored.py."""
    model = Images(sees_image=sees_image).double()
    image = torch.randn(2, 3, 9, 9, dtype=torch.float64, requires_grad=sees_gradient)
    jitted, got, right = both(model, image)
    for one, other in zip(got, right, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    assert all(name.endswith("_last") for name in convolutions(last_traces(jitted)[-1]))


def test_an_image_without_gradient(taken: None) -> None:
    model, image = Images().double(), torch.randn(2, 3, 9, 9, dtype=torch.float64)
    jitted = jit(model, strict=True)
    jitted(image).sum().backward()
    found = convolutions(last_backward_traces(jitted)[-1])
    assert len(found) == 5 and all(name.endswith("_last") for name in found)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(jitted(image), model(image))
    assert convolutions(last_traces(jitted)[-1]) == ["conv2d_last"] * 3


def test_a_weight_of_1_x_1_lies_in_both_orders(taken: None) -> None:
    """Its gradient is not copied; that of 3 x 3 is."""
    model, image = Images().double(), torch.randn(2, 3, 9, 9, dtype=torch.float64)
    jitted = jit(model, strict=True)
    jitted(image).sum().backward()
    with torch.profiler.profile(record_shapes=True, acc_events=True) as profiler:
        jitted(image).sum().backward()
    copies = [event.input_shapes[0] for event in profiler.events() if event.name == "aten::copy_"]
    assert [8, 8, 3, 3] in copies and [8, 8, 1, 1] not in copies
    assert model.narrow.weight.grad is not None
    assert model.narrow.weight.grad.stride() == model.narrow.weight.stride()


def flat(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0], -1)


def written(x: torch.Tensor) -> torch.Tensor:
    """In place through a view."""
    y = x.clone()
    flat(y).add_(1)
    return flat(y)


def written_view(x: torch.Tensor) -> torch.Tensor:
    """A reshape that is a view in eager's order, of the convolution's own result."""
    x.reshape(x.shape[0], -1).add_(1)
    return flat(x)


def written_copy(x: torch.Tensor) -> torch.Tensor:
    """A reshape that is a copy in eager's order, and a view in channels-last order."""
    x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).add_(1)
    return flat(x)


VIEWED = {
    "convolution": flat,
    "fusion": lambda x: flat(x.relu()),
    "pool": lambda x: flat(nn.functional.max_pool2d(x, 2)),
    "written": written,
    "written view": written_view,
    "written copy": written_copy,
}


class Viewed(nn.Module):
    """A convolution's result as rows, in which eager's lie."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.convolve, self.rows = nn.Conv2d(3, 8, 3), VIEWED[kind]
        self.head = nn.Linear(72 if kind == "pool" else 288, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.rows(self.convolve(x)))
        return scores


@pytest.mark.parametrize("kind", VIEWED)
def test_views_of_what_would_be_contiguous(taken: None, kind: str) -> None:
    _, got, right = both(Viewed(kind).double(), torch.randn(2, 3, 8, 8, dtype=torch.float64))
    torch.testing.assert_close(got, right)


def test_volumes(taken: None) -> None:
    model = nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 27, 2))
    _, got, right = both(model.double(), torch.randn(2, 2, 5, 5, 5).double().requires_grad_())
    torch.testing.assert_close(got, right)


@pytest.mark.parametrize("dtype, runs_last", [(torch.float32, True), (torch.float64, False)])
def test_float32_on_the_cpu(dtype: torch.dtype, runs_last: bool) -> None:
    model = Images().to(dtype).eval()
    jitted = jit(model, strict=True)
    x = torch.randn(2, 3, 9, 9, dtype=dtype)
    torch.testing.assert_close(jitted(x), model(x))
    found = ["_last" in name for name in convolutions(last_traces(jitted)[-1])]
    assert found == [runs_last] * 3


def test_groups_are_left_alone() -> None:
    grouped = jit(nn.Conv2d(4, 4, 3, groups=2), strict=True)
    grouped(torch.randn(2, 4, 9, 9)).sum().backward()
    for trace in (last_traces(grouped)[-1], last_backward_traces(grouped)[-1]):
        for bsym in trace.bound_symbols:
            if of_convolutions.is_convolution(bsym):
                assert of_convolutions._groups(bsym) == 2
