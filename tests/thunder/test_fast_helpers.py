# SPDX-License-Identifier: Apache-2.0
"""Thunder's helpers by the calls they make: same traces, guards, results and errors as without."""

from __future__ import annotations

import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any

import pytest
import thunder
import torch
from torch import nn

from thunder_fuser.explain.jitted import jit
from thunder_fuser.thunder_patches import interpreter_helpers as fast_helpers

SIZES = [1, 2]


class Countdown:
    """Iterates by methods of its own, which are interpreted."""

    def __init__(self, start: int) -> None:
        self.at = start

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        if self.at == 0:
            raise StopIteration
        self.at -= 1
        return self.at


class Box:
    """Answers every operator by a method of its own."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, item: Any) -> bool:
        return len(self.items) > 1 and item == "second"

    def __getitem__(self, at: int) -> Any:
        return self.items[at] * 2

    def __add__(self, other: Any) -> Any:
        return self.items[0] + other if isinstance(other, int) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return self.items[0] - 1

    def __iadd__(self, other: Any) -> Box:
        self.items[0] = self.items[0] + other
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, list(value) if name == "items" else value)


class Old:
    """Is iterated, and asked what it contains, by its indices."""

    def __getitem__(self, at: int) -> float:
        if at == 3:
            raise IndexError
        return at + 0.5


def iterated(x: torch.Tensor) -> torch.Tensor:
    for at in Countdown(3):
        x = x + at
    for scale in [2.0, 3.0]:
        x = x * scale
    for scale in reversed((0.5, 0.25)):
        x = x * scale
    for scale in Old():
        x = x * scale
    first, (second, *rest) = 1.0, [2.0, 3.0, 4.0]
    return x + first + second + sum(rest) + next(iter([1.5])) + next(iter([]), 2.5)


def operated(x: torch.Tensor) -> torch.Tensor:
    box = Box([x, x + 1])
    box += 2
    box.items = (*box.items, x * 3)
    total = box + 1
    total = total + (2.5 + box) + (2 * total) + (total - 1) / 2
    total += len(box) * box[1]
    return total * 2 if "second" in box and "first" not in box and 4 not in [1, 2] else total


def scaled(by: float, x: torch.Tensor, *more: float, plus: float = 0.0) -> torch.Tensor:
    return x * by * sum(more) + plus


HALF = partial(scaled, 0.5, plus=4.0)


def called(x: torch.Tensor) -> torch.Tensor:
    given = {"plus": 1.0}
    merged = {"minus": 3.0} | given
    merged.update({"times": 2.0})
    x = HALF(x, 2.0, *[3.0], **given) + HALF(x, 1.0) + scaled(*[2.0, x], *(1.0,), **given)
    x = x.reshape(4, 3).transpose(0, 1)
    return x * merged["times"] + merged["minus"] + merged["plus"]


class Settings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.power = nn.Linear(4, 4), 2
        self.register_buffer("shift", torch.ones(4))
        self.scales = [0.5, 2.0]
        self.by_name = {"a": 3.0, "b": 4.0}
        self.ordered = OrderedDict(a=1.5)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        x = self.linear(x) * self.scales[1] + self.shift
        for name in ("a", "c"):
            if name in self.by_name:
                x = x * self.by_name[name] + self.ordered["a"]
        return x**self.power + len(self.scales) + getattr(self, "absent", 5.0)


PROGRAMS: dict[str, Callable[[], Callable[..., Any]]] = {
    "iterated": lambda: iterated, "operated": lambda: operated, "called": lambda: called,
    "settings": Settings,
}  # fmt: skip


def texts(jitted: Any) -> list[str]:
    """The prologue, with all its guards, and the computation, without how long passes took."""
    traces = (thunder.last_prologue_traces(jitted)[-1], thunder.last_traces(jitted)[0])
    return ["\n".join(str(trace).splitlines()[1:]) for trace in traces]


@pytest.mark.parametrize("name", PROGRAMS)
def test_traces_guards_and_results_are_the_same(name: str) -> None:
    x, found = torch.randn(3, 4), []
    for fast in (True, False):
        function = PROGRAMS[name]()  # anew: a step of `Settings` is counted, and guarded
        jitted = jit(function, strict=True, fast_tracing=fast)
        torch.testing.assert_close(jitted(x), function(x))
        found.append(texts(jitted))
    assert found[0] == found[1]


def test_each_helper_is_taken_and_by_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[str] = set()

    def noted(helper: fast_helpers.Helper) -> fast_helpers.Helper:
        def run(*args: Any, **kwargs: Any) -> Any:
            taken.add(helper.__name__)
            return helper(*args, **kwargs)

        return run

    for code, helper in fast_helpers.HELPERS.items():
        monkeypatch.setitem(fast_helpers.HELPERS, code, noted(helper))
    for make in PROGRAMS.values():
        jit(make())(torch.randn(3, 4))
    assert taken == {helper.__name__ for _, helper in fast_helpers.CODES}


def test_the_helpers_are_those_of_this_thunder() -> None:
    """A helper that another version of Thunder has renamed is not found, and so not shortened."""
    named = [(code.co_name, helper) for code, helper in fast_helpers.CODES]
    wanted = {
        "impl", "_next_impl", "nosentinel_impl", "getitem_impl", "<lambda>", "impl_other_keys",
        "inplace_impl", "outofplace_impl", "_impl", "partial_call_impl", "wrapper", "__next__",
        "__getattr__",
    }  # fmt: skip
    assert {name for name, _ in named} == wanted


def negative(x: torch.Tensor) -> torch.Tensor:
    class Odd:
        def __len__(self) -> int:
            return SIZES[0] - 2

    return x + len(Odd())


def no_length(x: torch.Tensor) -> torch.Tensor:
    return x + len(3)  # type: ignore[arg-type]


def not_added(x: torch.Tensor) -> torch.Tensor:
    return x + ([1] + {2})  # type: ignore[operator]


def not_found(x: torch.Tensor) -> torch.Tensor:
    return x + {"a": 1}["b"]


def out_of_range(x: torch.Tensor) -> torch.Tensor:
    return x + SIZES[2]


def raised_while_iterating(x: torch.Tensor) -> torch.Tensor:
    def numbers() -> Iterator[int]:
        yield 1
        raise KeyError("two")

    for one in numbers():
        x = x + one
    return x


class Lacking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.absent


BROKEN = (
    negative, no_length, not_added, not_found, out_of_range, raised_while_iterating, Lacking(),
)  # fmt: skip


@pytest.mark.parametrize("function", BROKEN)
def test_errors_are_the_same(function: Callable[..., Any]) -> None:
    found = []
    for fast in (True, False):
        with pytest.raises(Exception) as caught:
            jit(function, fast_tracing=fast)(torch.randn(3))
        frames = traceback.extract_tb(caught.value.__traceback__)
        own = [(one.name, one.lineno) for one in frames if one.filename == __file__]
        found.append((type(caught.value), str(caught.value), own[1:]))
    assert found[0] == found[1]


def changed(how: str, model: Settings) -> None:
    if how == "an item of a list":
        model.scales[1] = 5.0
    elif how == "a longer list":
        model.scales.append(1.0)
    elif how == "a key":
        model.by_name["c"] = 2.0
    elif how == "a value":
        model.by_name["a"] = 2.0
    elif how == "an attribute":
        model.absent = 7.0
    elif how == "a buffer":
        model.shift = torch.zeros(4)
    else:
        model.linear = nn.Linear(4, 4)


CHANGES = (
    "an item of a list", "a longer list", "a key", "a value", "an attribute", "a buffer",
    "a module",
)  # fmt: skip


def test_what_changes_after_a_call_is_seen_as_without() -> None:
    torch.manual_seed(0)
    model, x = Settings(), torch.randn(3, 4)
    both = [jit(model, strict=True, fast_tracing=fast) for fast in (True, False)]
    for jitted in both:
        jitted(x)
    for how in CHANGES:
        changed(how, model)
        fast, slow = (jitted(x) for jitted in both)
        assert torch.equal(fast, slow), how
        assert thunder.cache_misses(both[0]) == thunder.cache_misses(both[1]), how


def test_equal_functions_keep_their_own_lines() -> None:
    """Codes are compared by content, of which the lines are a part that must not be mixed up."""

    def code_at(line: int) -> CodeType:
        text = "\n" * line + "def f(x):\n    return x + len(3)\n"
        return compile(text, f"generated_{line}.py", "exec")

    for line in (3, 9):
        scope: dict[str, Any] = {}
        exec(code_at(line), scope)
        with pytest.raises(TypeError) as caught:
            jit(scope["f"])(torch.ones(2))
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert (f"generated_{line}.py", line + 2) in [(one.filename, one.lineno) for one in frames]
