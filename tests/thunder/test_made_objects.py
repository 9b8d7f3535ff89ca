# SPDX-License-Identifier: Apache-2.0
"""Attributes of objects that a traced program makes: each read sees the last store, and `del`.

The properties of a jitted module run again too, once its forward has stored something.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from helpers.cases import rand
from torch import nn

import thunder_fuser
from thunder_fuser.executors.fuser import fuser


class Plain:
    a: Any
    b: Any


class WithDefault:
    a: Any = 7.0


class WithProperty:
    def __init__(self, n: Any) -> None:
        self.n = n

    @property
    def twice(self) -> Any:
        return self.n * 2

    @twice.setter
    def twice(self, value: Any) -> None:
        self.n = value / 2


class DoublesStores:
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value * 2)


class Tripled:
    def __get__(self, of: Any, kind: Any = None) -> Any:
        return of.v * 3

    def __set__(self, of: Any, value: Any) -> None:
        of.v = value


class WithDescriptor:
    a = Tripled()


class WithCache:
    def __init__(self, x: Any) -> None:
        self.x = x

    @functools.cached_property
    def more(self) -> Any:
        return self.x + 1


class WithSlots:
    __slots__ = ("a",)


class Looked:
    def __init__(self) -> None:
        self.table: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return self.table[name]


@dataclasses.dataclass
class Data:
    a: Any
    b: Any = 2.0

    def __post_init__(self) -> None:
        self.a = self.a * 2


def a_property_of_numbers(x: Any) -> Any:
    made = WithProperty(1.0)
    before, made.n = made.twice, 3.0
    return x * before + made.twice


def a_property_of_tensors(x: Any) -> Any:
    made = WithProperty(x)
    before, made.n = made.twice, x * 7
    return before + made.twice


def a_setter(x: Any) -> Any:
    made = WithProperty(1.0)
    before = made.twice
    made.twice = x
    return before * made.twice + made.n


def a_store_that_changes_the_value(x: Any) -> Any:
    made = DoublesStores()
    made.a = x
    made.a = made.a + 1
    return made.a + 1


def a_store_in_dict(x: Any) -> Any:
    made = Plain()
    made.a = x
    before, made.__dict__["a"] = made.a, x * 3
    return before + made.a


def an_update_of_dict(x: Any) -> Any:
    made = Plain()
    made.a = x
    vars(made).update(a=x * 2, b=x)
    return made.a + made.b


def a_store_of_object(x: Any) -> Any:
    made = Plain()
    made.a = x
    before = made.a
    object.__setattr__(made, "a", x * 4)
    return before + made.a


def a_delete(x: Any) -> Any:
    made = WithDefault()
    made.a = x
    before = made.a
    del made.a
    return before + made.a


def a_delete_of_all(x: Any) -> Any:
    made = Plain()
    made.a = x
    before = made.a
    del made.a
    return before + (1 if hasattr(made, "a") else 5)


def a_descriptor(x: Any) -> Any:
    made = WithDescriptor()
    made.a = x
    before, made.a = made.a, x * 2
    return before + made.a


def a_cached_property(x: Any) -> Any:
    made = WithCache(x)
    first, made.x = made.more, x * 7
    second = made.more
    del made.more
    return first + second * 2 + made.more


def slots(x: Any) -> Any:
    made = WithSlots()
    made.a = x
    before, made.a = made.a, x * 2
    return before + made.a


def a_table(x: Any) -> Any:
    made = Looked()
    made.table["u"] = x
    before, made.table["u"] = made.u, x * 5
    return before + made.u


def a_dataclass(x: Any) -> Any:
    made = Data(x)
    made.a = made.a + 1
    other = dataclasses.replace(made, b=3.0)
    return other.a * other.b + made.a


PROGRAMS: list[Callable[[Any], Any]] = [
    a_property_of_numbers, a_property_of_tensors, a_setter, a_store_that_changes_the_value,
    a_store_in_dict, an_update_of_dict, a_store_of_object, a_delete, a_delete_of_all,
    a_descriptor, a_cached_property, slots, a_table, a_dataclass,
]  # fmt: skip
JITS = [thunder_fuser.jit, lambda function: thunder.jit(function, executors=[fuser])]


@pytest.mark.parametrize("jit", JITS, ids=["thunder_fuser", "thunder"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_reads_see_the_last_store(program: Callable[[Any], Any], jit: Any) -> None:
    jitted = jit(program)
    for seed in range(2):
        x = rand(3, seed=seed)
        torch.testing.assert_close(jitted(x), program(x))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 1.0
        self.weight = nn.Parameter(torch.ones(3))

    @property
    def rate(self) -> Any:
        return self.steps * 2

    def forward(self, x: Any) -> Any:
        before = self.rate
        self.steps = self.steps + 1.0
        return x * before + self.rate * self.weight


@pytest.mark.parametrize("jit", JITS, ids=["thunder_fuser", "thunder"])
def test_a_property_of_the_module(jit: Any) -> None:
    eager = Counting()
    model = copy.deepcopy(eager)
    jitted = jit(model)
    for seed in range(3):
        x = rand(3, seed=seed)
        torch.testing.assert_close(jitted(x), eager(x))
        assert model.steps == eager.steps


NAMED: list[Callable[[Any], Any]] = [
    lambda x: x - x.max(dim=-1, keepdim=True).values,
    lambda x: torch.sort(x, 1).values * torch.topk(x, 5).indices,
    lambda x: x.cummax(1).values.median(1).indices,
]


@pytest.mark.parametrize("function", NAMED)
def test_names_of_results(function: Callable[[Any], Any]) -> None:
    x = rand(4, 5)
    torch.testing.assert_close(thunder_fuser.jit(function)(x), function(x))
