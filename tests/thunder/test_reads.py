# SPDX-License-Identifier: Apache-2.0
"""Objects that stay after a call and change before the next one: the program is traced again."""

from __future__ import annotations

import copy
import dataclasses
import enum
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from helpers.cases import rand
from torch import nn

import thunder_fuser
from thunder_fuser.errors import ThunderLimitError

NONE: Any = None
NUMBERS = [1.0]


class Kind(enum.Enum):
    A = 1
    B = 2


class Plain:
    none: Any = None


class State(nn.Module):
    late: Any

    def __init__(self) -> None:
        super().__init__()
        self.none: Any = None
        self.number: Any = 2.0
        self.tensor: Any = torch.full((3,), 2.0)
        self.numbers, self.pair, self.lists = [1.0], (1.0, 2.0), [[1.0], [2.0]]
        self.table: dict[str, Any] = {"a": 2.0}
        self.act: Any = F.relu
        self.dtype, self.kind, self.cls = torch.float32, Kind.A, int
        self.names, self.range, self.inner = {"a"}, range(2), Plain()


def put(name: str, *values: Any) -> list[Callable[[Any], object]]:
    """Changes that set an attribute to the values, one after the other."""
    return [lambda s, value=value: setattr(s, name, value) for value in values]


def call(method: str, *args: Any) -> list[Callable[[Any], object]]:
    of, _, name = method.partition(".")
    return [lambda s: getattr(getattr(s, of), name)(*copy.deepcopy(args))]


def late(value: Any) -> None:
    globals()["NONE"] = value


# {what changes: (what the program computes of a state and x, the changes)}
CASES: dict[str, tuple[Callable[[Any, Any], Any], list[Callable[[Any], object]]]] = {
    "None to a number": (lambda s, x: x if s.none is None else x * s.none,
                         put("none", 3.0, None, 4.0)),
    "None to a tensor": (lambda s, x: x if s.none is None else x * s.none,
                         put("none", torch.full((3,), 2.0), None)),
    "None to a parameter": (lambda s, x: x if s.none is None else x * s.none,
                            put("none", nn.Parameter(torch.full((3,), 2.0)))),
    "None to a module": (lambda s, x: x if s.none is None else s.none(x), put("none", nn.ReLU())),
    "a number to None": (lambda s, x: x if s.number is None else x * s.number,
                         put("number", None, 5.0)),
    "a tensor to None": (lambda s, x: x if s.tensor is None else x * s.tensor,
                         put("tensor", None)),
    "None of an object": (lambda s, x: x if s.inner.none is None else x * s.inner.none,
                          [lambda s: setattr(s.inner, "none", 3.0)]),
    "a sum of a list": (lambda s, x: x * sum(s.numbers),
                        call("numbers.append", 2.0) + call("numbers.pop")),
    "members of a list": (lambda s, x: x if 2.0 in s.numbers else x * 3,
                          call("numbers.append", 2.0)),
    "an empty list": (lambda s, x: x if s.numbers else x * 3, call("numbers.clear")),
    "lists in a list": (lambda s, x: x * sum(sum(inner) for inner in s.lists),
                        [lambda s: s.lists[1].append(3.0)]),
    "a tuple": (lambda s, x: x * sum(s.pair), put("pair", (1.0,), (1.0, 2.0, 3.0))),
    "a key": (lambda s, x: x if "b" in s.table else x * 2, call("table.update", {"b": 1.0})),
    "get": (lambda s, x: x * s.table.get("b", 1.0), call("table.update", {"b": 5.0})),
    "values": (lambda s, x: x * sum(s.table.values()), call("table.update", {"b": 5.0})),
    "a function": (lambda s, x: s.act(x), put("act", F.silu, torch.tanh, lambda x: x * 3)),
    "a type of tensors": (lambda s, x: x.to(s.dtype), put("dtype", torch.float64)),
    "an enumeration": (lambda s, x: x if s.kind is Kind.A else x * 2, put("kind", Kind.B)),
    "a class": (lambda s, x: x if s.cls is int else x * 2, put("cls", float)),
    "a set": (lambda s, x: x if "a" in s.names else x * 2,
              put("names", {"b"}) + call("names.add", "a")),
    "a range": (lambda s, x: x * len(s.range), put("range", range(5))),
    "a new attribute": (lambda s, x: x * 2 if hasattr(s, "late") else x, put("late", 1.0)),
    "a default": (lambda s, x: x * getattr(s, "late", 1.0), put("late", 3.0)),
    "a global": (lambda s, x: x if NONE is None else x * NONE,
                 [lambda s: late(3.0), lambda s: late(None)]),
    "a global list": (lambda s, x: x * sum(NUMBERS),
                      [lambda s: NUMBERS.append(2.0), lambda s: NUMBERS.pop()]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_module", [True, False], ids=["module", "closure"])
def test_a_change(case: str, is_module: bool) -> None:
    program, changes = CASES[case]
    state = type("Model", (State,), {"forward": program})()
    function = state if is_module else lambda x: program(state, x)
    jitted, x = thunder_fuser.jit(function), rand(3)
    torch.testing.assert_close(jitted(x), program(state, x))
    for change in changes:
        change(state)
        for _ in range(2):
            torch.testing.assert_close(jitted(x), program(state, x))


@dataclasses.dataclass
class Data:
    x: Any
    factor: Any = None


X = rand(3)
ARGUMENTS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "functions": (lambda x, act: act(x) * 2, [(X, F.relu), (X, F.silu), (X, lambda x: x * 3)]),
    "sets": (lambda x, s: x * 2 if "a" in s else x, [(X, {"a"}), (X, {"b"})]),
    "frozen sets": (lambda x, s: x * 2 if "a" in s else x,
                    [(X, frozenset("a")), (X, frozenset("b"))]),
    "ranges": (lambda x, r: x * len(r), [(X, range(2)), (X, range(3))]),
    "fields": (lambda d: d.x if d.factor is None else d.x * d.factor,
               [(Data(X),), (Data(X, X * 4),), (Data(X, 3.0),)]),
    "functions in a dict": (lambda d, x: d["a"][0](x),
                            [({"a": [F.relu]}, X), ({"a": [F.silu]}, X)]),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments(case: str) -> None:
    function, calls = ARGUMENTS[case]
    jitted = thunder_fuser.jit(function)
    for args in calls * 2:
        torch.testing.assert_close(jitted(*args), function(*args))
    assert thunder.cache_misses(jitted) == len(calls)


class Fills(nn.Module):
    def __init__(self, fill: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self.fill, self.items, self.table = fill, [1.0], {}

    def forward(self, x: Any) -> Any:
        self.fill(self, x)
        return x * 2


def append(self: Any, x: Any) -> None:
    self.items.append(x.sum())


def append_a_number(self: Any, x: Any) -> None:
    self.items.append(x.shape[0])


def store(self: Any, x: Any) -> None:
    self.table["x"] = x.sum()


@pytest.mark.parametrize("fill", [append, append_a_number, store])
def test_what_the_program_fills_is_refused(fill: Callable[[Any, Any], None]) -> None:
    model = Fills(fill)
    jitted = thunder_fuser.jit(model)
    for _ in range(2):
        with pytest.raises(ThunderLimitError, match="a list or dict that stays after the call"):
            jitted(X)
    assert (model.items, model.table) == ([1.0], {})


def remember(self: Any, x: Any) -> None:
    if "factor" not in self.table:
        self.table["factor"] = 2.0


def test_a_dict_may_keep_what_is_not_the_programs() -> None:
    jitted = thunder_fuser.jit(Fills(remember))
    for _ in range(3):
        torch.testing.assert_close(jitted(X), X * 2)


def test_an_unchanged_model_is_traced_once() -> None:
    model = type("Model", (State,), {"forward": CASES["a function"][0]})()
    jitted = thunder_fuser.jit(model)
    for _ in range(3):
        jitted(X)
    assert thunder.cache_misses(jitted) == 1


def test_the_error_of_a_program_that_fails_stays() -> None:
    def fails(self: Any, x: Any) -> None:
        append(self, x)
        raise ValueError("my own words")

    model = Fills(fails)
    with pytest.raises(ValueError, match="my own words"):
        thunder_fuser.jit(model)(X)
    assert model.items == [1.0]


def test_a_guard_that_fails_keeps_no_argument() -> None:
    model = State()
    jitted = thunder_fuser.jit(lambda x: x if model.none is None else x * model.none)
    jitted(X)
    model.none = 2.0
    x = torch.randn(3)
    alive = weakref.ref(x)
    jitted(x)
    jitted(x)
    del x
    assert alive() is None
