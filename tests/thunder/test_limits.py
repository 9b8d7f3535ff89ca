# SPDX-License-Identifier: Apache-2.0
"""What Thunder's interpreter cannot read: its errors say so, where, and what to do instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any

import pytest
import thunder
import torch
from thunder.dynamo import thunderfx
from torch import nn
from torch.autograd import forward_ad

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.errors import OptionError, ThunderLimitError


class Config:
    """As a model of Hugging Face has one, and writes into it."""

    def __init__(self) -> None:
        self.attention: object = "eager"


CONFIG = Config()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.config, self.kept = nn.Linear(4, 4), Config(), Config()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.attention = 3  # Thunder writes it
        self.config.attention = "sdpa"  # here
        self.kept.attention = 4
        return self.linear(x)


def writes_a_global(x: torch.Tensor) -> torch.Tensor:
    CONFIG.attention = "sdpa"  # here
    return x.sin() * 2


def depends_on_data(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:  # here
        return y.sin()
    return y


def asserts(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("my own words")


def raises(x: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("my own words")


def raises_from(x: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("my own words") from OptionError("an option", expected="a", got="b")


def line_in(function: Callable[..., Any]) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(at for at, one in enumerate(lines) if '# here' in one)}"


JITS: list[Callable[..., Any]] = [
    thunder_fuser.jit, lambda function: thunder.jit(function, executors=[fuser])
]  # fmt: skip
X = torch.ones(4, 4)


@pytest.mark.parametrize("jit", JITS, ids=["short", "thunder"])
@pytest.mark.parametrize(
    ("make", "function", "got", "kind"),
    [
        (Model, Model.forward, "an assignment of a str to .attention of an object", AssertionError),
        (lambda: writes_a_global, writes_a_global, "an assignment of a str to", AssertionError),
        (lambda: depends_on_data, depends_on_data, "data dependency", NotImplementedError),
    ],
    ids=["configuration", "global", "condition"],
)
def test_a_limit_of_thunder(
    make: Any, function: Any, got: str, kind: type[Exception], jit: Any
) -> None:
    model = make()
    with pytest.raises(ThunderLimitError) as caught:
        jit(model)(X)
    text = str(caught.value)
    assert text.startswith("Thunder cannot trace this program: ") and "\n" not in text
    assert got in text and f"(at {line_in(function)})" in text
    assert "thunder.dynamo.thunderfx(function_or_module, executors=[fuser])" in text
    assert "Provenance" not in text
    assert isinstance(caught.value.__cause__, kind) and isinstance(caught.value, kind)
    torch.testing.assert_close(thunderfx(model, executors=[fuser])(X), model(X))


@pytest.mark.parametrize("jit", JITS, ids=["short", "thunder"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.func.grad(torch.sum)(x * 1),
        lambda x: torch.func.jvp(torch.sin, (x,), (x,))[0],
        lambda x: torch.func.vmap(torch.sin)(x) * 2,  # fails in the interpreter, without a level
        lambda x: torch.func.jacrev(torch.sin)(x) * 2,
    ],
    ids=["grad", "jvp", "vmap", "jacrev"],
)
def test_torch_func_leaves_nothing_open(function: Any, jit: Any) -> None:
    """An open level would wrap the results of all later calls of torch."""
    with pytest.raises(ThunderLimitError, match=r"got a transform of torch\.func .*without jit"):
        jit(function)(X)
    assert torch._C._functorch.get_interpreter_stack() is None
    assert torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is None
    assert type(X * 2) is torch.Tensor
    torch.testing.assert_close(torch.func.jvp(torch.sin, (X,), (X,))[1], X.cos() * X)
    torch.testing.assert_close(thunder_fuser.jit(torch.sin)(X), X.sin())


class Mine(Exception):
    """An error of the user's program."""


def test_levels_of_other_threads_stay() -> None:
    """The level of dual tensors is the process's: another thread may open it during a trace."""

    def open_level() -> None:
        is_tracing.wait(60)
        levels.enter_context(forward_ad.dual_level())
        is_open.set()

    def raises_meanwhile(x: torch.Tensor) -> None:
        is_tracing.set()
        is_open.wait(60)
        raise Mine

    is_tracing, is_open = Event(), Event()
    with ExitStack() as levels:
        Thread(target=open_level).start()
        with pytest.raises(Mine):
            thunder_fuser.jit(raises_meanwhile)(X)
        dual = forward_ad.make_dual(X, X)
        torch.testing.assert_close(forward_ad.unpack_dual(dual.sin()).tangent, X.cos() * X)


@pytest.mark.parametrize("function", [asserts, raises, raises_from])
def test_errors_of_the_program_stay(function: Any) -> None:
    with pytest.raises((AssertionError, NotImplementedError), match=r"^my own words$") as caught:
        thunder_fuser.jit(function)(X)
    assert not isinstance(caught.value, ThunderLimitError)


def test_errors_of_ours_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option may be read while Thunder's interpreter runs, which wraps what it meets."""
    monkeypatch.setenv("THUNDER_FUSER_FAST_TRACING", "no")
    with pytest.raises(OptionError, match="fast_tracing: expected the type bool") as raised:
        thunder_fuser.jit(torch.sin)(torch.ones(3))
    assert raised.value.__suppress_context__


def test_other_executors_have_thunder_s_errors() -> None:
    with pytest.raises(AssertionError, match=r"trying to set .attention of Prov") as caught:
        thunder.jit(Model())(X)
    assert not isinstance(caught.value, ThunderLimitError)


FOUR = torch.tensor(2)
LACKS: dict[str, Callable[[Any], Any]] = {
    "stride": lambda x: x * x.stride(0),
    "backward": lambda x: x.sum().backward(),
    "_foreach_add": lambda x: torch._foreach_add([x], 1.0)[0],
    "Mode arguments other than constant": lambda x: torch.nn.functional.pad(
        x[None], (1, 1), mode="reflect"
    ),
    "unexpected type": lambda x: x[:, :FOUR],
}


@pytest.mark.parametrize("words", LACKS)
def test_what_thunder_lacks_of_torch(words: str) -> None:
    with pytest.raises(ThunderLimitError, match=rf"got \w+Error: .*{words}.*test_limits\.py:\d+"):
        thunder_fuser.jit(LACKS[words])(X)


def test_a_name_that_torch_lacks_too() -> None:
    with pytest.raises(AttributeError, match="Unknown attribute strides"):
        thunder_fuser.jit(lambda x: x.strides)(X)
