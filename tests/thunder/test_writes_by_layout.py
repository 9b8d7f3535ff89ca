# SPDX-License-Identifier: Apache-2.0
"""Writes in place beside a reshape, which is a view or a copy as strides decide: as in eager torch,
for each layout of the argument, in one jitted function that is called with all of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import thunder_fuser
from thunder_fuser.executors.fuser import fuser

Function = Callable[..., Any]
SHAPE = (2, 3, 4, 5)

LAYOUTS: dict[str, Function] = {
    "contiguous": lambda t: t,
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "with gaps": lambda t: torch.stack([t, t], -1)[..., 0],
    "expanded": lambda t: t[:, :1].expand(SHAPE),
}
SOURCES: dict[str, Function] = {
    "sine": lambda x: x.sin(),
    "copy": lambda x: x.clone(),
    "sum": lambda x: x + torch.ones(5),
}
VIEWS: dict[str, Function] = {
    "reshape": lambda t: t.reshape(-1),
    "reshape of two": lambda t: t.reshape(6, 20),
    "flatten": lambda t: t.flatten(2),
    "contiguous": lambda t: t.contiguous(),
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "reshape_as": lambda t: t.reshape_as(torch.empty(24, 5)),
    "rows": lambda t: t.permute(0, 2, 3, 1).reshape(-1, 3),
    "repeated": lambda t: t[:, :, None].expand(2, 3, 2, 4, 5).reshape(2, 6, 4, 5),
    "part": lambda t: t[:, 1:].reshape(2, -1)[:, 2:],
}


def to_source(source: Any, view: Any) -> None:
    source.mul_(2)


def to_view(source: Any, view: Any) -> None:
    view.add_(source.sum())


def to_part(source: Any, view: Any) -> None:
    view[0].add_(10)


def to_both(source: Any, view: Any) -> None:
    view.mul_(3)
    source[1].sub_(1)


WRITES = {one.__name__: one for one in (to_source, to_view, to_part, to_both)}
JITS: dict[str, Callable[..., Function]] = {
    "thunder.jit": lambda f: thunder.jit(f, executors=[fuser], fuser_fuel=0),
    "thunder_fuser.jit": thunder_fuser.jit,
}


def outcome(function: Function, x: Tensor) -> list[Tensor]:
    """The results, and the gradient of the argument."""
    torch.manual_seed(1)
    x = x.detach().requires_grad_()
    results = function(x)
    torch.autograd.backward(results, [torch.rand(one.shape).to(one) for one in results])
    return [*(one.detach() for one in results), x.grad]  # type: ignore[list-item]


def check_all_layouts(
    function: Function, jitted: Function, dtype: torch.dtype = torch.float32
) -> None:
    torch.manual_seed(0)
    values = torch.randn(SHAPE, dtype=dtype)
    for name in (*LAYOUTS, *LAYOUTS):
        x = LAYOUTS[name](values)
        torch.testing.assert_close(outcome(jitted, x), outcome(function, x))


CASES = [  # each pair of a view, a write and a source
    (view, write, [*SOURCES][(i + k) % len(SOURCES)])
    for i, view in enumerate(VIEWS) for k, write in enumerate(WRITES)
]  # fmt: skip


@pytest.mark.parametrize(("view", "write", "source"), CASES)
def test_as_eager(view: str, write: str, source: str) -> None:
    def function(x: Any) -> Any:
        base = SOURCES[source](x)
        seen = VIEWS[view](base)
        WRITES[write](base, seen)
        return base * 1, seen * 2, x.sin()

    check_all_layouts(function, JITS["thunder.jit"](function))


FUSED: dict[str, Function] = {
    "sine": lambda x: x.sin(),
    "layer norm": lambda x: F.layer_norm(x, (5,)),
    "group norm": lambda x: F.group_norm(x, 3),
    "running sum": lambda x: x.cumsum(1),
}


@pytest.mark.parametrize("write", [to_source, to_view])
@pytest.mark.parametrize("source", FUSED)
def test_where_regions_have_other_strides(source: str, write: Function) -> None:
    """Eager torch's strides decide, whatever those of a region or of its torch calls are."""

    def function(x: Any) -> Any:
        base = FUSED[source](x)
        seen = base.reshape(6, 20)
        write(base, seen)
        return base * 1, seen * 2, x.sin()

    check_all_layouts(function, thunder.jit(function, executors=[fuser]), torch.float64)


@pytest.mark.parametrize("jit", JITS)
def test_a_program_for_each_layout(jit: str) -> None:
    """Of an argument that decides; the other one may lie as it likes."""

    def function(x: Any, c: Any) -> Any:
        base = x.sin()
        base.reshape(-1).mul_(2)
        return base * c, (c * 2).reshape(-1)

    jitted = JITS[jit](function)
    contiguous, channels_last = LAYOUTS["contiguous"], LAYOUTS["channels last"]
    for of_x, of_c in [*product((contiguous, channels_last), repeat=2)] * 2:
        x, c = of_x(torch.randn(SHAPE)).requires_grad_(), of_c(torch.randn(SHAPE))
        torch.testing.assert_close(jitted(x, c), function(x, c))
    assert thunder.cache_misses(jitted) == 2


@pytest.mark.parametrize("jit", JITS)
def test_layouts_of_weights(jit: str) -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolve = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            image = self.convolve(x)
            image.permute(0, 2, 3, 1).reshape(-1, 3).add_(1)
            return image * 1, x.sin()

    for format in (torch.contiguous_format, torch.channels_last):
        model = Rows().to(memory_format=format)
        check_all_layouts(model, JITS[jit](model))
