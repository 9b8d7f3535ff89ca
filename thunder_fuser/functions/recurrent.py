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

from typing import Any

import thunder.torch as ltorch

from thunder_fuser.functions.define import Function, Table, rewrites


def _cell(gates: Function) -> Function:
    """torch's cell of gates(x w + b, h u + d, hx): two products [N, gates * H], and the state."""

    def call(  # noqa: PLR0917 - torch's
        input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
    ) -> Any:
        of_input = ltorch.linear(input, w_ih, b_ih)
        state = hx[0] if isinstance(hx, (tuple, list)) else hx
        return gates(of_input, ltorch.linear(state, w_hh, b_hh), hx)

    return call


def _lstm(of_input: Any, of_state: Any, hx: Any) -> Any:
    """The next state and memory, of hx = (state, memory)."""
    i, f, g, o = ltorch.chunk(of_input + of_state, 4, 1)
    memory = ltorch.sigmoid(f) * hx[1] + ltorch.sigmoid(i) * ltorch.tanh(g)
    return ltorch.sigmoid(o) * ltorch.tanh(memory), memory


def _gru(of_input: Any, of_state: Any, hx: Any) -> Any:
    """The next state."""
    (x_r, x_z, x_n), (h_r, h_z, h_n) = (ltorch.chunk(x, 3, 1) for x in (of_input, of_state))
    new = ltorch.tanh(x_n + ltorch.sigmoid(x_r + h_r) * h_n)
    return (hx - new) * ltorch.sigmoid(x_z + h_z) + new


RECURRENT: Table = rewrites(
    "torch.",
    gru_cell=_cell(_gru),
    lstm_cell=_cell(_lstm),
    rnn_relu_cell=_cell(lambda of_input, of_state, hx: ltorch.relu(of_input + of_state)),
    rnn_tanh_cell=_cell(lambda of_input, of_state, hx: ltorch.tanh(of_input + of_state)),
)
