# SPDX-License-Identifier: Apache-2.0
"""Batch norm in training: one region with its activation, statistics written behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, rms, with_gradients
from torch import nn

from thunder_fuser.explain.jitted import fusions_of, jit

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def image(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(shape, dtype=torch.float64) * 2 + 1).to(dtype)


def parameters(dtype: torch.dtype, channels: int = 6) -> list[torch.Tensor]:
    """Running mean and variance, weight and bias."""
    torch.manual_seed(1)
    mean, spread, weight, bias = (torch.randn(channels, dtype=dtype) for _ in range(4))
    return [mean, spread.abs() + 0.5, weight, bias]


def in_training(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    return F.batch_norm(x, mean, var, w, b, True, 0.3, 1e-3)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 9), (3, 6, 7, 7), (2, 6, 2, 3, 5)], ids=str)
def test_results_gradients_and_statistics(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    found = []
    for function, wide in ((jit(in_training, strict=True), False), (in_training, False),
                           (in_training, True)):  # fmt: skip
        values = [image(dtype, *shape), *parameters(dtype)]
        values = [one.double() for one in values] if wide else values
        mean, var, rest = values[1], values[2], (values[0], *values[3:])
        call = _with_statistics(function, mean, var)
        found.append([*with_gradients(call, rest), mean, var])
    assert_as_exact_as_eager(*found)


def _with_statistics(function: Callable[..., Any], mean: Any, var: Any) -> Callable[..., Any]:
    return lambda x, w, b: function(x, mean, var, w, b)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("plane", [(14, 14), (7, 7), (1, 9)], ids=str)
def test_on_the_emulator(plane: tuple[int, int], format: torch.memory_format) -> None:
    def function(x: Any, w: Any, b: Any) -> Any:
        return F.relu(F.batch_norm(x, None, None, w, b, True))

    x = image(torch.bfloat16, 3, 6, *plane).to(memory_format=format)
    values = [x, *parameters(torch.bfloat16)[2:]]
    exact = with_gradients(function, [one.double() for one in values])
    got = with_gradients(jit(function, strict=True, emulate=True), values)
    assert_as_exact_as_eager(got, with_gradients(function, values), exact)
    assert got[0].stride() == x.stride()


def test_known_statistics_and_other_calls_stay_with_thunder() -> None:
    """Known statistics, a computed momentum, and statistics that are wider than is computed."""
    x, (mean, var, w, b) = image(torch.float32, 4, 6, 5), parameters(torch.float32)
    calls = [
        lambda x: F.batch_norm(x, mean, var, w, b),
        lambda x: F.batch_norm(x, mean.clone(), var.clone(), w, b, True, 1.0 / x.shape[0]),
        lambda x: F.batch_norm(x, None, None, w.double().float(), None, True),
    ]
    for call in calls:
        torch.testing.assert_close(jit(call, strict=True)(x), call(x))


def test_one_value_a_channel_is_refused_as_in_torch() -> None:
    with pytest.raises((ValueError, RuntimeError), match="more than 1 value per channel"):
        jit(lambda x: F.batch_norm(x, None, None, training=True))(torch.randn(1, 3, 1))


def test_a_weight_that_is_no_tensor_is_an_error_as_in_torch() -> None:
    x, (mean, var, w, b) = image(torch.float32, 4, 6, 5), parameters(torch.float32)
    for args in ((mean, var, (1.0, 2.0), b), ((mean,), var, w, b)):
        with pytest.raises(Exception, match=r"tuple|TensorProxy"):
            jit(lambda x, args=args: F.batch_norm(x, *args, True))(x)
    assert jit(lambda x: F.batch_norm(x, mean, var, w, b, True), strict=True)(x).shape == x.shape


class Block(nn.Module):
    """As in a residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(6, 6, 1, bias=False) for _ in range(2))
        self.norm_1, self.norm_2 = nn.BatchNorm2d(6), nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm_1(self.first(x)))
        return F.relu(self.norm_2(self.second(y)) + y)


def test_a_block_has_a_region_for_each_norm() -> None:
    """The norm, the residual and the activation, and what it writes: the statistics and the count
    of batches. What is handed on is of the image's type, and no wide stream."""
    block = Block().bfloat16()
    jitted = jit(block, strict=True)
    jitted(image(torch.bfloat16, 2, 6, 4, 4))
    forward = [one for one in fusions_of(jitted) if not one.region.is_backward]
    assert [len(one.memory.writes) for one in forward] == [3, 3]
    wide = [p for one in forward for p in one.region.outputs if p.ndim == 4 and p.dtype.bytes > 2]
    assert not wide


def test_training_follows_eager() -> None:
    """Three steps: the statistics of one are read by the next."""

    def run(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(2)
        block = Block().double()
        step = wrap(block)
        optimizer = torch.optim.SGD(block.parameters(), 0.1)
        for at in range(3):
            step(image(torch.float64, 2, 6, 4, 4) + at).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*block.state_dict().values()]

    for got, right in zip(run(lambda m: jit(m, strict=True)), run(lambda m: m), strict=True):
        torch.testing.assert_close(got, right)


def test_a_mean_far_from_zero_cancels_nothing() -> None:
    """1000 beside a spread of 1: squares less the square of the mean would lose all digits."""
    x = image(torch.float32, 4, 6, 9) + 1000
    right = F.batch_norm(x.double(), None, None, training=True)
    got = jit(lambda x: F.batch_norm(x, None, None, training=True), strict=True)(x)
    assert rms(got - right) < 1e-3


def rows_of_one() -> list[torch.Tensor]:
    """An image and running statistics that are two rows of a matrix."""
    both = torch.linspace(0.5, 2, 6).view(2, 3)
    return [torch.linspace(-1, 3, 240).view(4, 3, 5, 4), both[0], both[1]]


def parts_of_one() -> list[torch.Tensor]:
    """All in the memory of one vector."""
    whole = torch.linspace(0.5, 2, 66)
    return [whole[:60].view(4, 3, 5, 1), whole[60:63], whole[63:]]


def one_vector() -> list[torch.Tensor]:
    """The same vector for both statistics."""
    vector = torch.linspace(0.5, 2, 3)
    return [torch.linspace(-1, 3, 240).view(4, 3, 5, 4), vector, vector]


@pytest.mark.parametrize("make", [rows_of_one, parts_of_one, one_vector])
def test_tensors_that_share_memory(make: Callable[[], list[torch.Tensor]]) -> None:
    """Thunder would take them for one tensor, or fail, if the trace had a copy_ of its own."""
    found = []
    for wrap in (lambda one: one, jit):
        given = make()
        y = wrap(lambda *own: F.batch_norm(*own, training=True).relu())(*given)
        found.append([y, *given])
    for got, right in zip(*found, strict=True):
        torch.testing.assert_close(got, right)


def test_one_proxy_for_both_statistics() -> None:
    found = []
    for wrap in (lambda one: one, jit):
        x, vector, _ = one_vector()
        y = wrap(lambda x, v: F.batch_norm(x, v, v, training=True).relu())(x, vector)
        found.append([y, vector])
    for got, right in zip(*found, strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm(affine: bool, dtype: torch.dtype) -> None:
    """Running statistics are written where gradients are taken too."""
    found = []
    for wrap in (lambda net: net, jit):
        net = nn.InstanceNorm2d(3, affine=affine, track_running_stats=True).to(dtype)
        x = image(dtype, 2, 3, 5, 4).requires_grad_()
        jitted = wrap(net)
        for _ in range(2):
            y = jitted(x)
            (y * torch.arange(4)).sum().backward()
        found.append([y, x.grad, net.running_mean, net.running_var])
    limit = {torch.bfloat16: 5e-2, torch.float16: 5e-3}.get(dtype, 1e-5)
    for got, right in zip(*found, strict=True):
        most = limit * float(right.detach().abs().max())
        torch.testing.assert_close(got, right, atol=most, rtol=0)


def test_instance_norm_of_statistics_that_are_one_vector() -> None:
    found = []
    for wrap in (lambda each: each, jit):
        values = one_vector()
        y = wrap(lambda x, m, v: F.instance_norm(x, m, v, use_input_stats=False))(*values)
        found.append([y, *values])
    for got, right in zip(*found, strict=True):
        torch.testing.assert_close(got, right)
