# SPDX-License-Identifier: Apache-2.0
"""Primitives on DTensors: those of Thunder 0.2.6, and others for torch functions that it lacks.

    torch.tanh(x: DTensor)   ->   t1 = dtensor_tanh(x);   in the backward: mul(g, 1 - t1 * t1)

A primitive is one torch call on DTensors. On fake tensors, the call tells how DTensor places the
result; and torch runs the call if no region takes it. The table has the calls, and the functions
that record them for the fuser. Importing this module registers the primitives with Thunder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core.dtypes import to_dtype
from thunder.core.jit_ext import (
    _general_jit_lookaside_map,
    ensure_recursive_proxies,
    interpreter_needs_wrap,
    record_source_loc_in_symbol_header,
)
from thunder.core.prims import make_prim
from thunder.core.proxies import AnyProxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import Symbol
from thunder.core.transforms import register_grad
from thunder.executors.torchex import ex as torch_executor
from thunder.torch import register_function
from thunder.torch.experimental import dtensor_torch_and_prims as own
from thunder.torch.experimental.dtensor_proxy import (
    DTensorProxy,
    create_dtensor_proxy_from_proxies,
)
from thunder.torch.experimental.dtensor_torch_and_prims import DTensorPrimIDs as Own
from thunder.torch.experimental.dtensor_utils import run_with_fake_tensor
from thunder.torch.langctx import register_method

from thunder_fuser.executors.support.dtypes import FLOATS, MATH, NUMBERS, STORED, known_type
from thunder_fuser.executors.support.rows import Row, op
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.language import Recorder
from thunder_fuser.thunder_patches.gradient_rules import with_gradients

_aten = torch.ops.aten

# ------------------------------------------------------------------------- what a region records

_ROOT, _CUBE = math.sqrt(2 / math.pi), 0.044715


def _record_gelu(fd: Recorder, a: Any, kind: str) -> Any:
    ops = fd.ops
    if kind == "none":
        return ops.mul(ops.mul(a, 0.5), ops.add(ops.erf(ops.mul(a, math.sqrt(0.5))), 1.0))
    return ops.mul(ops.mul(a, 0.5), ops.add(ops.tanh(_inner(fd, a)), 1.0))


def _inner(fd: Recorder, a: Any) -> Any:
    """sqrt(2 / pi) * (a + 0.044715 a^3)"""
    ops = fd.ops
    cube = ops.mul(ops.mul(ops.mul(a, a), a), _CUBE)
    return ops.mul(ops.add(a, cube), _ROOT)


def _record_gelu_backward(fd: Recorder, g: Any, a: Any, kind: str) -> Any:
    ops = fd.ops
    if kind == "none":
        below = ops.mul(ops.add(ops.erf(ops.mul(a, math.sqrt(0.5))), 1.0), 0.5)
        density = ops.mul(ops.exp(ops.mul(ops.mul(a, a), -0.5)), 1 / math.sqrt(2 * math.pi))
        return ops.mul(g, ops.add(below, ops.mul(a, density)))
    t = ops.tanh(_inner(fd, a))
    slope = ops.mul(ops.add(ops.mul(ops.mul(a, a), 3 * _CUBE), 1.0), _ROOT)
    rising = ops.mul(ops.mul(ops.mul(a, 0.5), ops.sub(1.0, ops.mul(t, t))), slope)
    return ops.mul(g, ops.add(ops.mul(ops.add(t, 1.0), 0.5), rising))


def _record_softmax(fd: Recorder, a: Any, dim: int) -> Any:
    powers = fd.ops.exp(fd.ops.sub(a, fd.ops.max(a, [dim], True)))
    return fd.ops.truediv(powers, fd.ops.sum(powers, [dim], True))


def _record_softmax_backward(fd: Recorder, g: Any, y: Any, dim: int) -> Any:
    total = fd.ops.sum(fd.ops.mul(g, y), [dim], True)
    return fd.ops.mul(fd.ops.sub(g, total), y)


def _last(shape: Sequence[int]) -> list[int]:
    return list(range(-len(shape), 0))


def _record_norm(fd: Recorder, x: Any, shape: Sequence[int], *rest: Any) -> Any:
    ops, (w, b, eps) = fd.ops, rest
    variance, mean = ops.var_mean(x, _last(shape), 0, True)
    rstd = ops.rsqrt(ops.add(variance, eps))
    y = ops.mul(ops.sub(x, mean), rstd)
    y = y if w is None else ops.mul(y, w)
    return (y if b is None else ops.add(y, b)), mean, rstd


def _record_norm_input_gradient(
    fd: Recorder, g: Any, x: Any, shape: Sequence[int], *statistics: Any
) -> Any:
    """rstd * (gw - mean(gw) - n * mean(gw * n)), with gw = g * w and n = (x - mean) * rstd"""
    mean, rstd, w = statistics
    ops, axes, count = fd.ops, _last(shape), math.prod(shape)
    gw = g if w is None else ops.mul(g, w)
    normal = ops.mul(ops.sub(x, mean), rstd)
    first = ops.mul(ops.sum(gw, axes, True), 1 / count)
    second = ops.mul(ops.sum(ops.mul(gw, normal), axes, True), 1 / count)
    return ops.mul(ops.sub(ops.sub(gw, first), ops.mul(normal, second)), rstd)


def _record_norm_weight_gradient(
    fd: Recorder, g: Any, x: Any, shape: Sequence[int], *statistics: Any
) -> Any:
    """sum of g * (x - mean) * rstd over all rows"""
    mean, rstd = statistics
    ops, rank = fd.ops, len(fd.view_of(x.name).shape)
    normal = ops.mul(ops.sub(x, mean), rstd)
    return ops.sum(ops.mul(g, normal), list(range(rank - len(shape))))


# ------------------------------------------------------------------------------- what torch runs


def _weight_gradient(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[.., n], [.., k] -> [n, k]"""
    g, x = (one if one.dim() > 1 else one.unsqueeze(0) for one in (g, x))
    return torch.matmul(g.flatten(0, -2).t(), x.flatten(0, -2))


def _norm_input_gradient(g: Any, x: Any, shape: Any, *statistics: Any) -> Any:
    (mean, rstd, w), mask = statistics, [True, False, False]
    found = _aten.native_layer_norm_backward(g, x, list(shape), mean, rstd, w, None, mask)
    return found[0]


def _norm_weight_gradient(g: Any, x: Any, shape: Any, mean: Any, rstd: Any) -> Any:
    """sum of g * (x - mean) * rstd over all axes but the normalised ones."""
    lead = list(range(x.dim() - len(shape)))
    found = g * (x - mean) * rstd
    return torch.sum(found, lead) if lead else found  # torch sums all axes where none is named


# ------------------------------------------------------------------------------------- the table

# Each primitive of ours: its torch call, the function that records it (None: torch always runs it),
# and the types that a region takes.
_TABLE: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None, frozenset[DataType]]] = {
    "sub": (torch.sub, op("sub"), NUMBERS),
    "div": (torch.div, op("truediv"), NUMBERS),
    "tanh": (torch.tanh, op("tanh"), FLOATS),
    "relu": (torch.relu, op("relu"), NUMBERS),
    "relu_backward": (
        lambda g, y: _aten.threshold_backward(g, y, 0),
        lambda fd, g, y: fd.ops.where(fd.ops.gt(y, 0), g, 0.0), FLOATS,
    ),
    "sigmoid": (torch.sigmoid, op("sigmoid"), FLOATS),
    "sum": (lambda a, dims, keepdim: torch.sum(a, list(dims), keepdim), op("sum"), NUMBERS),
    "expand": (lambda a, shape: a.expand(tuple(shape)), op("expand"), STORED),
    "gelu": (lambda a, kind: F.gelu(a, approximate=kind), _record_gelu, FLOATS),
    "gelu_backward": (
        lambda g, a, kind: _aten.gelu_backward(g, a, approximate=kind),
        _record_gelu_backward, FLOATS,
    ),
    "softmax": (torch.softmax, _record_softmax, FLOATS),
    "softmax_backward": (
        lambda g, y, dim: _aten._softmax_backward_data(g, y, dim, y.dtype),
        _record_softmax_backward, FLOATS,
    ),
    "layer_norm": (
        lambda x, shape, w, b, eps: _aten.native_layer_norm(x, list(shape), w, b, eps),
        _record_norm, FLOATS,
    ),
    "layer_norm_input_gradient": (_norm_input_gradient, _record_norm_input_gradient, FLOATS),
    "layer_norm_weight_gradient": (_norm_weight_gradient, _record_norm_weight_gradient, FLOATS),
    "matmul": (torch.matmul, None, FLOATS),
    "weight_gradient": (_weight_gradient, None, FLOATS),
}  # fmt: skip


def _primitive(name: str, call: Callable[..., Any]) -> Symbol:
    """A primitive that runs `call`; its results have the placements that `call` gives."""

    def meta(*args: Any) -> Any:
        first = next(a for a in tree_flatten(args)[0] if isinstance(a, DTensorProxy))
        found = run_with_fake_tensor(call, *args)
        if isinstance(found, tuple):
            return tuple(_proxy(first, one) for one in found)
        return _proxy(first, found)

    symbol = make_prim(f"thunder_fuser.{name}", name, meta=meta)
    run = torch_executor.register_operator(name, like=symbol, fn=call)
    torch_executor.register_implementation(symbol, run)
    return symbol


def _proxy(first: DTensorProxy, made: Any) -> DTensorProxy:
    local = TensorProxy(
        like=first.local_tensor,
        shape=tuple(made._local_tensor.shape),
        dtype=to_dtype(made.dtype),
    )
    spec = AnyProxy(made._spec, history=first.history)
    return create_dtensor_proxy_from_proxies(local, spec, False)


ours = SimpleNamespace(
    **{name: _primitive(f"dtensor_{name}", call) for name, (call, _, _) in _TABLE.items()},
    add=own.dtensor_add_prim,
    mul=own.dtensor_mul_prim,
    neg=own.dtensor_neg_prim,
    reciprocal=own.dtensor_reciprocal_prim,
)

DTENSOR = (
    Row(Own.CONVERT_ELEMENT_TYPE, lambda fd, a, dtype: fd.ops.cast(a, known_type(dtype)), STORED),
    Row(Own.RESHAPE, op("reshape"), STORED),
    Row(Own.TRANSPOSE, op("permute"), STORED),
    Row(Own.BROADCAST_IN_DIM, op("broadcast_in_dim"), STORED),
    Row(Own.EXP, op("exp"), MATH),
    Row(Own.NEG, op("neg"), NUMBERS),
    Row(Own.RECIPROCAL, op("reciprocal"), MATH),
    Row(Own.ADD, op("add"), NUMBERS),
    Row(Own.MUL, op("mul"), NUMBERS),
    *(
        Row(getattr(ours, name).id, record, dtypes)
        for name, (_, record, dtypes) in _TABLE.items() if record is not None
    ),
)  # fmt: skip


# ----------------------------------------------------------------------------------- gradients

# (the result's gradient, the result, all operands) -> the gradient of one operand.
Gradient = Callable[..., Any]


def _sum_gradient(g: Any, y: Any, a: Any, dims: Sequence[int], keepdim: bool) -> Any:
    if not keepdim:
        gone = {dim % a.ndim for dim in dims}
        shape = tuple(1 if at in gone else size for at, size in enumerate(a.shape))
        g = own.dtensor_reshape_prim(g, shape)
    return ours.expand(g, tuple(a.shape))


def _over_rows(g: Any, row: int) -> Any:
    """The sum over all axes but the last `row` ones."""
    lead = tuple(range(g.ndim - row))
    return ours.sum(g, lead, False) if lead else g


# The gradients of the first operands; None for an operand that is not a tensor.
_GRADIENTS: dict[Symbol, tuple[Gradient | None, ...]] = {
    ours.add: (lambda g, y, a, b: g, lambda g, y, a, b: g),
    ours.mul: (lambda g, y, a, b: ours.mul(g, b), lambda g, y, a, b: ours.mul(g, a)),
    ours.sub: (lambda g, y, a, b: g, lambda g, y, a, b: ours.neg(g)),
    ours.div: (
        lambda g, y, a, b: ours.div(g, b),
        lambda g, y, a, b: ours.neg(ours.div(ours.mul(g, y), b)),
    ),
    ours.neg: (lambda g, y, a: ours.neg(g),),
    ours.reciprocal: (lambda g, y, a: ours.neg(ours.mul(g, ours.mul(y, y))),),
    own.dtensor_broadcast_in_dim_prim: (lambda g, y, a, shape, dims: g,),
    ours.tanh: (lambda g, y, a: ours.sub(g, ours.mul(g, ours.mul(y, y))),),
    ours.relu: (lambda g, y, a: ours.relu_backward(g, y),),
    ours.sigmoid: (lambda g, y, a: ours.mul(g, ours.sub(y, ours.mul(y, y))),),
    ours.sum: (_sum_gradient,),
    ours.gelu: (lambda g, y, a, kind: ours.gelu_backward(g, a, kind),),
    ours.softmax: (lambda g, y, a, dim: ours.softmax_backward(g, y, dim),),
    ours.layer_norm: (
        lambda g, y, x, shape, w, b, eps: ours.layer_norm_input_gradient(g, x, shape, *y[1:], w),
        None,
        lambda g, y, x, shape, w, b, eps: ours.layer_norm_weight_gradient(g, x, shape, *y[1:]),
        lambda g, y, x, shape, w, b, eps: _over_rows(g, len(shape)),
    ),
    own.dtensor_linear_prim: (
        lambda g, y, x, w, b: ours.matmul(g, w),
        lambda g, y, x, w, b: ours.weight_gradient(g, x),
        lambda g, y, x, w, b: _over_rows(g, 1),
    ),
}  # fmt: skip


def _summed(g: Any, operand: TensorProxy) -> Any:
    """The gradient summed to the sizes of an operand that was broadcast."""
    lead = g.ndim - operand.ndim
    grown = [at for at in range(lead, g.ndim) if operand.shape[at - lead] != g.shape[at]]
    g = ours.sum(g, tuple(range(lead)), False) if lead else g
    return ours.sum(g, tuple(at - lead for at in grown), True) if grown else g


# ------------------------------------------------------------------------------ torch's functions


def _with_alpha(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, *, alpha=1: function(a, b if alpha in (None, 1) else b * alpha)


def _div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        raise NotImplementedError(f"div of DTensors with rounding_mode={rounding_mode!r}")
    return ours.div(a, b)


def _sum(a: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if dtype is not None:
        a = own.dtensor_convert_element_type_prim(a, to_dtype(dtype))
    dims = range(a.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    return ours.sum(a, tuple(dims), keepdim)


def _unary(primitive: Symbol) -> Callable[..., Any]:
    def call(a: Any, inplace: bool = False) -> Any:
        if inplace:
            raise NotImplementedError(f"{primitive.name} in place")
        return primitive(a)

    return call


def _softmax(a: Any, dim: int, dtype: Any = None, _stacklevel: int = 3) -> Any:
    if dtype is not None:
        a = own.dtensor_convert_element_type_prim(a, to_dtype(dtype))
    return ours.softmax(a, dim)


def _layer_norm(
    a: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    return ours.layer_norm(a, tuple(normalized_shape), weight, bias, eps)[0]


# (torch's functions and the method, Thunder's symbol for plain tensors, our function for DTensors)
_FUNCTIONS: tuple[tuple[Sequence[Any], Symbol, Callable[..., Any]], ...] = (
    ((torch.sub, torch.Tensor.sub), ltorch.sub, _with_alpha(ours.sub)),
    ((torch.div, torch.Tensor.div), ltorch.div, _div),
    ((torch.true_divide, torch.Tensor.true_divide), ltorch.true_divide, _div),
    ((torch.sum, torch.Tensor.sum), ltorch.sum, _sum),
    ((torch.tanh, torch.Tensor.tanh), ltorch.tanh, _unary(ours.tanh)),
    ((torch.relu, F.relu, torch.Tensor.relu), ltorch.relu, _unary(ours.relu)),
    ((torch.sigmoid, torch.Tensor.sigmoid), ltorch.sigmoid, _unary(ours.sigmoid)),
    ((F.gelu,), ltorch.gelu, lambda a, *, approximate="none": ours.gelu(a, approximate)),
    ((torch.softmax, F.softmax, torch.Tensor.softmax), ltorch.softmax, _softmax),
    ((F.layer_norm,), ltorch.layer_norm, _layer_norm),
)


def _register() -> None:
    for symbol, gradients in _GRADIENTS.items():
        register_grad(symbol, with_gradients(symbol, gradients, _summed))
    for functions, plain, on_dtensors in _FUNCTIONS:
        call = own.dispatch_to_impl(plain, on_dtensors)
        for function in functions:
            register_function(function, call)
            # Thunder's interpreter has its own table, already made.
            _general_jit_lookaside_map[function] = ensure_recursive_proxies(
                interpreter_needs_wrap(record_source_loc_in_symbol_header(call))
            )
            name = function.__name__
            if getattr(torch.Tensor, name, None) is function:
                register_method(name, call)
    # Thunder's autodiff sums gradients with this symbol, which would refuse DTensors.
    plain = ltorch.add.meta
    call = own.dispatch_to_impl(plain, _with_alpha(own.dtensor_add))
    object.__setattr__(ltorch.add, "meta", wraps(plain)(call))


_register()
