# SPDX-License-Identifier: Apache-2.0
"""thunder_fuser.jit after a change of anything guarded: as Thunder does with the same cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from enum import Enum
from typing import Any

import numpy
import pytest
import thunder
import torch
from torch import nn

import thunder_fuser
from thunder_fuser.fast_path.calls import fast_path_of
from thunder_fuser.options import options

SETTINGS = {"shift": 0.5}


class Activation(nn.Module):
    def __init__(self, power: int = 2) -> None:
        super().__init__()
        self.power, self.shift = power, nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.shift) ** self.power * (1 if self.training else 2)


class Model(nn.Module):
    """Depends on one of each that Thunder guards."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.weight = Activation(), nn.Parameter(torch.randn(4))
        self.register_buffer("bias", torch.randn(4))
        self.scale, self.on, self.mode = 2.0, True, "mean"
        self.sizes, self.nothing = [1, 2], None

    def forward(self, x: torch.Tensor, y: Any = None, *, factor: Any = 1.0) -> torch.Tensor:
        x = self.inner(x * self.weight + self.bias) * self.scale
        if self.nothing is None and self.on:
            x = x + self.sizes[1] * SETTINGS["shift"]
        if self.training:
            x = x * 3
        if y is not None:
            x = x @ y.T
        made = torch.ones(x.shape[-1])
        return (x.mean(0) if self.mode == "mean" else x) * factor + made


LAYERS = {0: Activation()}


class Own(torch.Tensor):
    pass


class Jitted:
    """A function in thunder_fuser.jit, and what Thunder does itself with the same cache."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.ours = thunder_fuser.jit(function, fuser_fuel=0)  # nothing is fused: guards are tested
        self.theirs = getattr(self.ours, "_forward_fn", self.ours).__wrapped__
        self.stats = thunder.compile_stats(self.ours)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Thunder does not compile after ours, and both return, or raise, the same."""
        ours = outcome(self.ours, args, kwargs)
        misses = self.stats.cache_misses
        theirs = outcome(self.theirs, args, kwargs)
        assert type(ours) is type(theirs), (ours, theirs)
        if isinstance(ours, torch.Tensor):
            assert misses == self.stats.cache_misses
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
            assert ours.requires_grad == theirs.requires_grad
        else:
            assert str(ours) == str(theirs)

    def is_short(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a call of ours goes past Thunder's function, which notes when it was called."""
        before = self.stats.last_trace_host_start
        self.ours(*args, **kwargs)
        return self.stats.last_trace_host_start == before


def outcome(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error


X = torch.randn(3, 4)


def put(at: str, value: Any) -> Callable[[Any, Any], None]:
    """Sets an attribute of the model."""
    *above, name = at.split(".")
    return lambda _, model: setattr(model.get_submodule(".".join(above)), name, value)


def put_data(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Any], None]:
    def change(_: Any, model: Any) -> None:
        model.weight.data = make(model.weight.data)

    return change


def load(jitted: Any, _: Any) -> None:
    state = {name: torch.ones_like(value) for name, value in jitted.state_dict().items()}
    jitted.load_state_dict(state, assign=True)


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "nothing": lambda *_: None,
    "values of a parameter": lambda _, model: model.weight.data.fill_(0.25),
    "a parameter of the model replaced": put("weight", nn.Parameter(torch.ones(4))),
    "a parameter replaced by a state": load,
    "dtype of a parameter": put_data(torch.Tensor.double),
    "shape of a parameter": put_data(lambda data: data[:1].clone()),
    "rank of a parameter": put_data(lambda data: data[None].clone()),
    "strides of a parameter": put_data(lambda data: data.repeat_interleave(2)[::2]),
    "device of a parameter": lambda jitted, _: jitted._overrides_parameters.update(
        weight=nn.Parameter(torch.ones(4, device="meta"))
    ),
    "no gradient of a parameter": lambda _, model: model.weight.requires_grad_(False),
    "a subclass as a parameter": lambda jitted, _: jitted._overrides_parameters.update(
        weight=torch.ones(4).as_subclass(Own).requires_grad_()
    ),
    "values of a buffer": lambda _, model: model.bias.fill_(0.5),
    "a buffer of the model replaced": put("bias", torch.ones(4)),
    "a buffer replaced": lambda jitted, _: jitted.set_buffer("bias", torch.ones(4)),
    "dtype of a buffer": lambda jitted, _: jitted.set_buffer("bias", torch.ones(4).double()),
    "eval of the model": lambda _, model: model.eval(),
    "eval of the jitted": lambda jitted, _: jitted.eval(),
    "eval of a submodule": lambda _, model: model.inner.eval(),
    "a submodule replaced": put("inner", Activation(3)),
    "an attribute of a submodule": put("inner.power", 1),
    "a float": put("scale", 3.0),
    "a float that is nan": put("scale", float("nan")),
    "an int for a float": put("scale", 2),
    "a bool": put("on", False),
    "an int for a bool": put("on", 1),
    "a string": put("mode", "none"),
    "in a list": put("sizes", [1, 5]),
    "a shorter list": put("sizes", [1]),
    "not None": put("nothing", 1),
    "a float of the jitted": lambda jitted, _: setattr(jitted, "scale", 7.0),
    "a module of the jitted": lambda jitted, _: setattr(jitted, "more", Activation()),
    "a hook": lambda _, model: model.inner.register_forward_hook(lambda *_: X),
}  # fmt: skip


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


TRACED_AGAIN = ("a submodule replaced", "a module of the jitted", "a hook")  # the cache is empty


@contextmanager
def put_back(jitted: nn.Module) -> Iterator[None]:
    """What the block does to a jitted module and its parts is undone at its end."""
    parts = [
        (one, copy(one))
        for module in jitted.modules()
        for one in (vars(module), *(part for part in vars(module).values() if _is_table(part)))
    ]
    state = jitted.state_dict(keep_vars=True).values()
    tensors = [(one, one.data, one.data.clone(), one.requires_grad) for one in state]
    yield
    for here, before in parts:
        seen = {"_parts": here["_parts"]} if "_parts" in here else {}  # at the last call
        here.clear()
        here.update({**before, **seen})
    for one, data, values, requires_grad in tensors:
        one.data = data.copy_(values)
        one.requires_grad_(requires_grad)


@pytest.fixture(scope="module")
def called() -> Jitted:
    jitted = Jitted(Model())
    jitted.check(X)
    return jitted


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_model(name: str, called: Jitted) -> None:
    with put_back(called.ours):
        CHANGES[name](called.ours, called.ours._model)
        called.check(X)
        called.check(X)
    misses = called.stats.cache_misses
    called.check(X)
    assert called.stats.cache_misses == misses + (name in TRACED_AGAIN) and called.is_short(X)


@contextmanager
def setting(key: str, value: Any) -> Iterator[None]:
    before = SETTINGS[key]
    SETTINGS[key] = value
    yield
    SETTINGS[key] = before


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to another dtype": lambda: torch.autocast("cpu", torch.float16),
    "default dtype": lambda: default_dtype(torch.float64),
    "default device": lambda: torch.device("meta"),
    "the same device": lambda: torch.device("cpu"),
    "a global": lambda: setting("shift", 1.5),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_change_of_global_state(name: str, called: Jitted) -> None:
    for around in (nullcontext, AROUND[name], AROUND[name], nullcontext):
        with around():
            called.check(X)


ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "other values": ((X + 1,), {}),
    "a keyword": ((), {"x": X}),
    "a tensor more": ((X, X), {}),
    "None": ((X, None), {}),
    "a number": ((X,), {"factor": 2.0}),
    "an int": ((X,), {"factor": 1}),
    "a tensor for a number": ((X,), {"factor": torch.tensor(1.0)}),
    "unknown": ((X,), {"other": 1}),
    "shape": ((torch.randn(5, 4),), {}),
    "rank": ((torch.randn(2, 3, 4),), {}),
    "no rows": ((torch.randn(0, 4),), {}),
    "wrong shape": ((torch.randn(3, 5),), {}),
    "dtype": ((X.double(),), {}),
    "gradient": ((X.clone().requires_grad_(),), {}),
    "strides": ((torch.randn(4, 3).t(),), {}),
    "expanded": ((torch.randn(1, 4).expand(3, 4),), {}),
    "subclass": ((X.clone().as_subclass(Own),), {}),
    "parameter": ((nn.Parameter(X.clone()),), {}),
    "sparse": ((X.to_sparse(),), {}),
    "conjugated": ((X.to(torch.complex64).conj(),), {}),
    "array": ((X.numpy(),), {}),
    "of inference": ((torch.inference_mode()(torch.ones)(3, 4),), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_change_of_the_arguments(name: str, called: Jitted) -> None:
    args, kwargs = ARGUMENTS[name]
    for _ in range(2):
        called.check(*args, **kwargs)
        called.check(X)


def of_globals(x: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
    for one in more:
        x = x * one
    x = LAYERS[0](x) * SETTINGS["shift"]
    return x + named["given"]["b"][0] if named else x


@pytest.mark.parametrize("in_c", [True, False])
def test_a_function_of_globals(in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYERS, 0, Activation())
    jitted = Jitted(of_globals)
    with options(native_calls=in_c):
        for _ in range(2):
            jitted.check(X)
            jitted.check(X, given={"b": [X]})
            jitted.check(X, X, 2.0)
        assert jitted.is_short(X) and jitted.is_short(X, X, 2.0)
        for change in (
            lambda: monkeypatch.setitem(SETTINGS, "shift", 3.0),
            lambda: setattr(LAYERS[0], "shift", nn.Parameter(torch.randn(4))),
            lambda: setattr(LAYERS[0], "shift", nn.Parameter(torch.randn(1))),
            lambda: monkeypatch.setitem(LAYERS, 0, Activation(1)),
        ):
            change()
            jitted.check(X)


def test_a_number_that_has_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A float of numpy is guarded as an object with a name."""
    monkeypatch.setitem(SETTINGS, "shift", numpy.float64(2.5))
    jitted = Jitted(lambda x: x * SETTINGS["shift"].item())  # type: ignore[attr-defined]
    for value in (2.5, 3.5, 2.5):
        monkeypatch.setitem(SETTINGS, "shift", numpy.float64(value))
        for _ in range(2):
            jitted.check(X)
    assert jitted.is_short(X)


class Mode(str, Enum):
    MEAN = "mean"
    NONE = "none"


def test_a_string_of_an_enum() -> None:
    """Its text is no Python, so Thunder's own line guards it. Models of transformers have some."""
    model = Model()
    jitted = Jitted(model)
    for mode in (Mode.MEAN, Mode.NONE, "mean", Mode.MEAN):
        model.mode = mode
        for _ in range(2):
            jitted.check(X)
    assert jitted.is_short(X)


def test_a_module_beside_the_jitted_one() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Activation()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + LAYERS[0](x)

    jitted = Jitted(Both())
    jitted.check(X)
    assert jitted.is_short(X)
    LAYERS[0].shift.data.fill_(3.0)
    jitted.check(X)


@pytest.mark.parametrize("name", [None, "no_grad", "autocast"])
def test_the_second_call_is_short(name: str | None) -> None:
    jitted = Jitted(Model())
    with AROUND[name]() if name else nullcontext():
        for args in ((X,), (X, X)):
            jitted.ours(*args)
        assert jitted.is_short(X) and jitted.is_short(X, X)


def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1.0)
    return y * x


def test_shared_memory_counts_where_it_is_written() -> None:
    jitted, makes = Jitted(write), (
        lambda: [torch.ones(4), torch.ones(4)],
        lambda: [torch.ones(4)] * 2,
        lambda: [*torch.ones(2, 4)],
    )  # fmt: skip
    for make in (*makes, *makes):
        given = [make() for _ in range(2)]
        found = [f(*args) for f, args in zip((jitted.ours, jitted.theirs), given, strict=True)]
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
        torch.testing.assert_close(given[0], given[1], rtol=0, atol=0)
    assert thunder.cache_misses(jitted.ours) == 3  # the last two lie in one storage, differently
    assert jitted.is_short(torch.ones(4), torch.ones(4))


def test_shared_memory_does_not_count_elsewhere() -> None:
    jitted = thunder_fuser.jit(lambda x, y: x * y + y, fuser_fuel=0)
    jitted(X, X.clone())
    assert torch.equal(jitted(X, X), X * X + X)
    assert thunder.cache_misses(jitted) == 1


def _of_any(
    x: torch.Tensor, mask: Any = None, *, dtype: Any = None, rows: Any = (), given: Any = None
) -> torch.Tensor:
    y = x if mask is None else x * mask
    y = y if dtype is None else y.to(dtype)
    for row in rows:
        y = y + row
    return y * given["scale"] if given and "scale" in given else y


ROW = torch.ones(2)
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((ROW, ROW * 3), {}), ((ROW, None), {}), ((ROW, ROW * 2), {}), ((ROW,), {}),
    ((ROW,), {"dtype": torch.float64}), ((ROW,), {"dtype": torch.float16}),
    ((ROW,), {"rows": [ROW, ROW]}), ((ROW,), {"rows": [ROW]}), ((ROW,), {"rows": (ROW, ROW)}),
    ((ROW,), {"given": {"scale": ROW * 3}}), ((ROW,), {"given": {"other": ROW * 3}}),
]  # fmt: skip


@pytest.mark.parametrize("grad", [True, False])
def test_what_thunder_does_not_compare(grad: bool) -> None:
    """None, types, lengths and keys: Thunder runs the newest program that its guards accept."""
    jitted = thunder_fuser.jit(_of_any)
    with torch.set_grad_enabled(grad):
        for round_ in range(3):
            for args, kwargs in CALLS + CALLS[::-1]:
                got, expected = jitted(*args, **kwargs), _of_any(*args, **kwargs)
                assert got.dtype is expected.dtype and torch.equal(got, expected), (args, kwargs)
            if not round_:
                misses = thunder.cache_misses(jitted)
    assert thunder.cache_misses(jitted) == misses < len(CALLS)


def test_the_text_of_a_guard(golden: Callable[[str], None]) -> None:
    """It answers itself: a guard that raises counts as a failed one, and Thunder's are asked."""
    model, x = Model(), torch.randn(2, 4)
    jitted = thunder_fuser.jit(model)
    jitted(x, factor=0.5)
    (known,) = fast_path_of(jitted).all_known()
    assert known.guarded is not None
    inputs = known.guarded.guard((x,), {"factor": 0.5})
    assert inputs is not None and {id(x), id(model.weight)} <= {id(one) for one in inputs[0]}
    assert known.guarded.guard((x,), {"factor": 0.25}) is None
    golden(known.guarded.text)
