# SPDX-License-Identifier: Apache-2.0
"""Results of a region lie in memory in the order of its inputs, as those of eager torch do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser.executors.traces import jit

IMAGE = (2, 3, 5, 4)


def last(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


AS_EAGER: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "one operand": (torch.relu, (last(*IMAGE),)),
    "a chain": (lambda x: (x.exp() * 2).tanh(), (last(*IMAGE),)),
    "a transposed matrix": (torch.exp, (torch.randn(3, 4).t(),)),
    "a bias": (lambda x, b: x + b.view(1, -1, 1, 1), (last(*IMAGE), torch.randn(3))),
    "two images": (torch.add, (last(*IMAGE), last(*IMAGE))),
    "the first decides": (torch.add, (last(*IMAGE), torch.randn(IMAGE))),
    "the first is contiguous": (torch.add, (torch.randn(IMAGE), last(*IMAGE))),
    "another type": (lambda x: x.to(torch.bfloat16), (last(*IMAGE),)),
    "a mask": (lambda x: x > 0, (last(*IMAGE),)),
    "where": (lambda x: torch.where(x > 0, x, 0.5), (last(*IMAGE),)),
    "more channels": (lambda x, y: torch.cat([x, y], 1), (last(*IMAGE), last(*IMAGE))),
    "part of an image": (lambda x: x[:, :, 1:].exp(), (last(*IMAGE),)),
    "not dense": (torch.exp, (last(2, 3, 9, 4)[:, :, ::2],)),
    "one channel": (torch.exp, (last(2, 1, 5, 4),)),
    "made contiguous": (lambda x: x.exp().contiguous(), (last(*IMAGE),)),
    "an expanded operand first": (torch.add, (torch.randn(5, 4).expand(2, 3, 5, 4), last(*IMAGE))),
    "volumes": (torch.exp, (torch.randn(2, 2, 3, 5, 4).permute(0, 4, 1, 2, 3),)),
}  # fmt: skip
CONTIGUOUS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "contiguous inputs": (torch.exp, (torch.randn(IMAGE),)),
    "a sum": (lambda x: x.exp().sum(1), (last(*IMAGE),)),
    "axes moved inside": (lambda x: x.exp().transpose(0, 1).tanh(), (torch.randn(3, 4),)),
}


def strides(tensor: torch.Tensor) -> list[int]:
    """Those of axes with more than one element."""
    given = zip(tensor.stride(), tensor.shape, strict=True)
    return [stride for stride, size in given if size > 1]


def run(function: Callable[..., Any], values: tuple[torch.Tensor, ...]) -> torch.Tensor:
    got, right = jit(function, strict=True)(*values), function(*values)
    torch.testing.assert_close(got, right)
    return got


@pytest.mark.parametrize("name", AS_EAGER)
def test_as_in_eager(name: str) -> None:
    function, values = AS_EAGER[name]
    assert strides(run(function, values)) == strides(function(*values))


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_contiguous(name: str) -> None:
    assert run(*CONTIGUOUS[name]).is_contiguous()


def test_each_order_of_a_call_has_its_own_program() -> None:
    jitted = jit(torch.exp, strict=True)
    for x in (torch.randn(IMAGE), last(*IMAGE), torch.randn(IMAGE)):
        assert jitted(x).stride() == x.stride()


def test_gradients_lie_as_their_tensors() -> None:
    x = last(*IMAGE).requires_grad_()
    jit(lambda x: (x * x).tanh(), strict=True)(x).sum().backward()
    assert x.grad is not None and x.grad.stride() == x.stride()


ROW_MAJOR: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.5),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "logsigmoid": F.logsigmoid,
    "tril": torch.tril,
    "roll": lambda x: x.roll(1, 0),
    "cat": lambda x: torch.cat([x, x]),
}


@pytest.mark.parametrize("name", ROW_MAJOR)
def test_views_of_what_is_row_major_in_torch(name: str) -> None:
    """Though the argument is not: torch would refuse the views of what lies as the argument."""
    x = torch.randn(4, 6).t()[:, :4]

    def viewed(x: torch.Tensor) -> torch.Tensor:
        return ROW_MAJOR[name](x).view(-1)

    def written(x: torch.Tensor) -> torch.Tensor:
        y = ROW_MAJOR[name](x)
        y.reshape(-1).add_(1)
        return y

    run(viewed, (x,))
    run(written, (x,))


def test_a_view_that_keeps_the_order() -> None:
    """As eager's, whether it lies so or not."""
    run(lambda x: x.exp().view(2, 3, 20), (last(*IMAGE),))
