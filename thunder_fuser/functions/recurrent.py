# SPDX-License-Identifier: Apache-2.0
"""One step of a recurrent network: two matrix products, and gates that are fused.

    h, c = lstm_cell(x[N, I], (h[N, H], c[N, H]), w[4 H, I], u[4 H, H], b[4 H], d[4 H])
->  i, f, g, o = chunk(linear(x, w, b) + linear(h, u, d), 4, 1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)

Thunder calls torch's function, and gives tensors in a tuple no gradient: of several steps of an
LSTM it differentiates the last one alone.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import thunder.torch as ltorch

from thunder_fuser.functions.define import Function, Table, rewrites


def _products(input: Any, hx: Any, weights: Mapping[str, Any]) -> tuple[Any, Any]:
    """What the input and the state give to the gates: twice [N, gates * H]."""
    of_input = ltorch.linear(input, weights["w_ih"], weights["b_ih"])
    return of_input, ltorch.linear(hx, weights["w_hh"], weights["b_hh"])


def lstm_cell(input: Any, hx: Any, weights: Mapping[str, Any]) -> Any:
    """The next state and memory, of hx = (state, memory)."""
    state, memory = hx
    of_input, of_state = _products(input, state, weights)
    i, f, g, o = ltorch.chunk(of_input + of_state, 4, 1)
    memory = ltorch.sigmoid(f) * memory + ltorch.sigmoid(i) * ltorch.tanh(g)
    return ltorch.sigmoid(o) * ltorch.tanh(memory), memory


def gru_cell(input: Any, hx: Any, weights: Mapping[str, Any]) -> Any:
    """The next state."""
    of_input, of_state = (ltorch.chunk(one, 3, 1) for one in _products(input, hx, weights))
    (x_r, x_z, x_n), (h_r, h_z, h_n) = of_input, of_state
    new = ltorch.tanh(x_n + ltorch.sigmoid(x_r + h_r) * h_n)
    return (hx - new) * ltorch.sigmoid(x_z + h_z) + new


def _rnn_cell(activation: Function) -> Function:
    def cell(input: Any, hx: Any, weights: Mapping[str, Any]) -> Any:
        return activation(operator.add(*_products(input, hx, weights)))

    return cell


def _with_names_of_torch(cell: Function) -> Function:
    def call(  # noqa: PLR0917 - torch's
        input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
    ) -> Any:
        return cell(input, hx, {"w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh})

    return call


RECURRENT: Table = rewrites(
    "torch.",
    gru_cell=_with_names_of_torch(gru_cell),
    lstm_cell=_with_names_of_torch(lstm_cell),
    rnn_relu_cell=_with_names_of_torch(_rnn_cell(ltorch.relu)),
    rnn_tanh_cell=_with_names_of_torch(_rnn_cell(ltorch.tanh)),
)
