# SPDX-License-Identifier: Apache-2.0
"""Activations: values and gradients as torch's, where an exponential overflows too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients

from thunder_fuser.explain.jitted import final_traces, fusions_of, jit

CALLS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "elu": F.elu,
    "elu, alpha": lambda x: F.elu(x, alpha=0.5),
    "celu": F.celu,
    "celu, alpha": lambda x: F.celu(x, 2.0),
    "selu": F.selu,
    "glu": F.glu,  # Thunder's, around a sigmoid
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "elu": lambda x: F.elu(x, 0.5, True),
    "celu": lambda x: F.celu(x, 2.0, inplace=True),
    "selu": lambda x: F.selu(x, inplace=True),
    "mish": torch.nn.Mish(inplace=True),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(5, 66, dtype=torch.float64) * 6).to(dtype)
    function = CALLS[name]
    jitted = jit(function, strict=True)
    exact = with_gradients(function, [x.double()])
    assert_as_exact_as_eager(
        with_gradients(jitted, [x]), with_gradients(function, [x]), exact, ulps=1
    )
    assert len(fusions_of(jitted)) == 2


EXTREME = (-3e38, -1e4, -200.0, -104.0, -90.0, -88.0, -30.0, 30.0, 88.0, 90.0, 104.0, 1e4, 3e38)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "glu"])
def test_far_from_zero(name: str) -> None:
    """Thunder's gradients of the pieces are infinities times zero there."""
    x = torch.tensor([*EXTREME, 0.0, -0.0, 1e-30, -1e-30])
    function = CALLS[name]
    got, eager = (with_gradients(one, [x]) for one in (jit(function, strict=True), function))
    torch.testing.assert_close(got, eager)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "glu"])
def test_of_infinities_and_nan(name: str) -> None:
    x = torch.tensor([float("inf"), -float("inf"), float("nan")])
    torch.testing.assert_close(jit(CALLS[name], strict=True)(x), CALLS[name](x), equal_nan=True)


def test_far_from_zero_in_glu() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, -90.0, -1e4, 200.0]])
    got, eager = (with_gradients(one, [x]) for one in (jit(F.glu, strict=True), F.glu))
    torch.testing.assert_close(got, eager)


def test_the_gradient_of_sigmoid_takes_one_exponential() -> None:
    jitted = jit(torch.sigmoid, strict=True)
    with_gradients(jitted, [torch.randn(4, 8)])
    backward = str(final_traces(jitted)[1])
    assert backward.count("prims.exp(") <= 1
    assert "prims.div(" not in backward


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str) -> None:
    def function(x: Any, w: Any) -> Any:
        y = x * w
        return IN_PLACE[name](y) * w + y

    x = torch.tensor([[*EXTREME[1:-1], 0.0, 1.0]])
    given = [x, torch.full((1, x.numel()), 1.5)]
    got, eager = (with_gradients(one, given) for one in (jit(function, strict=True), function))
    torch.testing.assert_close(got, eager)


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_argument_is_written_over(name: str) -> None:
    x = torch.randn(3, 5)
    ours, eager = x.clone(), x.clone()
    torch.testing.assert_close(jit(IN_PLACE[name], strict=True)(ours), IN_PLACE[name](eager))
    assert not torch.equal(ours, x)
    torch.testing.assert_close(ours, eager)


def test_integers_are_thunders() -> None:
    x = torch.arange(-3, 4)
    torch.testing.assert_close(jit(torch.sigmoid)(x), torch.sigmoid(x))
