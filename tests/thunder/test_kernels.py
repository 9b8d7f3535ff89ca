# SPDX-License-Identifier: Apache-2.0
"""Convolutions, pooling and resizing run in torch, forward and backward, by torch's own ops."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients
from helpers.forked import python
from thunder.core.symbol import BoundSymbol
from torch import nn

from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.functions import kernels
from thunder_fuser.functions.kernels import CONVOLUTIONS, OTHERS


@dataclass(frozen=True)
class Case:
    """A function, the shapes of its tensors, and its other arguments."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)  # that torch has a kernel for

    def function(self, *tensors: torch.Tensor) -> torch.Tensor:
        result = getattr(F, self.name)(*tensors, *self.args, **self.keywords)
        return result[0] if isinstance(result, tuple) else result

    def values(self, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(shape, generator=generator).to(dtype) for shape in self.shapes]


ROWS, IMAGE, VOLUME = (2, 4, 9), (2, 4, 9, 7), (1, 4, 5, 6, 7)
CASES = [
    Case("conv1d", (ROWS, (6, 4, 3), (6,)), keywords={"padding": 1}),
    Case("conv2d", (IMAGE, (6, 4, 3, 3), (6,)), keywords={"stride": 2, "padding": (1, 0)}),
    Case("conv2d", (IMAGE, (8, 2, 3, 2)), keywords={"groups": 2, "dilation": (2, 1)}),
    Case("conv2d", (IMAGE, (4, 4, 2, 2)), keywords={"padding": "same"}),
    Case("conv2d", (IMAGE[1:], (6, 4, 3, 3))),
    Case("conv3d", (VOLUME, (2, 4, 2, 2, 2), (2,))),
    Case("conv_transpose1d", (ROWS, (4, 3, 3)), keywords={"stride": 2}),
    Case("conv_transpose2d", (IMAGE, (4, 3, 2, 2), (6,)), keywords={"stride": 2, "groups": 2}),
    Case("conv_transpose3d", (VOLUME, (4, 2, 2, 2, 2)), keywords={"output_padding": 0}),
    Case("avg_pool1d", (ROWS,), (2,)),
    Case("avg_pool2d", (IMAGE,), (3, 2, 1), {"count_include_pad": False}),
    Case("avg_pool2d", (IMAGE,), (3,), {"divisor_override": 2}),
    Case("avg_pool2d", (IMAGE,), (torch.Size((2, 3)),)),
    Case("avg_pool3d", (VOLUME,), (2,), {"ceil_mode": True}, (torch.float32, torch.float64)),
    Case("max_pool1d", (ROWS,), (3, 2)),
    Case("max_pool2d", (IMAGE,), (3, 2, 1)),
    Case("max_pool2d", (IMAGE,), (2,), {"return_indices": True}),
    Case("max_pool3d", (VOLUME,), (2,)),
    Case("adaptive_avg_pool1d", (ROWS,), (4,)),
    Case("adaptive_avg_pool2d", (IMAGE,), ((2, 3),)),
    Case("adaptive_avg_pool3d", (VOLUME,), (2,)),
    Case("adaptive_max_pool1d", (ROWS,), (4,)),
    Case("adaptive_max_pool2d", (IMAGE,), (3,)),
    Case("adaptive_max_pool3d", (VOLUME,), (2,)),
    Case("interpolate", (IMAGE,), keywords={"scale_factor": 2.5}),
    Case("interpolate", (IMAGE,), keywords={"size": (5, 12), "mode": "bilinear"}),
    Case("interpolate", (VOLUME,), keywords={"scale_factor": 1.5, "mode": "nearest-exact"}),
    Case("interpolate", (IMAGE,), keywords={"size": 6, "mode": "bicubic", "align_corners": True}),
    Case("grid_sample", (IMAGE, (2, 3, 3, 2)), keywords={"align_corners": False}),
    Case("fold", ((2, 12, 12),), ((4, 5), (2, 2))),
    Case("unfold", (IMAGE,), (3,), {"stride": 2}),
]


def named(case: Case) -> str:
    return f"{case.name}-{'-'.join(map(str, (*case.args, *case.keywords)))}"


def calls(jitted: Any) -> list[BoundSymbol]:
    """What runs in torch, in the forward and in the backward."""
    return [bsym for trace in final_traces(jitted) for bsym in trace.bound_symbols]


def names(jitted: Any) -> list[str]:
    return [bsym.sym.name for bsym in calls(jitted)]


def check(
    function: Callable[..., Any], values: list[torch.Tensor], orders: int | None = None
) -> Any:
    """Asserts that result and gradients are those of eager. Gives the jitted function.

    orders: of how many of them the order in memory is compared; of all if None.
    """
    jitted = jit(function, strict=True)
    got, eager = with_gradients(jitted, values), with_gradients(function, values)
    exact = with_gradients(function, [one.double() for one in values])
    assert_as_exact_as_eager(got, eager, exact)
    assert [one.stride() for one in got[:orders]] == [one.stride() for one in eager[:orders]]
    return jitted


def test_each_function_has_a_case() -> None:
    assert {case.name for case in CASES} == {*CONVOLUTIONS, *OTHERS}


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case, dtype, id=f"{named(case)}-{dtype}")
        for case in CASES
        for dtype in case.dtypes
    ],
)
def test_one_op_forward_and_at_most_two_backward(case: Case, dtype: torch.dtype) -> None:
    jitted = check(case.function, case.values(dtype))
    run = [name for name in names(jitted) if case.name in name]
    assert sum("_forward_" in name for name in run) == 1
    assert sum("_backward" in name for name in run) == min(len(case.shapes), 2)
    assert "convolution" not in names(jitted)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_without_gradients_the_function_itself_runs(case: Case) -> None:
    jitted = jit(case.function, strict=True)
    values = case.values()
    assert torch.equal(jitted(*values), case.function(*values))
    assert {case.name, f"torch_{case.name}"} & {*names(jitted)}
    assert "convolution" not in names(jitted)


@pytest.mark.parametrize("name", ["conv2d", "max_pool2d", "avg_pool2d", "interpolate"])
def test_images_in_channels_last_order_stay_in_it(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    image, *others = case.values()
    image = image.to(memory_format=torch.channels_last)
    assert image.stride() != image.contiguous().stride()
    # The gradient of a weight lies as the weight does, where autograd.grad has oneDNN's order.
    check(lambda *tensors: torch.relu(case.function(*tensors)), [image, *others], orders=2)


def test_the_forward_keeps_indices_and_runs_once() -> None:
    jitted = jit(lambda x: F.max_pool1d(x, 2), strict=True)
    jitted(torch.randn(ROWS, requires_grad=True)).sum().backward()
    assert sum("max_pool1d" in name for name in names(jitted)) == 2
    (backward,) = (bsym for bsym in calls(jitted) if "_backward" in bsym.sym.name)
    assert len(backward.flat_proxy_args) == 3  # the input, its gradient, and the indices


def test_an_image_that_needs_no_gradient_gets_none() -> None:
    jitted = jit(F.conv2d, strict=True)
    image, weight = torch.randn(IMAGE), torch.randn(6, 4, 3, 3, requires_grad=True)
    jitted(image, weight).sum().backward()
    (backward,) = (name for name in names(jitted) if "_backward" in name)
    assert backward.startswith("conv2d_backward1_")  # of what is not the first tensor


def test_equal_calls_are_one_op_and_other_arguments_another() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w) + F.conv2d(F.relu(x), w) + F.conv2d(x, w, padding=1)[:, :, 1:-1, 1:-1]

    jitted = check(twice, [torch.randn(IMAGE), torch.randn(6, 4, 3, 3)])
    made = [name for name in names(jitted) if "_forward_" in name]
    assert len(made) == 3 and len(set(made)) == 2


def test_other_sizes_are_traced_anew() -> None:
    jitted = jit(lambda x: F.interpolate(x, scale_factor=2.0), strict=True)
    for size in (4, 6):
        x = torch.randn(1, 2, size, size, requires_grad=True)
        jitted(x).sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 4.0))


@pytest.mark.parametrize(
    "values",
    [
        [torch.randn(1, 1, 8, dtype=torch.complex64), torch.randn(1, 1, 2, dtype=torch.complex64)],
        [torch.randn(0, 1, 8), torch.randn(1, 1, 2)],
    ],
    ids=["complex", "no elements"],
)
def test_what_is_left_to_thunder(values: list[torch.Tensor]) -> None:
    jitted = jit(F.conv1d, strict=True)
    assert torch.equal(jitted(*values), F.conv1d(*values))
    assert not any("_forward_" in name for name in names(jitted))


def test_integers_have_no_gradient() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 2) * w

    x, w = torch.arange(16).view(1, 4, 4), torch.randn(1, 2, 2, requires_grad=True)
    jit(function, strict=True)(x, w).sum().backward()
    assert w.grad is not None and w.grad.flatten().tolist() == [5.0, 7.0, 13.0, 15.0]


def test_torch_says_what_is_wrong_with_a_call() -> None:
    weight = torch.randn(6, 5, 3, 3, requires_grad=True)
    with pytest.raises(Exception, match=r"(?i)channels|groups"):
        jit(F.conv2d, strict=True)(torch.randn(IMAGE), weight)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.convolution(x))) + x


def test_a_convolution_with_a_batch_norm_trains_as_in_eager() -> None:
    torch.manual_seed(0)
    ours, eager = Block(), Block()
    eager.load_state_dict(ours.state_dict())
    jitted = jit(ours, strict=True)
    for _ in range(3):
        x = torch.randn(IMAGE)
        jitted(x).square().sum().backward()
        eager(x).square().sum().backward()
    for (name, mine), right in zip(
        ours.state_dict().items(), eager.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, right, msg=lambda text, name=name: f"{name}: {text}")
    for mine, right in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, right.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("gradients", [True, False])
def test_a_trace_made_under_autocast_serves_calls_outside_of_it(gradients: bool) -> None:
    case = Case("conv_transpose2d", ((2, 4, 6, 5), (4, 3, 2, 2 + gradients)))
    values = [one.requires_grad_(gradients) for one in case.values()]

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return case.function(*tensors) * 2

    with torch.autocast("cpu", torch.bfloat16):
        got = jit(function, strict=True)(*values)
    assert got.dtype is torch.float32  # Thunder has no rule of autocast for it
    right = function(*values)
    torch.testing.assert_close(jit(function, strict=True)(*values), right)


BIASED = [
    Case("conv1d", (ROWS, (6, 4, 3), (6,)), keywords={"padding": 1}),
    Case("conv2d", (IMAGE, (6, 4, 3, 3), (6,)), keywords={"stride": 2}),
    Case("conv2d", (IMAGE[1:], (6, 4, 3, 3), (6,))),
    Case("conv3d", (VOLUME, (2, 4, 2, 2, 2), (2,))),
]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("case", BIASED, ids=named)
def test_on_a_gpu_a_region_adds_the_bias(
    case: Case, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the CPU is taken for one. cuDNN rounds before it adds, as two ops of torch do."""
    def in_two(image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        beside = bias.view(-1, *(1 for _ in weight.shape[2:]))
        result: torch.Tensor = getattr(F, case.name)(image, weight, **case.keywords) + beside
        return result

    monkeypatch.setattr(kernels, "_is_on_gpu", lambda tensor: True)
    jitted, values = jit(case.function, strict=True), case.values(dtype)
    got = with_gradients(jitted, values)
    exact = with_gradients(case.function, [one.double() for one in values])
    assert_as_exact_as_eager(got, with_gradients(in_two, values), exact)
    forward, *_ = (
        bsym for trace in final_traces(jitted) for bsym in trace.bound_symbols
        if bsym.sym.name.startswith(case.name)
    )
    assert len(forward.args) == 2


@pytest.mark.parametrize("bias", [(7,), (6, 1), (1,)])
def test_a_bias_of_another_shape_is_refused(
    bias: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_is_on_gpu", lambda tensor: True)
    jitted = jit(F.conv2d, strict=True)
    with pytest.raises(RuntimeError):
        jitted(torch.randn(IMAGE), torch.randn(6, 4, 3, 3), torch.randn(bias))


def test_threads_take_turns_to_trace() -> None:
    inside: list[int] = []

    def most_inside(number: int) -> int:
        with kernels._without_memory(has_gradients=True):
            inside.append(number)
            time.sleep(0.01)
            most = len(inside)
            inside.pop()
        return most

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(most_inside, range(8))) == {1}


def test_threads_that_end() -> None:
    """The first thread that traces a convolution ends before the next ones do so."""
    program = """
from threading import Thread
from thunder_fuser.functions import kernels

def trace():
    with kernels._without_memory(has_gradients=False):
        pass

for _ in range(200):
    thread = Thread(target=trace)
    thread.start()
    thread.join()
print("ended")
"""
    assert python(program) == "ended"
