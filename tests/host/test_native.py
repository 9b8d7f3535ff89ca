# SPDX-License-Identifier: Apache-2.0
"""What runs in C does what the generated Python does, and what C does not take goes there."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import ToolchainError
from thunder_fuser.host.call.dispatch import make_dispatch
from thunder_fuser.host.call.native import _built, empty_in_c, native
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import options

pytestmark = pytest.mark.skipif(native() is None, reason="there is no compiler")

INPUTS = [("x", "tensor"), ("n", "size"), ("s", "number")]


class Calls:
    """A dispatch whose runners return their number: that of the miss that made them."""

    def __init__(self, in_c: bool, inputs: Any = INPUTS, checked: bool = True) -> None:
        self.misses: list[tuple[Any, ...]] = []
        with options(native_calls=in_c):
            self.call = make_dispatch(inputs, self.miss, checked=checked)

    def miss(self, arguments: tuple[Any, ...]) -> Callable[..., int]:
        self.misses.append(arguments)
        number = len(self.misses)
        return lambda *_: number


def test_its_library_is_named_for_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """As lists of the cache, logs and the line of progress show it."""
    names = []

    def load(name: str, text: str, flags: Any) -> Any:
        names.append(name)
        assert f"PyObject* {name}(" in text  # the name is that of a function, too
        raise ToolchainError("not built here")

    monkeypatch.setattr("thunder_fuser.host.call.native.load_library", load)
    assert _built.__wrapped__()[0] is None
    assert names == ["native_calls"]


class Own(torch.Tensor):
    pass


BASE = torch.arange(64.0)
PLAIN = {
    "row": BASE[:8],
    "its own copy": BASE[:8].clone(),
    "moved by 8 bytes": BASE[2:10],
    "matrix": BASE.view(8, 8),
    "transposed": BASE.view(8, 8).t(),
    "strided": BASE[::8],
    "expanded": BASE[:1].expand(8),
    "0-dim": BASE[3],
    "double": BASE[:8].double(),
    "complex": torch.ones(8, dtype=torch.complex64),
    "parameter": torch.nn.Parameter(torch.ones(4)),
    "needs a gradient": torch.ones(5, requires_grad=True),
    "of inference": torch.inference_mode()(torch.ones)(6),
}
OTHER = {
    "negated": torch._neg_view(BASE[:8]),
    "conjugated": torch.ones(8, dtype=torch.complex64).conj(),
    "empty": torch.empty(0, 3),
    "meta": torch.empty(8, device="meta"),
    "zero tensor": torch._efficientzerotensor((8,)),
    "subclass": torch.ones(8).as_subclass(Own),
    "functional": torch._to_functional_tensor(torch.ones(8)),
    "sparse": torch.eye(3).to_sparse(),
    "none": None,
}

WITHOUT_KEY = {"sparse", "none"}  # each call of theirs is a miss


@pytest.mark.parametrize("checked", [False, True])
def test_the_same_calls_share_a_runner(checked: bool) -> None:
    values = {**PLAIN, **OTHER}
    inputs = [("x", "complex"), ("n", "size")]
    found = []
    for in_c in (True, False):
        calls = Calls(in_c, inputs, checked)
        first = {name: calls.call(value, 3) for name, value in values.items()}
        again = {name: calls.call(value, 3) for name, value in values.items()}
        assert {name for name in values if first[name] != again[name]} == WITHOUT_KEY
        found.append(first)
    for one, other in combinations(values, 2):
        ours, generated = (first[one] == first[other] for first in found)
        assert ours == generated, (one, other)


def test_what_is_no_plain_tensor_is_left_to_python() -> None:
    for name, value in OTHER.items():
        calls = Calls(True)
        calls.call(value, 1, 2)
        assert not any(isinstance(key, bytes) for key in calls.call.runners), name
    for value in PLAIN.values():
        calls = Calls(True)
        calls.call(value, 1, 2)
        assert all(isinstance(key, bytes) for key in calls.call.runners)


def test_inside_a_transform() -> None:
    calls = Calls(True)

    def called(x: torch.Tensor) -> torch.Tensor:
        calls.call(x, 1, 2)
        return x

    torch.func.vmap(called)(torch.ones(2, 8))
    torch.func.grad(lambda x: called(x).sum())(torch.ones(8))
    assert not calls.call.runners


@given(st.lists(st.integers() | st.booleans(), min_size=2, max_size=2))
def test_sizes_of_any_width(sizes: list[int]) -> None:
    found = []
    for in_c in (True, False):
        calls = Calls(in_c)
        numbers = [calls.call(BASE, size, 0.5) for size in sizes]
        found.append(numbers[0] == numbers[1])
    # An exact int and an equal bool may have a runner each.
    assert found[0] == found[1] or type(sizes[0]) is not type(sizes[1])


def test_errors_are_the_same() -> None:
    for in_c in (True, False):
        calls = Calls(in_c)
        with pytest.raises(TypeError, match="missing 2 required positional arguments"):
            calls.call(BASE)
        assert calls.call(x=BASE, n=1, s=2) == 1

        def failing(arguments: Any) -> Any:
            raise ValueError("no program")

        with options(native_calls=in_c):
            call = make_dispatch(INPUTS, failing, checked=True)
        with pytest.raises(ValueError, match="no program"):
            call(BASE, 1, 2)
        assert not call.runners


def test_a_full_table_is_cleared() -> None:
    with options(max_programs=2):
        calls = Calls(True)
        for size in (1, 2, 3, 3, 1):
            calls.call(BASE, size, 0)
    assert len(calls.misses) == 4 and len(calls.call.runners) == 2


def test_nothing_is_left_of_a_dispatch() -> None:
    class Thing:
        pass

    def with_cycle() -> weakref.ref[Thing]:
        thing = Thing()
        call = make_dispatch(INPUTS, lambda arguments: lambda *_: thing, checked=True)
        thing.call = call  # type: ignore[attr-defined]
        call(BASE, 1, 2)
        return weakref.ref(thing)

    found = with_cycle()
    gc.collect()
    assert found() is None


def test_many_dimensions() -> None:
    """A key of more words than there is room for is made in Python."""
    many = [(f"x{at}", "tensor") for at in range(800)]
    calls = Calls(True, many)
    tensors = [torch.ones(1, 2, 1, 2, 1)] * 800
    assert calls.call(*tensors) == calls.call(*tensors) == 1
    assert not any(isinstance(key, bytes) for key in calls.call.runners)


# ---- what programs call


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("sizes", [(), (0,), (3,), (2, 3, 4)])
def test_what_is_allocated(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    strides = torch.empty(sizes[::-1]).permute([*range(len(sizes))][::-1]).stride()
    empty = empty_in_c(sizes, strides, dtype, torch.device("cpu"))
    assert empty is not None
    for scope in (torch.enable_grad(), torch.inference_mode()):
        with scope:
            made = empty()
            want = torch.empty_strided(sizes, strides, dtype=dtype)
        assert type(made) is torch.Tensor and not made.requires_grad
        assert (made.shape, made.stride(), made.dtype) == (want.shape, want.stride(), want.dtype)
        assert made.is_inference() == want.is_inference()
    assert sys.getrefcount(made) == 2


def test_too_much_memory_is_torchs_own_error(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = (2**40, 2**20)
    empty = empty_in_c(sizes, (2**20, 1), torch.float32, torch.device("cpu"))
    assert empty is not None
    with pytest.raises(RuntimeError) as theirs:
        torch.empty_strided(sizes, (2**20, 1))
    with pytest.raises(RuntimeError) as ours:
        empty()
    assert str(ours.value) == str(theirs.value)


def test_more_dimensions_than_there_is_room_for() -> None:
    assert empty_in_c((1,) * 17, (1,) * 17, torch.float32, torch.device("cpu")) is None


def outcome(define: Callable[..., Any], arguments: list[Any], in_c: bool) -> list[torch.Tensor]:
    """The results of a new definition, whose program runs in C or in Python."""
    with FusionCache(), options(native_calls=in_c):
        fd = FusionDefinition()
        define(fd)
        found = fd.execute(arguments)
        lines = fd.program(arguments).run.__code__.co_names
    uses_c = any(name.endswith("_in_c") for name in lines)
    assert uses_c == (in_c and define in LAUNCHED_IN_C)
    return found


def with_numbers(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], dtype=DataType.Double)
    f, i = fd.define_scalar(dtype=DataType.Double), fd.define_scalar(dtype=DataType.Int)
    fd.add_output(fd.ops.add(fd.ops.mul(x, f), i))


def with_an_integer(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], dtype=DataType.Int)
    i = fd.define_scalar(dtype=DataType.Int)
    fd.add_output(fd.ops.add(x, i))


def of_many(fd: FusionDefinition) -> None:
    tensors = [fd.define_tensor(shape=[-1, -1], dtype=DataType.Float) for _ in range(30)]
    total = tensors[0]
    for one in tensors[1:]:
        total = fd.ops.add(total, one)
    fd.add_output(total)


def with_a_sum(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], dtype=DataType.Float)
    total = fd.ops.sum(x, [1])
    fd.add_output(total)
    fd.add_output(fd.ops.sum(fd.ops.mul(total, 2.0), [0]))


def square() -> torch.Tensor:
    return torch.randn(64, 48)


# C has no call with floats by value, or with so many values.
LAUNCHED_IN_C = (with_an_integer, with_a_sum)
CASES = {
    "numbers": (with_numbers, lambda: [square().double(), 0.5, 7]),
    "an integer": (with_an_integer, lambda: [square().long(), -(2**62)]),
    "a bool for an integer": (with_an_integer, lambda: [square().long(), True]),
    "many tensors": (of_many, lambda: [square() for _ in range(30)]),
    "two kernels": (with_a_sum, lambda: [square()]),
    "a parameter": (with_a_sum, lambda: [torch.nn.Parameter(square())]),
    "a negated view": (with_a_sum, lambda: [torch._neg_view(square())]),
}


@pytest.mark.parametrize("case", CASES)
def test_programs_give_the_same_in_c_and_in_python(case: str) -> None:
    define, make = CASES[case]
    arguments = make()
    ours, theirs = (outcome(define, arguments, in_c) for in_c in (True, False))
    for one, other in zip(ours, theirs, strict=True):
        assert one.stride() == other.stride() and torch.equal(one, other)
