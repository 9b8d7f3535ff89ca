# SPDX-License-Identifier: Apache-2.0
"""Steps of recurrent networks: Thunder loses the gradient of a state that is in a tuple."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers.pairs import pairs
from torch import Tensor, nn

from thunder_fuser.explain.jitted import final_traces, fusions_of, jit

STEPS = 3
CELLS: dict[str, Any] = {
    "lstm": lambda **given: nn.LSTMCell(6, 5, **given),
    "gru": lambda **given: nn.GRUCell(6, 5, **given),
    "tanh": lambda **given: nn.RNNCell(6, 5, **given),
    "relu": lambda **given: nn.RNNCell(6, 5, nonlinearity="relu", **given),
}


class Recurrent(nn.Module):
    """The states after each step; that before the first is zero, or given."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        states = []
        for step in range(x.shape[0]):
            state = self.cell(x[step], state)
            states.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(states)


def gradients(called: Any, model: nn.Module, x: Tensor) -> list[Tensor]:
    """The states, and the gradients of the input and the weights."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = called(x)
    (y * torch.linspace(-1, 1, y.numel()).to(y).reshape(y.shape)).sum().backward()
    weights = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    assert x.grad is not None
    return [y.detach(), x.grad, *weights]


@pytest.mark.parametrize(
    ("name", "dtype", "bias"), pairs([*CELLS], [torch.float32, torch.float64], [True, False])
)
def test_as_eager(name: str, dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    model = Recurrent(CELLS[name](bias=bias)).to(dtype)
    x = torch.randn(STEPS, 4, 6, dtype=dtype)
    jitted = jit(model, strict=True)
    torch.testing.assert_close(gradients(jitted, model, x), gradients(model, model, x))
    assert fusions_of(jitted)
    called = {one.sym.name for trace in final_traces(jitted) for one in trace.bound_symbols}
    assert not any("cell" in one for one in called), called


@pytest.mark.parametrize("name", CELLS)
def test_as_exact_as_eager_in_bf16(name: str) -> None:
    torch.manual_seed(0)
    model = Recurrent(CELLS[name]()).bfloat16()
    exact = copy.deepcopy(model).double()
    x = torch.randn(STEPS, 4, 6).bfloat16()
    all_ = (gradients(jit(model), model, x), gradients(model, model, x),
            gradients(exact, exact, x.double()))
    for got, eager, right in zip(*all_, strict=True):
        assert got.dtype == eager.dtype
        error = (eager - right).abs().max()
        assert (got - right).abs().max() <= 1.5 * error + 0.01 * right.abs().max()


def test_a_cell_that_torch_refuses() -> None:
    cell = nn.LSTMCell(6, 5)
    with pytest.raises((RuntimeError, NotImplementedError)):
        jit(cell)(torch.randn(4, 7))
