# SPDX-License-Identifier: Apache-2.0
"""Matrix products of few rows in traces: who computes them, and tokens of a small model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from helpers.cases import rand
from torch import nn

from benchmarks.decode.tokens import NARROW, SMALL, Llama, make
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.explain import report

Call = Callable[..., torch.Tensor]
ROW, ROWS = rand(1, 1, 256), rand(3, 256)
WEIGHT, BIAS = rand(512, 256, seed=1), rand(512, seed=2)


def jit(function: Any, **options: Any) -> Any:
    """On the emulator, since most products on a CPU stay with torch."""
    return thunder.jit(function, executors=[fuser], fuser_emulate=True, **options)


def left_to_torch(name: str) -> int:
    """How many calls of torch the newest compilation has under this name."""
    return sum(one.name == name for one in fuser.last_claims.unfused)


TAKEN: dict[str, Call] = {
    "linear": lambda x, w, b: F.linear(x, w),
    "linear with a bias": lambda x, w, b: F.relu(F.linear(x, w, b)),
    "matmul": lambda x, w, b: torch.sigmoid(x) @ w.t() + b,
    "addmm": lambda x, w, b: torch.addmm(b, x[0], w.t()),
    "mv": lambda x, w, b: torch.mv(w, x.flatten()) * b,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", TAKEN)
def test_a_region_takes_it(name: str, dtype: torch.dtype) -> None:
    jitted, values = jit(TAKEN[name]), [one.to(dtype) for one in (ROW, WEIGHT, BIAS)]
    exact = TAKEN[name](*(one.double() for one in values))
    errors = [
        float((function(*values).double() - exact).abs().max())
        for function in (jitted, TAKEN[name])
    ]
    assert errors[0] <= 1.5 * errors[1] + 1e-5
    assert left_to_torch("linear") == left_to_torch("matmul") == 0
    assert fuser.last_claims.regions


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.exp(F.linear(x, w) * 0.1)


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        (ROWS, WEIGHT, {}),
        (ROW, WEIGHT, {"fuser_few_rows": 0}),
        (ROW, WEIGHT[:100], {}),
        (ROW.double(), WEIGHT.double(), {}),
        (ROW.clone().requires_grad_(), WEIGHT, {}),
    ],
    ids=["three rows of float32", "an option", "a small weight", "float64", "a gradient"],
)
def test_torch_keeps_it(x: torch.Tensor, w: torch.Tensor, options: dict[str, Any]) -> None:
    torch.testing.assert_close(jit(linear, **options)(x, w), linear(x, w))
    assert left_to_torch("linear") == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_more_rows_of_16_bits(dtype: torch.dtype) -> None:
    rows, weight = ROWS.to(dtype), WEIGHT.to(dtype)
    result = jit(linear)(rows, weight)
    torch.testing.assert_close(result, linear(rows, weight), rtol=2e-2, atol=2e-2)
    assert left_to_torch("linear") == 0
    jit(linear, fuser_few_rows=2)(rows, weight)
    assert left_to_torch("linear") == 1


def test_autocast_converts_the_rows_once() -> None:
    """The weight is float32 in memory, so torch keeps the product."""
    with torch.autocast("cpu", torch.bfloat16):
        found, usual = jit(linear)(ROWS, WEIGHT), linear(ROWS, WEIGHT)
    torch.testing.assert_close(found, usual, rtol=2e-2, atol=2e-2)


def test_parameters_without_a_gradient() -> None:
    """Under no_grad a region takes what torch keeps in training."""
    layer = nn.Linear(256, 512)
    jitted = jit(layer)
    with torch.no_grad():
        torch.testing.assert_close(jitted(ROW), layer(ROW), rtol=1e-4, atol=1e-4)
        assert left_to_torch("linear") == 0
    jitted(ROW).sum().backward()
    assert left_to_torch("linear") == 1
    found, layer.weight.grad = layer.weight.grad, None
    layer(ROW).sum().backward()
    torch.testing.assert_close(found, layer.weight.grad)


def test_a_branch_without_a_gradient() -> None:
    """The products of a branch under no_grad are a region's, beside those of a training step."""

    def both(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            gate = torch.sigmoid(F.linear(x, w))
        return (F.linear(x, w) * gate).sum()

    x, y = (ROW.clone().requires_grad_() for _ in range(2))
    jit(both)(x, WEIGHT).backward()
    assert left_to_torch("linear") == 1
    both(y, WEIGHT).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)


def greedy(call: Any, model: Llama, count: int) -> list[list[int]]:
    """The tokens of one or two sequences, each the likeliest after those before it."""
    for layer in model.layers:
        layer.keys.zero_()
        layer.values.zero_()
    token, found = torch.tensor([[3], [7]])[: len(model.layers[0].keys)], []
    with torch.no_grad():
        for place in range(count):
            token = call(token, torch.tensor([place])).argmax(-1, keepdim=True)
            found.append(token.flatten().tolist())
    return found


def test_tokens_as_eager() -> None:
    """A model with a static cache, in float32; one program for all positions."""
    model = make(SMALL, 2, torch.device("cpu")).float()
    jitted = jit(model)
    assert greedy(jitted, model, 12) == greedy(model, model, 12)
    assert thunder.cache_misses(jitted) == 1
    assert left_to_torch("linear") == 2 * SMALL.layers  # k and v, whose weights are small


def test_a_token_in_16_bits_on_a_cpu() -> None:
    """No product is torch's, and the error is at most eager's."""
    model = make(SMALL, 1, torch.device("cpu"))
    whole = copy.deepcopy(model).double()
    jitted = thunder.jit(model, executors=[fuser], fuser_strict=True)
    with torch.no_grad():
        for place in range(4):
            values = torch.tensor([[place]]), torch.tensor([place])
            exact, usual = whole(*values), copy.deepcopy(model)(*values)
            found = jitted(*values)
            errors = [float((one.double() - exact).norm()) for one in (found, usual)]
            assert errors[0] <= 1.2 * errors[1]
    assert left_to_torch("linear") == 0


def test_a_layer_has_few_launches() -> None:
    """q, k and v are one kernel, and so are the rotary embeddings of q and k."""
    sizes = replace(SMALL, width=512, heads=8)
    model = make(sizes, 1, torch.device("cpu")).float()
    jitted = jit(model)
    assert greedy(jitted, model, 2) == greedy(model, model, 2)
    first, *others = (one.schedulers for one in report(jitted).fusions)
    assert first.count("joined") == 2 and [one.count("joined") for one in others] == [2, 0]
    # Of the norms only that of the embedding, which would be a kernel in any case.
    assert [one.count("persistent") for one in (first, *others)] == [1, 0, 0]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("weights", NARROW)
def test_a_model_with_weights_of_8_bits(weights: str, batch: int) -> None:
    """No product is torch's, not even in a fusion, and the error is at most eager's."""
    sizes = replace(SMALL, width=512, heads=8, kv_heads=4, layers=1)
    model = make(sizes, batch, torch.device("cpu"), weights)
    whole, values = copy.deepcopy(model).double(), (torch.arange(batch)[:, None], torch.tensor([0]))
    jitted = jit(model)
    with torch.no_grad():
        exact, usual = whole(*values), copy.deepcopy(model)(*values)
        errors = [float((one.double() - exact).norm()) for one in (jitted(*values), usual)]
    assert errors[0] <= 1.2 * errors[1]
    assert left_to_torch("linear") == 0
    assert not any("expr_eval" in one.schedulers for one in report(jitted).fusions)
