# SPDX-License-Identifier: Apache-2.0
"""Graphs of Dynamo that Thunder reads or splits: what each part leaves, and what it hands on.

Thunder makes a call on trial to know whether it can trace it. Calls such as _grad_increment_nesting
open a level of torch.func, which stayed open. So torch runs a graph with a transform of torch.func.

    with no_grad(): v = normalize(w @ u, out=v); s = v.clone()
->  thunder_0: w @ u        inductor_1: set_grad_enabled(False), normalize        thunder_2: clone

Each part turns gradients off for itself, and what turns them on again may be in none that does so
when it runs: gradients stayed off in the process. Here each part leaves them as they were.

    y = softmax(x.mT).mT; z = isfinite(y)
->  thunder_0: y, with the strides of x        inductor_1: compiled for the strides in eager torch

A kernel of Inductor raises for other strides than those of eager torch. Here it gets a copy.

    h = sin(x); graph_break(); h[~mask] = 0      the second graph writes its argument, h

Where h needs a gradient this is refused, but h is the program's own. So torch runs such a part, and
one that Thunder cannot trace, though it could trace each operation on trial.

    x.view(*x.size()[:-1], 4)    ->  thunder_0: size     inductor_1: size[:-1]     thunder_2: view

Thunder's trial knows no item of sizes, so each such line split a graph. It reads them, so here not.

    layer 1: linear(x: f32[2, 16, 32], w: f32[48, 32])        layer 2: the same call

A trial traces the call and its gradient. Here the second is not made.

Imported behind thunder.dynamo, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from operator import getitem
from typing import Any

import torch
from thunder.core.module import ThunderModule
from thunder.dynamo import splitter, utils
from thunder.dynamo.compiler import ThunderCompiler
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from thunder_fuser.base.warn import warn_at
from thunder_fuser.errors import FallbackWarning, InPlaceError
from thunder_fuser.options import option

_OF_TORCH_FUNC = ("torch._C._functorch", "torch._functorch")
_of_thunder = ThunderCompiler.__call__


@wraps(_of_thunder)
def _compiled(self: Any, graph: GraphModule, inputs: Any) -> Any:
    parts = [part.graph for part in graph.modules() if isinstance(part, GraphModule)]
    calls = [node.target for part in parts for node in part.nodes]
    places = [str(getattr(call, "__module__", "")) for call in calls]
    if option("thunder_fixes") and any(at.startswith(_OF_TORCH_FUNC) for at in places):
        return graph
    token = _tried.set(set() if option("thunder_speedups") else None)
    try:
        split = _of_thunder(self, graph, inputs)
    finally:
        _tried.reset(token)
    if option("thunder_fixes"):
        for name, part in split.named_children():
            if name.startswith("inductor"):
                places = [node for node in part.graph.nodes if node.op == "placeholder"]
                part.forward = _with_strides(part.forward, [*map(_strides_of, places)])
            elif isinstance(part, ThunderModule):
                part.forward = _or_by_torch(part.forward, _by_torch(self, name, part))
        for part in split.children() if torch._C._set_grad_enabled in calls else ():
            part.forward = _leaving_gradients(part.forward)
    return split


def _by_torch(compiler: ThunderCompiler, name: str, part: ThunderModule) -> Callable[..., Any]:
    """The part as torch runs it. In bodies of checkpoints Thunder has put symbols of its own."""
    if not [*part._model.children()]:
        return part._model.forward  # type: ignore[no-any-return]
    before = compiler.subgraph_infos[-1].original_split_graph_module.split_graph_module
    return before.get_submodule(name.replace("thunder", "submod")).forward  # type: ignore[no-any-return]


def _or_by_torch(call: Callable[..., Any], by_torch: Callable[..., Any]) -> Callable[..., Any]:
    """The same call; the other one from the first that cannot be traced, or whose write is refused.

    If the program itself is wrong, torch raises its own error.
    """

    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal call
        try:
            return call(*args, **kwargs)
        except Exception as error:
            is_refused = isinstance(error, InPlaceError) or "of_tracing" in vars(error)
            if option("strict") or not is_refused:
                raise
            why, where = str(error).partition("\n")[0] or type(error).__name__, ""
            if isinstance(error, InPlaceError):
                why, where = error.sentence, error.facts["where"]
            warn_at(where, f"Torch runs a part of a graph: {why}", FallbackWarning)
        call = by_torch
        return call(*args, **kwargs)

    return run


def _strides_of(argument: Node) -> tuple[int, ...] | None:
    """The strides for which a part was compiled; None for a number, or if they are not known."""
    example = argument.meta.get("example_value")
    if not isinstance(example, torch.Tensor) or not all(type(s) is int for s in example.stride()):
        return None
    return example.stride()


def _with_strides(call: Callable[..., Any], wanted: Sequence[tuple[int, ...] | None]) -> Any:
    """The same call, with copies of tensors that have other strides."""

    def laid_out(x: Any, strides: tuple[int, ...] | None) -> Any:
        if strides is None or not isinstance(x, torch.Tensor):
            return x
        axes = zip(x.shape, x.stride(), strides, strict=True)
        if x.numel() == 0 or all(size == 1 or has == needs for size, has, needs in axes):
            return x
        sizes = [size if stride else 1 for size, stride in zip(x.shape, strides, strict=True)]
        once = x[tuple(map(slice, sizes))]  # along axes that are expanded
        return x.new_empty_strided(sizes, strides).copy_(once).expand(x.shape)

    @wraps(call)
    def run(*args: Any) -> Any:
        return call(*map(laid_out, args, wanted))

    return run


def _leaving_gradients(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call; whether gradients are on is afterwards as it was before."""

    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return call(*args, **kwargs)

    return run


def _is_supported(node: Node, *args: Any) -> Any:
    """(whether Thunder traces the operation of a node, why not)"""
    of = node.args[0] if node.target is getitem else None
    if isinstance(of, Node) and isinstance(of.meta.get("example_value"), torch.Size):
        return True, None
    tried = _tried.get()
    call = "" if tried is None else _described(node)
    if tried and call in tried:
        return True, None
    answer = _is_supported_by_thunder(node, *args)
    if tried is not None and call and answer[0]:
        tried.add(call)
    return answer


def _described(node: Node) -> str:
    """All that Thunder's trial of a call depends on in one graph; empty if it has other inputs than
    tensors and tuples of them."""
    examples = [of.meta.get("example_value") for of in node.all_input_nodes]
    tensors = [x for e in examples for x in (e if isinstance(e, tuple) else (e,))]
    if not tensors or not all(isinstance(x, torch.Tensor) for x in tensors):
        return ""
    arguments = map_arg((node.args, node.kwargs), lambda of: _like(of.meta["example_value"]))
    return repr((node.op, node.target, arguments))


def _like(example: Any) -> Any:
    if isinstance(example, tuple):
        return tuple(map(_like, example))
    return type(example), example.shape, example.dtype, example.device, example.requires_grad


# The calls that Thunder has traced on trial, while it splits a graph.
_tried: ContextVar[set[str] | None] = ContextVar("tried", default=None)

_is_supported_by_thunder = utils.is_node_supported_by_thunder
splitter.is_node_supported_by_thunder = utils.is_node_supported_by_thunder = _is_supported
ThunderCompiler.__call__ = _compiled
