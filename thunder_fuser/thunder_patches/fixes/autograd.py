# SPDX-License-Identifier: Apache-2.0
"""Results that have no gradient, gradients of gradients, and custom autograd.Functions.

    return y, y.detach(), (y > 0).float()  before: all require gradients; now: y alone
    grad(f(x), x, create_graph=True)       before: no gradient of it, and no error; now: an error
    var_mean(x)[0] of one number           before: the backward calls zeros(); now: zeros(())
    f(x, x), which writes to x             before: both have the gradient; now: the first has it
    a part of a graph returns x.size(0), y before: an AssertionError; now: y alone is a result

Replaced: `grad_transform_on_trace` of thunder.transforms.autodiff, which gets the trace with those
results tagged as results of torch.no_grad are; `split_into_forward_and_backward`, whose forward
then returns None for them to autograd; and `ThunderFunction.backward`, whose torch decorator sees
a tensor of Thunder's instead of those on which the gradients depend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

import thunder
import thunder.torch as ltorch
import torch
from thunder.core import jit_ext
from thunder.core.compile_data import get_compile_data
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.interpreter import INTERPRETER_SIGNALS, _interpret_call, unwrap, wrap_const
from thunder.core.proxies import ProxyTag, TensorProxy
from thunder.core.trace import TraceCtx
from thunder.executors.torch_autograd import ThunderFunction
from thunder.transforms import autodiff
from torch.autograd import Function
from torch.fx import Graph, GraphModule

from thunder_fuser.errors import ThunderLimitError
from thunder_fuser.options import option
from thunder_fuser.thunder_patches.bound_symbols import dce
from thunder_fuser.thunder_patches.patch import Hooks
from thunder_fuser.trace.proxies import makes, reads

Grads = tuple[torch.Tensor | None, ...]
_TWICE = (
    "A jitted function: expected first derivatives alone, got the derivative of a gradient. To fix"
    " it: call the original function where second derivatives are needed."
)
_CUT = "is_differentiable_outputs"  # Thunder's option, which says the same
_SIDE = ("bw", "saved_tensors")  # what Thunder's second Function hands to the first
_FILLED = ("zeros", "ones", "full", "empty", "rand", "randn")
_CUTTING = {"detach", *(f"{name}_like" for name in _FILLED), *(f"new_{name}" for name in _FILLED)}
# While Thunder differentiates a function: the positions of the results without gradients.
_without: ContextVar[frozenset[int]] = ContextVar("without", default=frozenset())
_APPLY = torch.ops.higher_order.autograd_function_apply


def repair_gradients(_: Hooks) -> None:
    """From now on, results without gradients have none, and second derivatives are refused."""
    _tag_results_without_gradients()
    _return_none_for_them()
    _refuse_second_derivatives()
    _mark_tensors_alone()


def _tag_results_without_gradients() -> None:
    of_thunder = autodiff.grad_transform_on_trace

    def transform(trace: TraceCtx, /, *args: Any, **kwargs: Any) -> TraceCtx:
        (returned,) = trace.bound_symbols[-1].args
        output = returned.get("output") if isinstance(returned, dict) else None
        results = output if isinstance(output, tuple) else ()
        positions = _without_gradients(trace, results) if _is_on() else frozenset()
        _without.set(positions)
        for at in positions:
            results[at].tags.add(ProxyTag.DETACHED_AUTOGRAD_GRAPH)
        joint: TraceCtx = of_thunder(trace, *args, **kwargs)
        joint.bound_symbols = [
            bsym if bsym.args or bsym.sym.id != ltorch.zeros.id else bsym.from_bsym(args=((),))
            for bsym in joint.bound_symbols
        ]
        _give_gradients_once(joint.bound_symbols[-1].args[0])
        return joint

    autodiff.grad_transform_on_trace = transform


def _give_gradients_once(returned: dict[str, Any]) -> None:
    """Of an argument that is one tensor with an earlier one, the other has the whole gradient."""
    names = [getattr(argument, "name", None) for argument in returned["flat_args"]]
    first = {name: at for at, name in reversed([*enumerate(names)])}
    returned["output"] = tuple(
        g if first[names[at]] == at else None for at, g in enumerate(returned["output"])
    )


def _is_on() -> bool:
    data = get_compile_data()
    chosen = data is None or data.compile_options.get(_CUT) is not None
    return bool(option("thunder_fixes")) and not chosen


def _without_gradients(trace: TraceCtx, results: tuple[Any, ...]) -> frozenset[int]:
    """The positions of results of floats to which no argument's gradient leads."""
    leads = {p.name: True for p in trace.args if isinstance(p, TensorProxy) and p.requires_grad}
    for bsym in trace.bound_symbols[:-1]:
        follows = bsym.sym.name not in _CUTTING and any(leads.get(p.name) for p in reads(bsym))
        for out in makes(bsym):
            is_float = is_inexact_dtype(getattr(out, "dtype", float))
            is_cut = not is_float or ProxyTag.DETACHED_AUTOGRAD_GRAPH in out.tags
            leads[out.name] = leads.get(out.name, False) or (follows and not is_cut)
    return frozenset(
        at for at, p in enumerate(results)
        if isinstance(p, TensorProxy) and leads.get(p.name) is False and is_inexact_dtype(p.dtype)
    )  # fmt: skip


def _return_none_for_them() -> None:
    of_thunder = autodiff.split_into_forward_and_backward

    def split(joint: TraceCtx) -> tuple[TraceCtx, TraceCtx | None]:
        wanted = any(g is not None for g in joint.bound_symbols[-1].args[0]["output"])
        forward, backward = of_thunder(joint if wanted else dce(joint))  # dead code is a backward
        positions = _without.get()
        _without.set(frozenset())
        if positions:
            data, kept = forward.bound_symbols[-1].args
            flat = enumerate(data["flat_output"])
            data = {**data, "flat_output": tuple(None if at in positions else x for at, x in flat)}
            forward.bound_symbols[-1] = forward.bound_symbols[-1].from_bsym(args=(data, kept))
        return forward, backward

    autodiff.split_into_forward_and_backward = split


def _mark_tensors_alone() -> None:
    of_thunder = thunder.connect_to_autograd

    def connect(**named: Any) -> None:
        results, marks = named["flat_output"], named[_CUT]
        if marks is not None and len(marks) != len(results):  # thunderfx has marks of sizes too
            named[_CUT] = [
                isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
                for x in results
            ]
        of_thunder(**named)

    thunder.connect_to_autograd = connect


def _refuse_second_derivatives() -> None:
    of_thunder = ThunderFunction.backward

    def backward(ctx: Any, *grads: Any) -> Any:
        if not torch.is_grad_enabled():  # on: with create_graph=True
            return of_thunder(ctx, *grads)
        side = ctx.side_channel
        read, saved = (grads, ctx.saved_tensors) if side is None else map(side.get, _SIDE)
        return refusing_another(ctx, (*read, *saved), lambda: of_thunder(ctx, *grads))

    ThunderFunction.backward = staticmethod(backward)


class _OnceDifferentiable(Function):
    """Gradients -> the same, which refuse to be differentiated.

    above: the tensors on which they depend. torch's once_differentiable does not know them. So a
    second derivative by one of them would be found to be 0.
    """

    @staticmethod
    def forward(ctx: Any, grads: Grads, *above: torch.Tensor) -> Grads:
        return tuple(grad if grad is None else grad.detach() for grad in grads)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise RuntimeError(_TWICE)


def refusing_another(ctx: Any, reads: Iterable[Any], run: Callable[[], Grads]) -> Grads:
    """The gradients that `run` computes, which refuse to be differentiated.

    ctx: the node of the backward. reads: the tensors, or None, from which it computes them.
    """
    above = [*reads, *leaves_of(ctx)]
    with torch.no_grad():
        grads = run()
    refused: Grads = _OnceDifferentiable.apply(grads, *(x for x in above if x is not None))
    return refused


def leaves_of(*nodes: Any) -> list[torch.Tensor]:
    """What a `backward` from these nodes of autograd's graph would write gradients to."""
    leaves, seen, left = [], {*nodes}, [*nodes]
    while left:
        node = left.pop()
        leaves += [node.variable] if hasattr(node, "variable") else []
        below = {next_node for next_node, _ in node.next_functions if next_node is not None} - seen
        seen |= below
        left += below
    return leaves


# -------------------------------------------------- a custom autograd.Function in a graph of Dynamo


def read_autograd_functions(_: Hooks) -> None:
    """From now on, Thunder reads a custom autograd.Function as torch 2.11 writes it.

        torch 2.10    y = autograd_function_apply(fwd, bwd, x, args_tensor_mask=[True])
                      fwd(ctx, x) -> (y, saved)       bwd(ctx, dy, *saved) -> dx
        torch 2.11    (y,) = autograd_function_apply(fwd, bwd, x, saved_for_backward_idx=[0])
                      fwd(x) -> ((y,), saved)         bwd(dy, *saved) -> dx

    Thunder asks for the mask, passes None for ctx, and returns a single result as itself.
    """
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
