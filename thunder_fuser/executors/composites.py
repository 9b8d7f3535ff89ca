# SPDX-License-Identifier: Apache-2.0
"""Composites of Thunder that the fuser takes apart in its own way, forward and backward.

    torch.layer_norm(x, [C], w, b)     one symbol of the trace, with the pieces Thunder gives it
->  Thunder:  its pieces, each with its gradient
    here:     what a row of the table makes of it, with a gradient of the whole

Cross entropies (cross_entropy.py), log_softmax (log_softmax.py), activations (activations.py),
norms (norms.py), functions of two tensors (pairs.py) and stacks (stacks.py) are made of primitives
of support.py, so regions take them; attention goes to torch's kernels (attention.py). Where
`refuses` says why not, Thunder goes on alone: it takes the composite apart, whose pieces are
claimed one by one, or calls torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thunder import clang
from thunder.core.symbol import BoundSymbol
from thunder.executors.torchex import scaled_dot_product_attention as attention_of_torch

from thunder_fuser.executors.activations import ACTIVATIONS, Activation
from thunder_fuser.executors.attention import attention_gradient, refuses_attention
from thunder_fuser.executors.cross_entropy import (
    binary_cross_entropy,
    binary_cross_entropy_gradient,
    cross_entropy,
    cross_entropy_gradient,
    refuses_binary_cross_entropy,
    refuses_cross_entropy,
)
from thunder_fuser.executors.gradients import index_put_gradient
from thunder_fuser.executors.log_softmax import (
    log_softmax,
    log_softmax_gradient,
    refuses_log_softmax,
)
from thunder_fuser.executors.norms import NORMS, Norm
from thunder_fuser.executors.pairs import PAIRS, Pair
from thunder_fuser.executors.stacks import STACKS, Stack
from thunder_fuser.trace.op import Reject


@dataclass(frozen=True, slots=True)
class Composite:
    """A composite symbol: when it stays with Thunder, and what it becomes.

    `transform` gives its result; `gradient` does too, and says what the gradients are.
    """

    id: str
    refuses: Callable[..., Reject | None]
    transform: Callable[..., Any]
    gradient: Callable[..., Any]


Row = Composite | Activation | Norm | Pair | Stack

COMPOSITES: dict[str, Row] = {
    row.id: row
    for row in (
        Composite(
            "torch.nn.functional.cross_entropy",
            refuses_cross_entropy,
            cross_entropy,
            cross_entropy_gradient,
        ),
        Composite(
            "torch.nn.functional.binary_cross_entropy",
            refuses_binary_cross_entropy,
            binary_cross_entropy,
            binary_cross_entropy_gradient,
        ),
        Composite(
            "torch.nn.functional.scaled_dot_product_attention",
            refuses_attention,
            attention_of_torch,  # which chooses among more kernels than have a gradient in Thunder
            attention_gradient,
        ),
        Composite(
            "torch.log_softmax", refuses_log_softmax, log_softmax, log_softmax_gradient
        ),
        Composite(
            "torch.index_put", lambda *_, **__: None, clang.index_put, index_put_gradient
        ),
        *ACTIVATIONS,
        *NORMS,
        *PAIRS,
        *STACKS,
    )
}


def composite_of(bsym: Any) -> Row | None:
    """The row of a composite that no other executor has claimed."""
    return COMPOSITES.get(bsym.sym.id) if bsym.sym.executor is None else None


def why_apart(bsym: BoundSymbol) -> Reject | None:
    """Why a composite of the table is left to Thunder, which takes it apart; None for any other."""
    row = composite_of(bsym)
    return None if row is None else row.refuses(*bsym.args, **bsym.kwargs)
