# SPDX-License-Identifier: Apache-2.0
"""The results of a forward -> the same tensors, in autograd's graph: one Function, where Thunder
takes two.

    connect(backward, data, kept)     data, kept: as Thunder's forward trace returns them

Thunder's second Function lets a gradient of a result be freed as soon as the backward has read it.
With one they live until the backward ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from thunder_fuser.fast_path.torch_state import without_autocast
from thunder_fuser.thunder_patches.fixes.autograd import Grads, refusing_another


def _run(ctx: Any, *grads: torch.Tensor) -> Grads:
    saved = list(ctx.saved_tensors)  # the trace empties the list
    ctx.maybe_clear_saved_tensors()
    args = ([saved, ctx.others], list(grads))
    if torch._C._is_any_autocast_enabled():
        return (None, *without_autocast(ctx.backward_of_trace, args))
    return (None, *ctx.backward_of_trace(*args))


class _Connection(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, parts: tuple[Any, ...], *inputs: torch.Tensor) -> Any:
        backward, saved, others, results = parts
        ctx.backward_of_trace, ctx.others = backward, others  # type: ignore[attr-defined]
        # As Thunder does: autograd leaks a kept view of a result. None: a torch op returned none
        # against its type.
        ctx.save_for_backward(*(
            kept if kept is None or kept._base is None else kept.detach() for kept in saved
        ))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if torch.is_grad_enabled():  # with create_graph=True
            read = (*grads, *ctx.saved_tensors)
            return refusing_another(ctx, read, lambda: _run(ctx, *grads))
        return _run(ctx, *grads)


# Function.apply without its steps for torch.func's transforms: callers exclude these.
_apply: Callable[..., Any] = super(Function, _Connection).apply  # type: ignore[misc]


def connect(backward: Callable[..., Grads], data: Mapping[str, Any], kept: tuple[Any, Any]) -> None:
    """Puts the results of a forward into autograd's graph. Gradients must be on.

    Thunder's second Function frees a gradient of a result as soon as the backward has read it; here
    these gradients live until the backward ends. backward: the function of the trace, undecorated;
    data, kept: as Thunder's forward trace returns them.
    """
    _apply((backward, *kept, data["flat_output"]), *data["flat_args"])
