# SPDX-License-Identifier: Apache-2.0
"""Functions of DTensors that Thunder 0.2.6 lacks: torch runs them, and computes their gradients.

    y = torch.tanh(x: DTensor)   ->   y = dtensor_tanh(x)                     one call of torch.tanh
    its gradient                 ->   (dx,) = dtensor_tanh_gradients(dy, x)   torch's own autograd

Regions are formed before and after such a call, of the primitives that Thunder has (exp, neg,
reciprocal, add, mul, casts, views). Some of these have no gradient in Thunder, or a wrong one: here
it is made of the same primitives, or torch computes it too. All other functions of DTensors raise
Thunder's error, "Expected all inputs to be TensorProxy".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core.dtypes import is_float_dtype, to_dtype
from thunder.core.prims import OpTags, get_grad, put_grad
from thunder.core.proxies import AnyProxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import Symbol
from thunder.core.transforms import register_grad
from thunder.extend import OperatorExecutor
from thunder.torch.experimental import dtensor_torch_and_prims as of_thunder
from thunder.torch.experimental.dtensor_proxy import (
    DTensorProxy,
    create_dtensor_proxy_from_proxies,
)
from thunder.torch.experimental.dtensor_utils import run_with_fake_tensor
from thunder.torch.langctx import register_method
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten as flatten_values
from torch.utils._pytree import tree_unflatten as unflatten_values

from thunder_fuser.thunder_patches.gradient_rules import with_gradients

TensorCall = Callable[..., Any]

_CALLS = OperatorExecutor("thunder_fuser_dtensors")
_WRITES = frozenset({"out", "inplace"})  # arguments by which torch writes to a tensor
_METHODS = ("sub", "div", "true_divide", "sum", "tanh", "relu", "sigmoid")
# {a function that a program calls: the name of the op, the function that it runs}
_FUNCTIONS: dict[TensorCall, tuple[str, TensorCall]] = {
    **{getattr(torch, name): (name, getattr(torch, name)) for name in _METHODS},
    **{getattr(torch.Tensor, name): (name, getattr(torch, name)) for name in _METHODS},
    F.relu: ("relu", torch.relu),
    torch.softmax: ("softmax", torch.softmax),
    F.softmax: ("softmax_of_nn", F.softmax),  # its third argument is another one
    F.gelu: ("gelu", F.gelu),
    F.layer_norm: ("layer_norm", F.layer_norm),
}


# ------------------------------------------------------------------------------------- one call


def _call(name: str, function: TensorCall) -> Symbol:
    """An op that calls a function of torch; its results have the placements that DTensor gives."""

    def meta(*args: Any, **kwargs: Any) -> Any:
        first = next(a for a in tree_flatten((args, kwargs))[0] if isinstance(a, DTensorProxy))
        results = run_with_fake_tensor(function, *args, **kwargs)
        if isinstance(results, tuple):
            return tuple(_proxy(first, result) for result in results)
        return _proxy(first, results)

    tags = [OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD]
    return _CALLS.register_operator(f"dtensor_{name}", meta=meta, fn=function, tags=tags)


def _proxy(first: DTensorProxy, result: DTensor) -> DTensorProxy:
    shape, dtype = tuple(result._local_tensor.shape), to_dtype(result.dtype)
    local = TensorProxy(like=first.local_tensor, shape=shape, dtype=dtype)
    return create_dtensor_proxy_from_proxies(
        local, AnyProxy(result._spec, history=first.history), False
    )


def _gradients_of(function: TensorCall) -> TensorCall:
    """(dy, *operands)  ->  the gradient of each operand that is a DTensor of floats, in order.

    The function runs once more, as that of any torch function which Thunder does not know.
    """

    def call(dy: DTensor, *args: Any, **kwargs: Any) -> tuple[DTensor, ...]:
        leaves, structure = flatten_values((args, kwargs))
        with torch.enable_grad():
            leaves = [
                leaf.detach().requires_grad_() if _has_gradient(leaf) else leaf for leaf in leaves
            ]
            args, kwargs = unflatten_values(leaves, structure)
            y = function(*args, **kwargs)
        return torch.autograd.grad(y, [leaf for leaf in leaves if _has_gradient(leaf)], dy)

    return call


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, DTensor) and leaf.is_floating_point()


def _register_torch(forward: Symbol, backward: Symbol) -> None:
    """Tells Thunder the gradient of an op: another op, with the gradients of all its DTensors."""

    def gradient(*args: Any, **kwargs: Any) -> Any:
        y = forward(*args, **kwargs)
        tensors = (a for a in tree_flatten((args, kwargs))[0] if isinstance(a, DTensorProxy))
        operands = [tensor for tensor in tensors if is_float_dtype(tensor.dtype)]
        gradients = backward(get_grad(y), *args, **kwargs) if operands else ()
        for operand, dx in zip(operands, gradients, strict=True):
            put_grad(operand, dx)
        return y

    register_grad(forward, gradient)


def _backward(name: str, function: TensorCall) -> Symbol:
    return _call(f"{name}_gradients", _gradients_of(function))


# --------------------------------------------------------------- the functions that Thunder lacks


def _dispatched(plain: TensorCall, op: Symbol) -> TensorCall:
    """The op for DTensors alone, else the function for plain tensors."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, TensorProxy)]
        takes = tensors and all(isinstance(tensor, DTensorProxy) for tensor in tensors)
        if not takes or _WRITES & kwargs.keys():
            return plain(*args, **kwargs)
        return op(*args, **kwargs)

    return call


_OPS = {name: _call(name, function) for name, function in dict(_FUNCTIONS.values()).items()}
# {a function that a user's program calls: the function to call instead}
CALLED = {
    called: _dispatched(ltorch._torch_to_thunder_function_map[called], _OPS[name])
    for called, (name, _) in _FUNCTIONS.items()
}


# ------------------------------------------------------- the gradients of Thunder's own primitives

_neg, _mul = of_thunder.dtensor_neg_prim, of_thunder.dtensor_mul_prim
# Thunder makes the operands equally large by primitives of their own.
_GRADIENTS: dict[Symbol, tuple[TensorCall, ...]] = {
    of_thunder.dtensor_add_prim: (lambda g, y, a, b: g, lambda g, y, a, b: g),
    _mul: (lambda g, y, a, b: _mul(g, b), lambda g, y, a, b: _mul(g, a)),
    _neg: (lambda g, y, a: _neg(g),),
    of_thunder.dtensor_reciprocal_prim: (lambda g, y, a: _neg(_mul(g, _mul(y, y))),),
}


def _linear_gradients(g: Any, x: Any, w: Any, b: Any = None) -> tuple[Any, ...]:
    """[.., n], [.., k], [n, k], [n]  ->  [.., k], [n, k], [n]; without the forward's product."""
    rows, columns = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    dw = torch.matmul(rows.t(), columns)
    dx = torch.matmul(g, w).reshape(x.shape)  # for torch 2.14, which makes [1, k] of a g of [n]
    return (dx, dw) if b is None else (dx, dw, rows.sum(0))


for _name, _function in dict(_FUNCTIONS.values()).items():
    _register_torch(_OPS[_name], _backward(_name, _function))
for _symbol, _gradients in _GRADIENTS.items():
    register_grad(_symbol, with_gradients(_symbol, *_gradients))
_register_torch(of_thunder.dtensor_linear_prim, _call("linear_gradients", _linear_gradients))
_register_torch(
    of_thunder.dtensor_broadcast_in_dim_prim,
    _backward("expand", lambda x, shape, _: x.broadcast_to(shape)),
)
for method in _METHODS:
    register_method(method, CALLED[getattr(torch.Tensor, method)])
