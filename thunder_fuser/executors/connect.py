# SPDX-License-Identifier: Apache-2.0
"""The results of a forward -> the same tensors in autograd's graph, by one Function instead of
Thunder's two.

    connect(backward, data, kept)     data, kept: as Thunder's forward trace returns them

With Thunder's second Function, a gradient of a result is freed as soon as the backward has read
it. With one Function, these gradients live until the backward ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable

from thunder_fuser.executors.environment import without_autocast

Grads = tuple[torch.Tensor | None, ...]


def _run(ctx: Any, *grads: torch.Tensor) -> Grads:
    saved = list(ctx.saved_tensors)  # the trace empties the list
    ctx.maybe_clear_saved_tensors()
    given = ([saved, ctx.others], list(grads))
    if torch._C._is_any_autocast_enabled():
        return (None, *without_autocast(ctx.backward_of_trace, given))
    return (None, *ctx.backward_of_trace(*given))


_run_once = once_differentiable(_run)


class _Connection(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, given: tuple[Any, ...], *inputs: torch.Tensor) -> Any:
        backward, saved, others, results = given
        ctx.backward_of_trace, ctx.others = backward, others  # type: ignore[attr-defined]
        # As Thunder does: autograd leaks a kept view of a result.
        ctx.save_for_backward(*map(_no_view, saved))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        run = _run_once if torch.is_grad_enabled() else _run  # on: with create_graph=True
        return run(ctx, *grads)


def _no_view(kept: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor, detached if it is a view. None if a torch op returned none against its type."""
    return kept if kept is None or kept._base is None else kept.detach()


# Function.apply without its steps for torch.func's transforms: callers exclude these.
_apply: Callable[..., Any] = super(Function, _Connection).apply  # type: ignore[misc]


def connect(backward: Callable[..., Grads], data: Mapping[str, Any], kept: tuple[Any, Any]) -> None:
    """Connects the results; gradients must be on. backward: the trace's function, undecorated."""
    _apply((backward, *kept, data["flat_output"]), *data["flat_args"])
