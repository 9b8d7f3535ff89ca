# SPDX-License-Identifier: Apache-2.0
"""The torch functions on DTensors that Thunder 0.2.6 has no primitive for, and their gradients.

    torch.tanh(x: DTensor)   ->   t1 = dtensor_tanh(x);   in the backward: mul(g, 1 - t1 * t1)

A primitive is one torch call on DTensors: run on tensors without data it says how DTensor places
the result, and it is what torch runs where no region takes it. How the fuser records one is in
dtensor.py. Importing this module tells Thunder of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
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
from thunder.core.transforms import get_grad, put_grad, register_grad
from thunder.executors.torchex import ex as torch_executor
from thunder.torch import register_function
from thunder.torch.experimental import dtensor_torch_and_prims as own
from thunder.torch.experimental.dtensor_proxy import (
    DTensorProxy,
    create_dtensor_proxy_from_proxies,
)
from thunder.torch.experimental.dtensor_utils import run_with_fake_tensor
from thunder.torch.langctx import register_method

# ---------------------------------------------------------------------------------- primitives


def _primitive(name: str, call: Callable[..., Any]) -> Symbol:
    """A primitive that runs `call`, and has the placements that it has."""

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


def _weight_gradient(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[.., n], [.., k] -> [n, k]"""
    g, x = (one if one.dim() > 1 else one.unsqueeze(0) for one in (g, x))
    return torch.matmul(g.flatten(0, -2).t(), x.flatten(0, -2))


def _softmax_backward(g: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.ops.aten._softmax_backward_data(g, y, dim, y.dtype)


def _norm(x: Any, shape: Any, w: Any, b: Any, eps: float) -> Any:
    return torch.ops.aten.native_layer_norm(x, list(shape), w, b, eps)


def _norm_input_gradient(g: Any, x: Any, shape: Any, *statistics: Any) -> Any:
    (mean, rstd, w), mask = statistics, [True, False, False]
    found = torch.ops.aten.native_layer_norm_backward(
        g, x, list(shape), mean, rstd, w, None, mask
    )
    return found[0]


def _norm_weight_gradient(g: Any, x: Any, shape: Any, mean: Any, rstd: Any) -> Any:
    """sum of g * (x - mean) * rstd over all axes but the normalised ones."""
    lead = list(range(x.dim() - len(shape)))
    found = g * (x - mean) * rstd
    return torch.sum(found, lead) if lead else found  # torch sums all axes where none is named


add, mul = own.dtensor_add_prim, own.dtensor_mul_prim
neg, reciprocal = own.dtensor_neg_prim, own.dtensor_reciprocal_prim
sub = _primitive("dtensor_sub", torch.sub)
div = _primitive("dtensor_div", torch.div)
tanh = _primitive("dtensor_tanh", torch.tanh)
relu = _primitive("dtensor_relu", torch.relu)
relu_backward = _primitive(
    "dtensor_relu_backward", lambda g, y: torch.ops.aten.threshold_backward(g, y, 0)
)
sigmoid = _primitive("dtensor_sigmoid", torch.sigmoid)
total = _primitive("dtensor_sum", lambda a, dims, keepdim: torch.sum(a, list(dims), keepdim))
expand = _primitive("dtensor_expand", lambda a, shape: a.expand(tuple(shape)))
gelu = _primitive("dtensor_gelu", lambda a, kind: F.gelu(a, approximate=kind))
gelu_backward = _primitive(
    "dtensor_gelu_backward",
    lambda g, a, kind: torch.ops.aten.gelu_backward(g, a, approximate=kind),
)
softmax = _primitive("dtensor_softmax", torch.softmax)
softmax_backward = _primitive("dtensor_softmax_backward", _softmax_backward)
matmul = _primitive("dtensor_matmul", torch.matmul)
weight_gradient = _primitive("dtensor_weight_gradient", _weight_gradient)
norm = _primitive("dtensor_layer_norm", _norm)
norm_input_gradient = _primitive("dtensor_layer_norm_input_gradient", _norm_input_gradient)
norm_weight_gradient = _primitive("dtensor_layer_norm_weight_gradient", _norm_weight_gradient)


# ----------------------------------------------------------------------------------- gradients

# Of the result's gradient, the result, and all operands -> the gradient of one operand.
Gradient = Callable[..., Any]


def _sum_gradient(g: Any, y: Any, a: Any, dims: Sequence[int], keepdim: bool) -> Any:
    if not keepdim:
        gone = {dim % a.ndim for dim in dims}
        shape = tuple(1 if at in gone else size for at, size in enumerate(a.shape))
        g = own.dtensor_reshape_prim(g, shape)
    return expand(g, tuple(a.shape))


def _over_rows(g: Any, row: int) -> Any:
    """The sum over all axes but the last ones, as many as a row has."""
    lead = tuple(range(g.ndim - row))
    return total(g, lead, False) if lead else g


# The gradients of the first operands; the others are numbers, shapes and axes.
_GRADIENTS: dict[Symbol, tuple[Gradient, ...]] = {
    add: (lambda g, y, a, b: g, lambda g, y, a, b: g),
    mul: (lambda g, y, a, b: mul(g, b), lambda g, y, a, b: mul(g, a)),
    sub: (lambda g, y, a, b: g, lambda g, y, a, b: neg(g)),
    div: (lambda g, y, a, b: div(g, b), lambda g, y, a, b: neg(div(mul(g, y), b))),
    neg: (lambda g, y, a: neg(g),),
    reciprocal: (lambda g, y, a: neg(mul(g, mul(y, y))),),
    own.dtensor_broadcast_in_dim_prim: (lambda g, y, a, shape, dims: g,),
    tanh: (lambda g, y, a: sub(g, mul(g, mul(y, y))),),
    relu: (lambda g, y, a: relu_backward(g, y),),
    sigmoid: (lambda g, y, a: mul(g, sub(y, mul(y, y))),),
    total: (_sum_gradient,),
    gelu: (lambda g, y, a, kind: gelu_backward(g, a, kind),),
    softmax: (lambda g, y, a, dim: softmax_backward(g, y, dim),),
    norm: (
        lambda g, y, x, shape, w, b, eps: norm_input_gradient(g, x, shape, *y[1:], w),
        lambda g, y, x, shape, w, b, eps: None,
        lambda g, y, x, shape, w, b, eps: norm_weight_gradient(g, x, shape, *y[1:]),
        lambda g, y, x, shape, w, b, eps: _over_rows(g, len(shape)),
    ),
    own.dtensor_linear_prim: (
        lambda g, y, x, w, b: matmul(g, w),
        lambda g, y, x, w, b: weight_gradient(g, x),
        lambda g, y, x, w, b: _over_rows(g, 1),
    ),
}  # fmt: skip


def _with_gradients(symbol: Symbol, gradients: Sequence[Gradient]) -> Callable[..., Any]:
    """The call of a primitive that tells Thunder's autodiff its gradients."""

    def call(*args: Any) -> Any:
        y = symbol(*args)
        g = get_grad(y[0] if isinstance(y, tuple) else y)
        for operand, gradient in zip(args, gradients, strict=False):
            if isinstance(operand, TensorProxy):
                put_grad(operand, _summed(gradient(g, y, *args), operand))
        return y

    return call


def _summed(g: Any, operand: TensorProxy) -> Any:
    """The gradient summed to the sizes of an operand that was broadcast."""
    lead = g.ndim - operand.ndim
    grown = [at for at in range(lead, g.ndim) if operand.shape[at - lead] != g.shape[at]]
    g = total(g, tuple(range(lead)), False) if lead else g
    return total(g, tuple(at - lead for at in grown), True) if grown else g


# ------------------------------------------------------------------------- what torch calls them


def _sub(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return sub(a, b if alpha == 1 else b * alpha)


def _div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        raise NotImplementedError(f"div of DTensors with rounding_mode={rounding_mode!r}")
    return div(a, b)


def _sum(a: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if dtype is not None:
        a = own.dtensor_convert_element_type_prim(a, to_dtype(dtype))
    dims = range(a.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    return total(a, tuple(dims), keepdim)


def _unary(primitive: Symbol) -> Callable[..., Any]:
    def call(a: Any, inplace: bool = False) -> Any:
        if inplace:
            raise NotImplementedError(f"{primitive.name} in place")
        return primitive(a)

    return call


def _gelu(a: Any, *, approximate: str = "none") -> Any:
    return gelu(a, approximate)


def _softmax(a: Any, dim: int, dtype: Any = None, _stacklevel: int = 3) -> Any:
    if dtype is not None:
        a = own.dtensor_convert_element_type_prim(a, to_dtype(dtype))
    return softmax(a, dim)


def _layer_norm(
    a: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    return norm(a, tuple(normalized_shape), weight, bias, eps)[0]


# (torch's function, Thunder's symbol for plain tensors, ours, the name of the method)
_FUNCTIONS: tuple[tuple[Any, Any, Callable[..., Any], str | None], ...] = (
    (torch.sub, ltorch.sub, _sub, "sub"),
    (torch.div, ltorch.div, _div, "div"),
    (torch.true_divide, ltorch.true_divide, _div, "true_divide"),
    (torch.sum, ltorch.sum, _sum, "sum"),
    (torch.tanh, ltorch.tanh, _unary(tanh), "tanh"),
    (torch.relu, ltorch.relu, _unary(relu), "relu"),
    (F.relu, ltorch.relu, _unary(relu), None),
    (torch.sigmoid, ltorch.sigmoid, _unary(sigmoid), "sigmoid"),
    (F.gelu, ltorch.gelu, _gelu, None),
    (torch.softmax, ltorch.softmax, _softmax, "softmax"),
    (F.softmax, ltorch.softmax, _softmax, None),
    (F.layer_norm, ltorch.layer_norm, _layer_norm, None),
)


def _register() -> None:
    for symbol, gradients in _GRADIENTS.items():
        register_grad(symbol, _with_gradients(symbol, gradients))
    for torch_function, plain, ours, method in _FUNCTIONS:
        call = own.dispatch_to_impl(plain, ours)
        names = [torch_function] if method is None else [
            torch_function, getattr(torch.Tensor, method)
        ]
        for name in names:
            register_function(name, call)
            # Thunder's interpreter has made its own table of them by now.
            _general_jit_lookaside_map[name] = ensure_recursive_proxies(
                interpreter_needs_wrap(record_source_loc_in_symbol_header(call))
            )
        if method is not None:
            register_method(method, call)
    _take_dtensors(ltorch.add, _add)


def _add(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return own.dtensor_add(a, b if alpha in (None, 1) else b * alpha)


def _take_dtensors(symbol: Symbol, ours: Callable[..., Any]) -> None:
    """Thunder's autodiff sums gradients by this symbol, which would refuse those of DTensors."""
    plain = symbol.meta

    @wraps(plain)  # type: ignore[arg-type]
    def meta(*args: Any, **kwargs: Any) -> Any:
        on_devices = any(isinstance(a, DTensorProxy) for a in args)
        return (ours if on_devices else plain)(*args, **kwargs)  # type: ignore[misc]

    object.__setattr__(symbol, "meta", meta)


_register()
