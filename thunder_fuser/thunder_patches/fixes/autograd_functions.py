# SPDX-License-Identifier: Apache-2.0
"""A custom autograd.Function in a graph of Dynamo -> the form that Thunder 0.2.6 reads.

    torch 2.10    y = autograd_function_apply(fwd, bwd, x, args_tensor_mask=[True])
                  fwd(ctx, x) -> (y, saved)       bwd(ctx, dy, *saved) -> dx
    torch 2.11    (y,) = autograd_function_apply(fwd, bwd, x, saved_for_backward_idx=[0])
                  fwd(x) -> ((y,), saved)         bwd(dy, *saved) -> dx

Thunder's lookaside asks for the mask, passes None for ctx, and returns a single result as itself.
"""

from __future__ import annotations

from typing import Any

import torch
from thunder.core import jit_ext
from thunder.core.interpreter import INTERPRETER_SIGNALS, _interpret_call, unwrap, wrap_const
from torch.fx import Graph, GraphModule

from thunder_fuser.errors import ThunderLimitError
from thunder_fuser.thunder_patches.patch import Hooks

_APPLY = torch.ops.higher_order.autograd_function_apply


def read_autograd_functions(_: Hooks) -> None:
    """From now on, Thunder reads a custom autograd.Function as torch 2.11 writes it."""
    of_thunder = jit_ext._general_jit_lookaside_map[_APPLY]

    def apply(fwd: Any, bwd: Any, *args: Any, **kwargs: Any) -> Any:
        if "args_tensor_mask" in kwargs:
            return of_thunder(fwd, bwd, *args, **kwargs)
        if unwrap(kwargs.get("dirty_idx")):
            raise ThunderLimitError(
                "Thunder cannot trace this program", got="an autograd.Function with mark_dirty",
                expected="autograd.Functions that write no argument in place",
                do="return a new tensor from its forward",
            )  # fmt: skip
        graphs = [_with_context(unwrap(graph)) for graph in (fwd, bwd)]
        mask = wrap_const([True] * len(args))
        result = of_thunder(*map(wrap_const, graphs), *args, args_tensor_mask=mask)
        (results, _), *_ = graphs[0].graph.output_node().args
        is_single = isinstance(results, tuple | list) and len(results) == 1
        if result is INTERPRETER_SIGNALS.EXCEPTION_RAISED or not is_single:
            return result
        return _interpret_call(lambda tensor: (tensor,), result)

    jit_ext._general_jit_lookaside_map[_APPLY] = apply


def _with_context(module: GraphModule) -> GraphModule:
    """f(x) -> f(ctx, x)"""
    graph = Graph()
    graph.placeholder("ctx")
    graph.output(graph.graph_copy(module.graph, {}))
    return GraphModule(module, graph)
