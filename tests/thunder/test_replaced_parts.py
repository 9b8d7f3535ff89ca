# SPDX-License-Identifier: Apache-2.0
"""A jitted module reads the parameters, buffers, submodules and hooks that its model has now."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from helpers.cases import rand
from torch import nn

import thunder_fuser
from thunder_fuser.executors.fuser import fuser


class Model(nn.Module):
    mean: torch.Tensor
    shift: torch.Tensor
    act: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(3, 3), nn.GELU()
        self.layers = nn.ModuleList([nn.Tanh(), nn.Sigmoid()])
        self.register_buffer("mean", torch.ones(3))
        self.register_buffer("shift", torch.full((3,), 0.5))
        self.scale, self.slope = 1.5, 2.0

    @property
    def twice(self) -> float:
        return 2 * self.slope

    @twice.setter
    def twice(self, value: float) -> None:
        self.slope = value / 2

    def forward(self, x: Any) -> Any:
        x = x * self.scale * self.slope + self.shift
        x = self.act(self.first(x)) * self.mean
        for layer in self.layers:
            x = layer(x)
        return x


def a_parameter(model: Any) -> None:
    model.first.weight = nn.Parameter(torch.full((3, 3), 2.0))


def another_type(model: Any) -> None:
    model.double()


def no_bias(model: Any) -> None:
    model.first.bias = None


def a_buffer(model: Any) -> None:
    model.mean = torch.full((3,), 5.0)


def a_new_buffer(model: Any) -> None:
    inner = getattr(model, "_model", model)
    del inner.mean
    inner.register_buffer("mean", torch.full((3,), 9.0))


def a_submodule(model: Any) -> None:
    model.act = nn.ReLU()


def a_submodule_with_weights(model: Any) -> None:
    model.first = nn.Linear(3, 3, bias=False).to(model.mean.dtype)
    model.first.weight.data.fill_(0.3)


def another_layer(model: Any) -> None:
    model.layers[0] = nn.ReLU()


def one_more_layer(model: Any) -> None:
    model.layers.append(nn.Tanh())


def one_layer_less(model: Any) -> None:
    del model.layers[1]


def a_number(model: Any) -> None:
    model.scale = -3.0


def a_property(model: Any) -> None:
    model.twice = 7.0


def a_hook(model: Any) -> None:
    model.first.register_forward_hook(lambda module, args, result: result * 3)


def a_parametrization(model: Any) -> None:
    nn.utils.parametrize.register_parametrization(model.first, "weight", nn.Tanh())


CHANGES = [
    a_parameter, another_type, no_bias, a_buffer, a_new_buffer, a_submodule,
    a_submodule_with_weights, another_layer, one_more_layer, one_layer_less, a_number, a_property,
    a_hook, a_parametrization,
]  # fmt: skip
DOORS = {
    "thunder_fuser": thunder_fuser.jit,
    "thunder": lambda model: thunder.jit(model, executors=[fuser]),
}
Change = Callable[[Any], None]


def compare(eager: Any, jitted: Any, of_jitted: Any) -> None:
    """Results, and the gradients of all parameters."""
    x = rand(4, 3).to(eager.mean.dtype)
    expected, got = eager(x), jitted(x)
    torch.testing.assert_close(got, expected)
    for model in (eager, of_jitted):
        model.zero_grad()
    expected.sum().backward()
    got.sum().backward()
    grads = {name: p.grad for name, p in of_jitted.named_parameters()}
    torch.testing.assert_close(grads, {name: p.grad for name, p in eager.named_parameters()})


@pytest.mark.parametrize(  # of door, called and by each pair
    ("door", "called", "by"),
    [("thunder_fuser", False, "the model"), ("thunder_fuser", True, "the jitted module"),
     ("thunder", True, "the model"), ("thunder", False, "the jitted module")],
)  # fmt: skip
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change(change: Change, by: str, called: bool, door: str) -> None:
    eager = Model()
    model = copy.deepcopy(eager)
    jitted = DOORS[door](model)
    if called:
        compare(eager, jitted, model)
    change(eager)
    change(model if by == "the model" else jitted)
    compare(eager, jitted, model)
    compare(eager, jitted, model)


@pytest.mark.parametrize("as_argument", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_module_that_a_function_calls(change: Change, as_argument: bool) -> None:
    eager = Model()
    model = copy.deepcopy(eager)
    of_two = thunder_fuser.jit(lambda module, x: module(x) * 1)
    of_one = thunder_fuser.jit(lambda x: model(x) * 1)
    jitted = (lambda x: of_two(model, x)) if as_argument else of_one
    compare(eager, jitted, model)
    change(eager)
    change(model)
    compare(eager, jitted, model)


def test_a_hook_that_goes() -> None:
    model = Model()
    hook = model.first.register_forward_hook(lambda module, args, result: result * 3)
    jitted, x = thunder_fuser.jit(model), rand(4, 3)
    torch.testing.assert_close(jitted(x), model(x))
    hook.remove()
    torch.testing.assert_close(jitted(x), model(x))


def test_tensors_of_the_same_kind_are_not_traced_again() -> None:
    model = Model()
    jitted, x = thunder_fuser.jit(model), rand(4, 3)
    for change in (a_parameter, a_buffer):
        jitted(x)
        change(model)
        torch.testing.assert_close(jitted(x), model(x))
    assert thunder.cache_misses(jitted) == 1


def test_what_a_transform_gave_stays() -> None:
    model = Model()
    jitted = thunder_fuser.jit(model)
    jitted._overrides_parameters["first.weight"] = given = nn.Parameter(torch.zeros(3, 3))
    a_parameter(model)
    a_submodule(model)
    jitted(rand(4, 3)).sum().backward()
    assert given.grad is not None and model.first.weight.grad is None


class Averages(nn.Module):
    mean: Any

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(3))

    def forward(self, x: Any) -> Any:
        before = self.mean
        self.mean = self.mean * 0.9 + x * 0.1
        return x - self.mean * before


class Keeps(Averages):
    def forward(self, x: Any) -> Any:
        before, self.mean = self.mean * 2, x
        return before + self.mean


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", [Averages, Keeps])
@pytest.mark.parametrize("is_inner", [False, True])
def test_a_buffer_that_forward_assigns(kind: type[nn.Module], is_inner: bool, door: str) -> None:
    eager = nn.Sequential(kind(), nn.Tanh()) if is_inner else kind()
    model = copy.deepcopy(eager)
    jitted = DOORS[door](model)
    for seed in range(4):
        x = rand(3, seed=seed)
        torch.testing.assert_close(jitted(x), eager(x))
        for read in (model, jitted):
            torch.testing.assert_close(read.state_dict(), eager.state_dict())
    assert thunder.cache_misses(jitted) == 1
