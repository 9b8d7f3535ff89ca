# SPDX-License-Identifier: Apache-2.0
"""binary_cross_entropy: values and gradients as torch's, at probabilities of 0 and 1 too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients

from thunder_fuser.explain.jitted import final_traces, fusions_of, jit

REDUCTIONS = ("mean", "sum", "none")


def operands(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.rand(5, 33).to(dtype), torch.rand(5, 33).to(dtype), torch.rand(5, 33).to(dtype)]


def calls_torch(jitted: Any) -> bool:
    names = {bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols}
    return bool(names & {"binary_cross_entropy", "binary_cross_entropy_vjp"})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_values_and_gradients(reduction: str, dtype: torch.dtype) -> None:
    def function(x: Any, t: Any, w: Any) -> Any:
        return F.binary_cross_entropy(x, t, w, reduction=reduction)

    jitted = jit(function, strict=True)
    given = operands(dtype)
    got, eager = (with_gradients(one, given, fixed=[2]) for one in (jitted, function))
    exact = with_gradients(function, [one.double() for one in given], fixed=[2])
    assert_as_exact_as_eager(got, eager, exact, ulps=4)
    assert fusions_of(jitted) and not calls_torch(jitted)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_at_zero_and_one(reduction: str) -> None:
    """The loss is at most 100 there, and the gradient finite: a sigmoid of 20 is 1 in float32."""
    x = torch.tensor([0.0, 0.0, 1.0, 1.0, 1e-30, 0.5])
    t = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.25])

    def function(x: Any) -> Any:
        return F.binary_cross_entropy(x, t, reduction=reduction)

    got, eager = (with_gradients(one, [x]) for one in (jit(function, strict=True), function))
    torch.testing.assert_close(got, eager)


def test_of_a_module_behind_a_sigmoid_is_one_region() -> None:
    loss = torch.nn.BCELoss()
    jitted = jit(lambda x, t: loss(torch.sigmoid(x), t), strict=True)
    x, t = torch.randn(4, 8), torch.rand(4, 8)
    torch.testing.assert_close(jitted(x, t), loss(torch.sigmoid(x), t))
    assert len(fusions_of(jitted)) == 1


def test_of_other_shapes_is_refused_as_by_torch() -> None:
    with pytest.raises((NotImplementedError, RuntimeError, ValueError)):
        jit(F.binary_cross_entropy)(torch.rand(4), torch.rand(4, 1))
