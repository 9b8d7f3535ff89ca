# SPDX-License-Identifier: Apache-2.0
"""The results of a forward -> the same tensors, in autograd's graph: one Function, where Thunder
takes two.

    connect(backward, data, kept)     data, kept: as Thunder's forward trace returns them

Thunder's second Function lets a gradient of a result be freed as soon as the backward has read it.
With one they live until the backward ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from thunder_fuser.executors.environment import without_autocast

Grads = tuple[torch.Tensor | None, ...]
_TWICE = (
    "A jitted function: expected one derivative, got a derivative of a gradient. To fix it: call "
    "the original function where second derivatives are needed."
)


def _run(ctx: Any, *grads: torch.Tensor) -> Grads:
    saved = list(ctx.saved_tensors)  # the trace empties the list
    ctx.maybe_clear_saved_tensors()
    given = ([saved, ctx.others], list(grads))
    if torch._C._is_any_autocast_enabled():
        return (None, *without_autocast(ctx.backward_of_trace, given))
    return (None, *ctx.backward_of_trace(*given))


class _Refusal(Function):
    """Gradients -> the same, which refuse to be differentiated.

    above: the tensors on which they depend. torch's once_differentiable does not know them. So a
    second derivative by one of them would be found to be 0.
    """

    @staticmethod
    def forward(ctx: Any, found: Grads, *above: torch.Tensor) -> Grads:
        return tuple(one if one is None else one.detach() for one in found)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise RuntimeError(_TWICE)


def _run_once(ctx: Any, *grads: torch.Tensor) -> Grads:
    return refusing_another(ctx, (*grads, *ctx.saved_tensors), lambda: _run(ctx, *grads))


def refusing_another(ctx: Any, reads: Iterable[Any], run: Callable[[], Grads]) -> Grads:
    """The gradients that `run` computes, which refuse to be differentiated.

    ctx: the node of the backward. reads: the tensors, or None, from which it computes them.
    """
    above = [*reads, *_leaves(ctx)]
    with torch.no_grad():
        found = run()
    refused: Grads = _Refusal.apply(found, *(one for one in above if one is not None))
    return refused


def _leaves(node: Any) -> list[torch.Tensor]:
    """What `backward` would write gradients to."""
    found, seen, left = [], {node}, [node]
    while left:
        node = left.pop()
        found += [node.variable] if hasattr(node, "variable") else []
        below = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= below
        left += below
    return found


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
    """Puts the results of a forward into autograd's graph. Gradients must be on.

    Thunder's second Function frees a gradient of a result as soon as the backward has read it; here
    these gradients live until the backward ends. backward: the function of the trace, undecorated;
    data, kept: as Thunder's forward trace returns them.
    """
    _apply((backward, *kept, data["flat_output"]), *data["flat_args"])
