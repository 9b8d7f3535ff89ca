# SPDX-License-Identifier: Apache-2.0
"""Programs that train, with the fuser in each place where Thunder takes executors, beside others:
values, gradients and buffers are eager torch's. Executors that fuse after us would edit regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.dynamo import thunderfx
from thunder.executors.torch_compile import torch_compile_ex
from thunder.extend import Executor, set_default_executors
from thunder.recipes import BaseRecipe
from torch import Tensor, nn

import thunder_fuser
from tests.helpers.models import MODELS, arguments
from thunder_fuser.demo.blocks import Sizes, make_block
from thunder_fuser.executors.fuser import fuser

STRICT = {"fuser_strict": True}
SIZES = Sizes(batch=2, sequence=8, width=16, heads=2, hidden=24)
IMAGES = (3, 3, 6, 6)


# --------------------------------------------------------------------------------- the programs


class Block(nn.Module):
    """Of a residual net: convolutions and batch norms, which write their running statistics."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, 2, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential(
            nn.Conv2d(channels, width, 1, 2, bias=False), nn.BatchNorm2d(width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm_1(self.first(x)))
        return F.relu(self.norm_2(self.second(y)) + self.shortcut(x))


def _residual() -> nn.Module:
    return nn.Sequential(Block(3, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


class Writes(nn.Module):
    """Buffers that are written, read, and written again, and a value that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.register_buffer("velocity", torch.ones(5, 8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.exp(x * self.weight)
        self.velocity.mul_(0.9).add_(y.detach())
        self.mean.lerp_(x.detach().mean(0), 0.1)
        self.steps.add_(1)
        y = y * self.velocity
        y.add_(1)
        moved = y - self.mean
        self.mean.mul_(2)
        return moved * torch.sigmoid(y) / self.steps


class Held(nn.Module):
    """A function of an input and weights, with the weights as parameters."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function, self.names = MODELS[name][0], list[str]()
        for at, weight in enumerate(arguments(name, torch.float64)[1:]):
            self.names.append(f"weight_{at}")
            setattr(self, self.names[-1], nn.Parameter(weight.detach()))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *[getattr(self, name) for name in self.names])


ROW = arguments("mlp", torch.float64)[0].shape
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual net": (_residual, IMAGES),
    "writes": (Writes, (5, 8)),
    **{name: (partial(Held, name), ROW) for name in MODELS},
    "torch's attention": (
        partial(make_block, "llama", SIZES, torch.float64, "cpu"), SIZES.shape
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------------- the ways


def _by_jit(*executors: Executor) -> Callable[[nn.Module], Any]:
    return lambda net: thunder.jit(net, executors=executors, **STRICT)


def _by_fx(*executors: Executor) -> Callable[[nn.Module], Any]:
    return lambda net: thunderfx(net, executors=executors, **STRICT)


def _by_recipe(interpreter: str, *names: str) -> Callable[[nn.Module], Any]:
    class Ours(BaseRecipe):
        def __init__(self) -> None:
            super().__init__(fuser="torch.compile", interpreter=interpreter)
            self.executor_names = [*names]

        def setup_config(self) -> dict[str, Any]:
            return STRICT

    return lambda net: thunder.compile(net, recipe=Ours())


def _by_default(net: nn.Module) -> Any:
    with _as_a_default():
        return thunder.jit(net, **STRICT)


@contextmanager
def _as_a_default() -> Iterator[None]:
    before = list(thunder.get_default_executors())  # Thunder adds to a list, and gives a tuple
    thunder.add_default_executor(fuser)
    try:
        yield
    finally:
        set_default_executors(before)


OTHERS = tuple(thunder.get_default_executors())
WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "alone": _by_jit(fuser),
    "first": _by_jit(fuser, *OTHERS),
    "last": _by_jit(*OTHERS, fuser),
    "a default": _by_default,
    "thunder_fuser.jit": partial(thunder_fuser.jit, executors=[fuser, *OTHERS], **STRICT),
    "a recipe": _by_recipe("thunder.jit", "thunder_fuser", "sdpa", "torchcompile_xentropy"),
    "a recipe, thunderfx": _by_recipe("thunder.fx", "thunder_fuser", "torchcompile_xentropy"),
    "thunderfx": _by_fx(*OTHERS, fuser),
    "before torchcompile": _by_jit(fuser, torch_compile_ex),
    "after torchcompile": _by_jit(torch_compile_ex, fuser),
    "thunderfx, before torchcompile": _by_fx(fuser, torch_compile_ex),
}


def _steps(call: Callable[[Tensor], Tensor], net: nn.Module, shape: tuple[int, ...]) -> list[Any]:
    """Results and gradients of two steps that change the parameters, then the buffers."""
    generator, found = torch.Generator().manual_seed(1), list[Any]()
    for _ in range(2):
        x = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        result = call(x)
        (result.square() * torch.linspace(0.5, 1.5, result.shape[-1])).sum().backward()
        found += [result.detach(), x.grad]
        for parameter in net.parameters():
            found.append(parameter.grad)
            parameter.data -= 0.01 * parameter.grad
            parameter.grad = None
    return [*found, *net.buffers()]


def _check(name: str, way: str) -> None:
    """In float64, so that rounding is far below errors."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, shape = PROGRAMS[name]
    net = make().double()
    eager = deepcopy(net)
    torch.testing.assert_close(_steps(WAYS[way](net), net, shape), _steps(eager, eager, shape))


@pytest.fixture(autouse=True)
def no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its draws differ from eager torch's."""
    monkeypatch.setattr(F, "dropout", lambda x, p: x)


PAIRS = [
    (name, way) for name in PROGRAMS for way in WAYS
    if name == "mlp" or way != "a default"  # Thunder puts it first
    if name != "torch's attention" or way in ("first", "last", "thunderfx")
]  # fmt: skip


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_it_trains_as_in_eager_torch(name: str, way: str) -> None:
    _check(name, way)


@pytest.mark.parametrize("way", ["before torchcompile", "thunderfx, before torchcompile"])
def test_beside_what_torchcompile_compiles(way: str) -> None:
    _check("mlp", way)


@pytest.mark.usefixtures("without_compiler")
def test_torchcompile_knows_the_names_inside_of_operations() -> None:
    """Thunder gave a value of its region the name of a part of sigmoid_, three levels deep."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        e = torch.exp(y)
        x.sigmoid_()
        return torch.floor(x) + e

    x, y = torch.randn(3), torch.randn(3)
    expected = function(x.clone(), y)
    torch.testing.assert_close(_by_jit(torch_compile_ex)(function)(x, y), expected)


def test_the_fuser_has_regions_in_each_place() -> None:
    """Else these tests would test nothing. What torchcompile takes first is not ours."""
    net, shape = PROGRAMS["mlp"][0]().double(), PROGRAMS["mlp"][1]
    for way in ("first", "last", "a default", "a recipe", "before torchcompile"):
        jitted = WAYS[way](net)
        jitted(torch.randn(shape, dtype=torch.float64))
        assert "thunderFusion" in str(thunder.last_traces(jitted)[-1]), way


# ------------------------------------------------------------------------- Thunder's own edits


class Velocity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("velocity", torch.ones(8, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.velocity.mul_(0.9)
        y = (x.detach() + 1).mean(0)  # which ends the first fusion of torchcompile
        self.velocity.add_(y)
        return torch.exp(x) * self.velocity


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("kind", ["consecutive", "dataflow"])
def test_writes_between_fusions_of_others_happen_once(kind: str) -> None:
    """Thunder repeated them in a fusion that read what was written, with any executor."""
    net = Velocity()
    eager = deepcopy(net)
    jitted = thunder.jit(net, executors=[torch_compile_ex], fusion_type=kind)
    torch.testing.assert_close(_steps(jitted, net, (5, 8)), _steps(eager, eager, (5, 8)))


@pytest.mark.usefixtures("without_compiler")
def test_a_copy_into_an_argument_beside_an_executor_of_all_of_torch() -> None:
    """Thunder leaves torch's copy_ whole there, with the operands the other way round."""

    def accumulate(x: Tensor, total: Tensor) -> Tensor:
        total.copy_(x)
        return (total * 2).exp()

    def store(x: Tensor, total: Tensor) -> None:
        total.copy_(x)

    x = torch.randn(4, 5)
    for program in (accumulate, store):
        total, wanted = torch.zeros(4, 5), torch.zeros(4, 5)
        jitted = thunder.jit(program, executors=[fuser, torch_compile_ex], **STRICT)
        with torch.no_grad():
            torch.testing.assert_close(jitted(x, total), program(x, wanted))
        torch.testing.assert_close(total, wanted)
