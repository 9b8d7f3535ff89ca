# SPDX-License-Identifier: Apache-2.0
"""Max pooling of images is part of regions, forward and backward: on a CPU in tiles only."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import with_gradients
from helpers.pairs import pairs
from helpers.where_it_ran import where_it_ran
from hypothesis import given, settings
from hypothesis import strategies as st
from thunder.core import dtypes
from torch import nn

from thunder_fuser.executors.record.torch_function import torch_function
from thunder_fuser.executors.stride_orders import convolutions
from thunder_fuser.executors.support.pooling import windows_of
from thunder_fuser.explain import kernels as kernels_of
from thunder_fuser.explain.jitted import fusions_of, jit
from thunder_fuser.functions import kernels

CALLS: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "of a ResNet": ((8, 10), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "odd": ((7, 9), {"kernel_size": (3,), "stride": [2], "padding": 1}),
    "tiles": ((6, 8), {"kernel_size": 2}),
    "tiles with a rest": ((7, 9), {"kernel_size": 2}),
    "a last part": ((7, 9), {"kernel_size": 2, "ceil_mode": True}),
    "a last part in the padding": ((6, 7), {"kernel_size": 3, "stride": 2, "padding": 1,
                                            "ceil_mode": True}),
    "each element": ((5, 6), {"kernel_size": 3, "stride": 1, "padding": 1}),
    "of two kinds": ((9, 7), {"kernel_size": (2, 4), "stride": (3, 2), "padding": (1, 2)}),
    "tiles of nine": ((6, 9), {"kernel_size": 3}),
    "a long step": ((3, 260), {"kernel_size": (1, 2), "stride": (1, 256)}),
    "gaps": ((9, 11), {"kernel_size": 2, "stride": 4}),
    "one row": ((1, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "one element": ((1, 1), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "one window": ((3, 3), {"kernel_size": 3}),
    "as it is": ((3, 4), {"kernel_size": 1}),
}  # fmt: skip
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ran = partial(where_it_ran, region="max_pool", torch="max_pool")
FORMATS = (torch.contiguous_format, torch.channels_last)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_is_on_gpu", lambda tensor: True)


def image(
    sizes: tuple[int, int], dtype: torch.dtype = torch.float32, values: int = 9,
    format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:  # fmt: skip
    """Few values, so that windows have equal elements."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-values, values, (2, 8, *sizes), generator=generator)
    return x.to(dtype).contiguous(memory_format=format)


def check(function: Any, x: torch.Tensor, **options: Any) -> Any:
    """Eager's results and strides; gradients to the bit where few are added up."""
    jitted = jit(function, strict=True, **options)
    got, eager = with_gradients(jitted, [x]), with_gradients(function, [x])
    assert torch.equal(got[0].nan_to_num(99), eager[0].nan_to_num(99))
    torch.testing.assert_close(got[1:], eager[1:], equal_nan=True)
    assert [one.stride() for one in got] == [one.stride() for one in eager]
    return jitted


@pytest.mark.parametrize(
    ("call", "format", "emulate"), pairs([*CALLS], FORMATS, [False, True]), ids=str
)
def test_values_gradients_and_strides(
    call: str, format: torch.memory_format, emulate: bool
) -> None:
    """The gradient goes to the first of equal elements."""
    sizes, keywords = CALLS[call]
    x = image(sizes, format=format)
    jitted = check(lambda x: F.max_pool2d(x, **keywords), x, emulate=emulate)
    assert ran(jitted) == {"region"}
    has_constant_places = call in ("one element", "as it is")
    assert len(kernels_of(jitted)) == 2 + has_constant_places


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])
def test_types(dtype: torch.dtype, emulate: bool) -> None:
    x = image((7, 9), dtype, format=torch.channels_last)
    jitted = jit(lambda x: F.max_pool2d(x, 3, 2, 1), strict=True, emulate=emulate)
    y, right = jitted(x.requires_grad_()), F.max_pool2d(x, 3, 2, 1)
    assert torch.equal(y, right) and y.dtype is dtype
    g = torch.randn(y.shape).to(dtype)
    (found,) = torch.autograd.grad(y, x, g)
    (wide,) = torch.autograd.grad(F.max_pool2d(x.double(), 3, 2, 1), x, g.double())
    torch.testing.assert_close(found, wide)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -0.0], ids=str)
@pytest.mark.parametrize("share", [0.2, 0.9, 1.0])
def test_special_values(value: float, share: float) -> None:
    """NaN wins, the last one; of windows of -inf the first element that is not padding."""
    x = image((8, 9), values=2)
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < share] = value
    jitted = check(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    y, right = jitted(x), F.max_pool2d(x, 3, 2, 1)
    assert torch.equal(y.signbit(), right.signbit())


@pytest.mark.parametrize("axes", [(0, 1, 3, 2), (1, 0, 2, 3), (3, 1, 2, 0)], ids=str)
def test_permuted_and_strided(axes: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x.permute(axes)[:, :, ::2], 2) + 1

    assert ran(check(function, image((6, 8)))) == {"region"}


def behind_a_relu(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.relu(x), 3, 2, 1)


def between(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.relu(x), 2) * 2


@pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_what_makes_the_image_is_stored_once(format: torch.memory_format, emulate: bool) -> None:
    """Else each window would compute its elements again. Tiles compute each of them once."""
    x = image((8, 10), format=format)
    kernels = kernels_of(check(behind_a_relu, x, emulate=emulate))
    assert {kernel.scheduler for kernel in kernels} == {"pointwise"}  # no order changes
    first, second, backward, *_ = [set(kernel.ops) for kernel in kernels]
    assert "relu" in first and "relu" not in second and "pad" in second
    assert {"eq", "where"} <= backward
    assert len(kernels_of(check(between, x, emulate=emulate))) == 2


def test_the_backward_reads_places() -> None:
    """A byte for each window, not the image."""
    x = image((8, 10), torch.bfloat16)
    jitted = check(behind_a_relu, x, rematerialization="time")
    backward = fusions_of(jitted)[-1].region
    assert dtypes.uint8 in {proxy.dtype for proxy in backward.inputs}
    assert "max_pool" not in {leaf.sym.name for leaf in backward.leaves}


def in_place(x: torch.Tensor) -> torch.Tensor:
    x = (x * 2).add_(1)
    return F.relu(F.max_pool2d(x, 2), inplace=True) * 2


def test_writes_in_place_around_it() -> None:
    assert ran(check(in_place, image((6, 8)))) == {"region"}


class Stem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.pool, self.second = nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(F.relu(self.norm(self.first(x))))
        result: torch.Tensor = self.second(y) + y
        return result.mean((2, 3))


@pytest.mark.parametrize("emulate", [False, True])
def test_between_convolutions(emulate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images stay channels last."""
    monkeypatch.setattr(convolutions, "_may_run_last", lambda item: True)
    torch.manual_seed(0)
    model, x = Stem(), torch.randn(4, 3, 16, 20)
    jitted = jit(model, strict=True, emulate=emulate)
    jitted(x).square().sum().backward()
    got = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for found, parameter in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-5)
    assert ran(jitted) == {"region"}
    assert "transpose" not in {kernel.scheduler for kernel in kernels_of(jitted)}


TO_TORCH: dict[str, dict[str, Any]] = {
    "dilated": {"kernel_size": 2, "dilation": 2},
    "many elements": {"kernel_size": 4},
    "long steps": {"kernel_size": 2, "stride": 17},
}


@pytest.mark.parametrize("call", TO_TORCH)
def test_what_stays_with_torch(call: str) -> None:
    jitted = check(lambda x: F.max_pool2d(x, **TO_TORCH[call]), image((20, 24)))
    assert ran(jitted) == {"torch"}


def test_other_inputs_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices as a result, integers, one image, and windows that overlap on a CPU."""
    x = image((6, 8))
    y, indices = jit(lambda x: F.max_pool2d(x, 2, return_indices=True))(x)
    right, at = F.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(y, right) and torch.equal(indices, at)
    for other in (x.long(), x[0]):
        jitted = jit(lambda x: F.max_pool2d(x, 2))
        assert torch.equal(jitted(other), F.max_pool2d(other, 2)) and ran(jitted) == {"torch"}
    monkeypatch.setattr(kernels, "_is_on_gpu", lambda tensor: False)
    assert ran(check(lambda x: F.max_pool2d(x, 2), x)) == {"region"}
    for keywords in ({"kernel_size": 3, "stride": 2}, {"kernel_size": 2, "padding": 1}):
        assert ran(check(lambda x, keywords=keywords: F.max_pool2d(x, **keywords), x)) == {"torch"}


@pytest.mark.parametrize(
    "keywords",
    [{}, {"kernel_size": 0}, {"kernel_size": 9}, {"kernel_size": 2, "padding": 2},
     {"kernel_size": (2, 2, 2)}, {"kernel_size": 2, "stride": 0}, {"kernel_size": 2.5}],
    ids=str,
)  # fmt: skip
def test_wrong_calls(keywords: dict[str, Any]) -> None:
    """The error is torch's."""
    x, errors = image((3, 4)), []
    for call in (F.max_pool2d, jit(F.max_pool2d)):
        with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
            call(x, **keywords)
        errors.append((caught.type, str(caught.value).partition("\n")[0]))
    assert errors[0] == errors[1]


def test_sizes_of_numpy() -> None:
    two = np.int64(2)
    assert ran(check(lambda x: F.max_pool2d(x, (two, 2), two), image((6, 8)))) == {"region"}


@st.composite
def drawn(draw: st.DrawFn) -> tuple[tuple[int, int], dict[str, Any]]:
    """Sizes of an image, and windows that torch takes."""
    pairs = [draw(st.tuples(st.integers(1, most), st.integers(1, most))) for most in (3, 4, 9)]
    length, step, sizes = pairs
    padding = tuple(draw(st.integers(0, each // 2)) for each in length)
    sizes = tuple(max(n, k - 2 * p) for n, k, p in zip(sizes, length, padding, strict=True))
    rest = {"padding": padding, "ceil_mode": draw(st.booleans())}
    return sizes, {"kernel_size": length, "stride": step, **rest}


@settings(deadline=None, max_examples=25)
@given(call=drawn(), last=st.booleans())
def test_any_window(call: tuple[tuple[int, int], dict[str, Any]], last: bool) -> None:
    sizes, keywords = call
    format = torch.channels_last if last else torch.contiguous_format
    x = image(sizes, values=3, format=format)
    y = jit(lambda x: F.max_pool2d(x, **keywords), strict=True)(x.requires_grad_())
    right = F.max_pool2d(x, **keywords)
    g = torch.randint(-8, 8, y.shape).float()
    found, expected = (torch.autograd.grad(one, x, g)[0] for one in (y, right))
    assert torch.equal(y, right) and torch.equal(found, expected)


def test_windows_that_a_byte_cannot_tell() -> None:
    assert windows_of((9, 9), (4, 4), (3, 3), (2, 2), (0, 0)) == ((9, 4, 3, 2, 0),) * 2
    assert windows_of((99, 9), (6, 5), (2, 1), (16, 16), (0, 0))
    assert not windows_of((99, 99), (6, 6), (2, 2), (17, 17), (0, 0))
    assert not windows_of((9, 9), (5, 8), (5, 2), (1, 1), (0, 0))


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_a_region_that_cannot_be_compiled_runs_in_torch(
    call: str, format: torch.memory_format
) -> None:
    sizes, keywords = CALLS[call]
    x = image(sizes, format=format).requires_grad_()
    jitted = jit(lambda x: F.max_pool2d(x, **keywords), strict=True)
    y = jitted(x)
    g = torch.randn_like(y)
    (right,) = torch.autograd.grad(y, x, g)
    forward, backward = (torch_function(f.region, "fallback") for f in fusions_of(jitted))
    found, places = forward(x.detach())
    assert torch.equal(found, y) and places.dtype is torch.uint8
    (gradient,) = backward(g, places)
    torch.testing.assert_close(gradient, right)
    assert gradient.stride() == right.stride() or call in ("one window", "one element")
