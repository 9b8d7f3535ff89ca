# SPDX-License-Identifier: Apache-2.0
"""Activations by every form of their call: numbers and `inplace`, in their place and by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser.explain.jitted import jit

Call = Callable[[Any], Any]

# The names of the numbers, and some of them: True is 1, and False 0.
NUMBERS: dict[str, tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]] = {
    "elu": (("alpha",), ((True,), (False,), (0.5,), (-inf,), (nan,))),
    "celu": (("alpha",), ((True,), (0.5,), (-inf,))),
    "selu": ((), ((),)),
    "leaky_relu": (("negative_slope",), ((True,), (False,), (0.5,))),
    "hardtanh": (("min_val", "max_val"), ((False, True), (-2, 0.5))),
    "threshold": (("threshold", "value"), ((True, False), (0.5, -3))),
    "relu": ((), ((),)),
    "relu6": ((), ((),)),
    "hardsigmoid": ((), ((),)),
    "hardswish": ((), ((),)),
    "silu": ((), ((),)),
    "mish": ((), ((),)),
}
# These have no `inplace`.
OUT_OF_PLACE: dict[str, tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]] = {
    "softplus": (("beta", "threshold"), ((True, True), (2, 0.5))),
    "hardshrink": (("lambd",), ((True,), (False,))),
    "softshrink": (("lambd",), ((True,), (False,))),
    "logsigmoid": ((), ((),)),
    "gelu": ((), ((),)),
}
EVERY = {**NUMBERS, **OUT_OF_PLACE}


def forms(name: str) -> Iterator[Call]:
    """A call in place ends a region: so of the first numbers alone."""
    function = getattr(F, name)
    names, some = EVERY[name]
    for numbers in some:
        named = dict(zip(names, numbers, strict=True))
        yield lambda x, numbers=numbers: function(x, *numbers)
        yield lambda x, named=named: function(x, **named)
    if name in NUMBERS:
        numbers, named = some[0], dict(zip(names, some[0], strict=True))
        yield lambda x: function(x, *numbers, False)
        yield lambda x: function(x, *numbers, True)
        yield lambda x: function(x, **named, inplace=True)


def each(name: str) -> Call:
    """All forms, each of a tensor of its own."""

    def function(x: Any) -> Any:
        found = []
        for call in forms(name):
            argument = x * 1
            found.append((call(argument), argument))
        return found

    return function


@pytest.mark.parametrize("name", EVERY)
def test_every_form_of_a_call(name: str) -> None:
    x = torch.tensor([0.0, -0.0, -1.0, 1.0, -2.5, 0.25, 7.0, -inf])
    got, eager = jit(each(name), strict=True)(x), each(name)(x)
    for mine, right in zip(got, eager, strict=True):
        torch.testing.assert_close(mine, right, equal_nan=True)
        assert (mine[0].data_ptr() == mine[1].data_ptr()) == (right[0] is right[1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_of_integers_as_torch(name: str, dtype: torch.dtype) -> None:
    """Which refuses them, or keeps their type; Thunder's pieces are of floats."""
    call = next(forms(name))
    x = torch.tensor([0, 1, 1, 0]).to(dtype)
    try:
        right = call(x)
    except (RuntimeError, TypeError):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            jit(call, strict=True)(x)
    else:
        torch.testing.assert_close(jit(call, strict=True)(x), right)


def test_celu_of_alpha_zero_is_refused() -> None:
    with pytest.raises(RuntimeError, match="alpha cannot be 0"):
        jit(lambda x: F.celu(x, False), strict=True)(torch.ones(3))


def test_gradients_of_elu_at_zero() -> None:
    grads = []
    for wrap in (lambda f: f, lambda f: jit(f, strict=True)):
        x = torch.tensor([0.0, -0.0, -1.0, 1.0], requires_grad=True)
        wrap(lambda x: F.elu(x, True))(x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)
