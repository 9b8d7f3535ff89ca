# SPDX-License-Identifier: Apache-2.0
"""Custom autograd.Functions, and torch.eye, by every door: values and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from thunder.dynamo import thunderfx
from torch import Tensor
from torch.autograd import Function

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.errors import ThunderLimitError

DOORS: dict[str, Callable[[Any], Any]] = {
    "thunder.jit": lambda function: thunder.jit(function, executors=[fuser]),
    "thunder_fuser.jit": thunder_fuser.jit,
    "thunderfx": lambda function: thunderfx(function, executors=[fuser]),
}


class Tripled(Function):
    """One result, and a gradient that is not that of the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y * 3


class Two(Function):
    """Two results, a number among the arguments, and a number that ctx holds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        ctx.scale = scale
        ctx.save_for_backward(x, weight)
        return x * weight * scale, x + weight

    @staticmethod
    def backward(ctx: Any, of_product: Tensor, of_sum: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_x = of_product * weight * ctx.scale + of_sum * 5
        return of_x, of_product * x * ctx.scale + of_sum, None


class Masked(Function):
    """A result without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = x > 0
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        return x * 2, mask

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return gradient * mask


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "single": lambda x, w: Tripled.apply(x) * 2 + w,
    "two": lambda x, w: sum(y.tanh() for y in Two.apply(x, w, 2.0)),
    "masked": lambda x, w: Masked.apply(x * 1)[0] * w,
    "both": lambda x, w: torch.where(Masked.apply(x)[1], x, w) * Tripled.apply(w),
}


def values(function: Any) -> list[Tensor]:
    torch.manual_seed(0)
    arguments = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    result = function(*arguments)
    result.sum().backward()
    return [result.detach(), *(x.grad for x in arguments)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_through_thunderfx(name: str) -> None:
    torch._dynamo.reset()
    compiled = DOORS["thunderfx"](PROGRAMS[name])
    torch.testing.assert_close(values(compiled), values(PROGRAMS[name]))
    infos = compiled._backend.subgraph_infos
    assert [len(info.thunder_compiled_fns) for info in infos] == [1]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(4), lambda: torch.eye(3, 4), lambda: torch.eye(4, m=2),
        lambda: torch.eye(4, dtype=torch.int64), lambda: torch.eye(n=4, dtype=torch.bool),
    ],
)  # fmt: skip
def test_eye(make: Callable[[], Tensor], door: str) -> None:
    torch._dynamo.reset()
    expected = make()
    result = DOORS[door](lambda x: (x, make()))(torch.ones(2))[1]
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result, expected)


class Asking(Function):
    """Asks ctx for what Thunder's has not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        getattr(ctx, name)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * 2, None


@pytest.mark.parametrize(
    "name", ["needs_input_grad", "mark_non_differentiable", "set_materialize_grads", "mark_dirty"]
)
def test_what_thunder_s_context_lacks(name: str) -> None:
    with pytest.raises(ThunderLimitError, match=rf"got ctx\.{name} of an .*dynamo\.thunderfx"):
        thunder_fuser.jit(lambda x: Asking.apply(x, name))(torch.ones(2))
    with pytest.raises(AttributeError, match=r"^mine$"):
        thunder_fuser.jit(lambda x: Asking.apply(x, "mine"))(torch.ones(2))


@pytest.mark.parametrize("name", ["requires_grad", "out"])
def test_an_eye_with_more_arguments(name: str) -> None:
    with pytest.raises(ThunderLimitError, match=rf"^torch\.eye: expected n, m.*got {name}\b"):
        thunder_fuser.jit(lambda x: torch.eye(4, **{name: x if name == "out" else True}))(
            torch.ones(4, 4)
        )
