# SPDX-License-Identifier: Apache-2.0
"""A region stores the slices that it computes into a tensor that the program writes in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from helpers.cases import rand
from helpers.recorder import CpuRecorder

import thunder_fuser
from thunder_fuser.executors.cuda_graphs import transform
from thunder_fuser.executors.cuda_graphs.transform import CudaGraphs
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.explain.jitted import jit

Function = Callable[..., Any]


def values() -> list[torch.Tensor]:
    """Two caches of 8 places, a place, and a token's values of 2 heads."""
    return [rand(1, 2, 8, 4), rand(1, 2, 8, 4, seed=1), torch.tensor([5]), rand(1, 2, 1, 4, seed=2)]


def token(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    keys.index_copy_(2, at, torch.tanh(x))
    return torch.softmax(keys * x, 2)


def two_caches(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    k = torch.sin(x)
    keys.index_copy_(2, at, k)
    rest.index_copy_(2, at, k * x)
    return (keys * rest).sum(2)


def behind_a_view(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    keys.index_copy_(2, at, torch.tanh(x).reshape(2, 4).view(1, 2, 1, 4))
    return keys * 2


def slices_returned(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    k = torch.tanh(x)
    keys.index_copy_(2, at, k)
    return k, keys + 1


def returned(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    keys.index_copy_(2, at, torch.tanh(x))
    return keys


def twice(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    """The second write is of what reads the first."""
    keys.index_copy_(2, at, torch.tanh(x))
    rest.index_copy_(2, at, torch.exp(keys[:, :, :1] + x))
    return rest.sum()


def read_before(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    """The old contents are read by another region."""
    old = (keys @ rest.mT) * 2
    keys.index_copy_(2, at, torch.tanh(x))
    return old + keys.sum()


# {function: how many writes a region does}
FIRES = {token: 1, two_caches: 2, behind_a_view: 1, slices_returned: 1, returned: 1, twice: 2,
         read_before: 1}  # fmt: skip


def read_in_the_region(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    keys.index_copy_(2, at, torch.tanh(x) + keys[:, :, 3:4])
    return keys * 2


def read_between(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    k = torch.tanh(x)
    old = keys @ rest.mT
    keys.index_copy_(2, at, k)
    return old, keys * 2


def of_an_argument(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    keys.index_copy_(2, at, x)
    return keys * 2


def stores(jitted: Any) -> int:
    """The writes of regions in the last trace."""
    last = thunder.last_traces(jitted)[-1].bound_symbols
    regions = [one for one in last if one.sym.name.startswith("thunderFusion")]
    names = [part.sym.name for one in regions for part in one.subsymbols]
    left = [one.sym.name for one in last].count("index_copy_")
    assert left + names.count("index_copy") in (1, 2)
    return names.count("index_copy")


@pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])
@pytest.mark.parametrize("function", FIRES, ids=lambda one: one.__name__)
def test_it_fires(function: Function, emulate: bool) -> None:
    jitted = jit(function, strict=True, emulate=emulate)
    mine, its = values(), values()
    for at in (5, 0, 7):
        mine[2], its[2] = torch.tensor([at]), torch.tensor([at])
        with torch.no_grad():
            torch.testing.assert_close(jitted(*mine), function(*its))
        torch.testing.assert_close(mine, its)
    assert stores(jitted) == FIRES[function]


@pytest.mark.parametrize(
    "function", [read_in_the_region, read_between, of_an_argument], ids=lambda one: one.__name__
)
def test_it_does_not_fire(function: Function) -> None:
    jitted, mine, its = jit(function, strict=True), values(), values()
    torch.testing.assert_close(jitted(*mine), function(*its))
    torch.testing.assert_close(mine, its)
    assert stores(jitted) == 0


def the_same_slices(keys: Any, rest: Any, at: Any, x: Any) -> Any:
    k = torch.tanh(x)
    keys.index_copy_(2, at, k)
    rest.index_copy_(2, at, k)
    return (keys * rest).sum(2)


@pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])
def test_the_same_slices_into_two_caches(emulate: bool) -> None:
    jitted, mine, its = jit(the_same_slices, strict=True, emulate=emulate), values(), values()
    torch.testing.assert_close(jitted(*mine), the_same_slices(*its))
    torch.testing.assert_close(mine, its)
    assert stores(jitted) == 2


class TwoNames(torch.nn.Module):
    """A buffer with two names, one of which torch reads before the other is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", rand(1, 2, 8, 4))
        self.register_buffer("shown", self.keys)
        self.project = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        k = self.project(x) * 2
        old = self.shown @ self.shown.mT
        self.keys.index_copy_(2, at, torch.tanh(k))
        return old, self.shown * 1, self.keys * 2


@pytest.mark.parametrize("door", [thunder_fuser.jit, jit])
def test_a_buffer_with_two_names(door: Callable[..., Any]) -> None:
    mine = TwoNames()
    its = copy.deepcopy(mine)
    jitted = door(mine)
    with torch.no_grad():
        for at in range(3):
            x, where = rand(1, 2, 1, 4, seed=at), torch.tensor([at])
            torch.testing.assert_close(jitted(x, where), its(x, where))


class Attention(torch.nn.Module):
    """A token's query, keys and values, and its attention to a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.ModuleList(torch.nn.Linear(16, 16, bias=False) for _ in range(3))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(2, 4, 8, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k, v = (one(x).view(2, 1, 4, 4).transpose(1, 2) for one in self.project)
        self.keys.index_copy_(2, at, torch.sin(k))
        self.values.index_copy_(2, at, torch.cos(v))
        scores = q @ self.keys.mT + torch.where(torch.arange(8) <= at, 0.0, float("-inf"))
        return torch.softmax(scores, -1) @ self.values


@pytest.mark.parametrize("graphs", [False, True], ids=["", "in graphs"])
def test_a_loop_of_tokens(monkeypatch: pytest.MonkeyPatch, graphs: bool) -> None:
    """Buffers keep their memory, and each token sees those before."""
    monkeypatch.setattr(transform, "_LEAST", 1)
    mine = Attention()
    its = copy.deepcopy(mine)
    place = mine.keys.data_ptr()
    options = {"executors": [fuser], "fuser_strict": True, "fuser_cuda_graphs": graphs}
    jitted = thunder.jit(mine, transforms=[CudaGraphs(recorder=CpuRecorder())][:graphs], **options)
    with torch.no_grad():
        for at in range(8):
            x, where = rand(2, 1, 16, seed=at), torch.tensor([at])
            torch.testing.assert_close(jitted(x, where), its(x, where))
    torch.testing.assert_close(mine.keys, its.keys)
    torch.testing.assert_close(mine.values, its.values)
    assert mine.keys.data_ptr() == place
