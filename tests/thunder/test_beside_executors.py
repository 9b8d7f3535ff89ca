# SPDX-License-Identifier: Apache-2.0
"""The fuser beside other fusion executors: regions that Thunder would edit after our pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.executors.torch_compile import torch_compile_xentropy_ex
from thunder.extend import Executor, set_default_executors
from torch import nn

from tests.helpers.models import MODELS, arguments
from thunder_fuser.executors.fuser import fuser

LISTS: dict[str, Callable[[], list[Executor]]] = {
    "alone": lambda: [fuser],
    "first": lambda: [fuser, *thunder.get_default_executors()],
    "last": lambda: [*thunder.get_default_executors(), fuser],
    "before xentropy": lambda: [fuser, torch_compile_xentropy_ex],
}


def _normed() -> nn.Module:
    """A small residual net with batch norms, which write their running statistics."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(),
        nn.Flatten(), nn.Linear(4 * 64, 5),
    )  # fmt: skip


def _trained(call: Callable[..., torch.Tensor], net: nn.Module) -> list[object]:
    """The loss, gradients and buffers after two steps."""
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        loss = F.cross_entropy(call(x), torch.arange(4))
        loss.backward()
    return [loss, [one.grad for one in net.parameters()], list(net.buffers())]


@pytest.mark.parametrize("order", LISTS)
def test_batch_norms_train(order: str) -> None:
    eager, net = _normed(), _normed()
    jitted = thunder.jit(net, executors=LISTS[order](), fuser_strict=True)
    torch.testing.assert_close(_trained(jitted, net), _trained(eager, eager))


def test_batch_norms_train_as_a_default_executor() -> None:
    eager, net = _normed(), _normed()
    before = thunder.get_default_executors()
    thunder.add_default_executor(fuser)
    try:
        found = _trained(thunder.jit(net, fuser_strict=True), net)
    finally:
        set_default_executors(before)
    torch.testing.assert_close(found, _trained(eager, eager))


@pytest.mark.parametrize("order", LISTS)
@pytest.mark.parametrize("name", MODELS)
def test_blocks_train(name: str, order: str) -> None:
    given = arguments(name, torch.float64)  # so that rounding is far below errors
    function = _without_dropout(MODELS[name][0])
    jitted = thunder.jit(function, executors=LISTS[order](), fuser_strict=True)
    torch.testing.assert_close(_stepped(jitted, given), _stepped(function, given))


def _without_dropout(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The block, without the draws that differ from eager torch's."""
    same = dict(function.__globals__, F=_Without())
    return type(function)(function.__code__, same, function.__name__)  # type: ignore[call-overload]


class _Without:
    def __getattr__(self, name: str) -> object:
        return (lambda x, p: x) if name == "dropout" else getattr(F, name)


def _stepped(call: Callable[..., torch.Tensor], given: list[torch.Tensor]) -> list[object]:
    leaves = [one.detach().clone().requires_grad_() for one in given]
    made = call(*leaves)
    made.square().sum().backward()
    return [made, [one.grad for one in leaves]]
