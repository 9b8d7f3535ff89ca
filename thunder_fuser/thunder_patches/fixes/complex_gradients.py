# SPDX-License-Identifier: Apache-2.0
"""Gradients of complex tensors, which Thunder's rules take for real ones.

    y = mul(a, b)     Thunder:  da = dy * b                torch:  da = dy * conj(b)
    y = abs(a)        Thunder:  da = dy * sign(a)          torch:  da = dy * a / abs(a), and 0 for 0
    pad(a, 0j, ends)  Thunder:  TypeError, of torch's pad  here:   a padded with 0.0

Torch's gradient of what is differentiable in the complex sense is dy times the conjugate of the
derivative. A rule without conjugates gives it, if what enters and what leaves it is conjugated:

    g = get_grad(y), put_grad(a, g * b)
->  g = get_grad(y), c = conj(g), put_grad(a, conj(c * b))

The rules are changed for every executor: which one takes an operation is known later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import get_tracectx
from thunder.core.transforms import _grad_fn_map, backward_impls
from thunder.executors import torchex

from thunder_fuser.thunder_patches.patch import Hooks

GradientRule = Callable[..., Any]

# Differentiable in the complex sense.
_P = PrimIDs
ANALYTIC = (
    _P.MUL, _P.DIV, _P.RECIPROCAL, _P.POW, _P.PROD, _P.MATMUL, _P.LINEAR, _P.SQRT, _P.RSQRT,
    _P.EXP, _P.EXP2, _P.EXPM1, _P.LOG, _P.LOG2, _P.LOG10, _P.LOG1P, _P.SIN, _P.COS, _P.TAN,
    _P.SINH, _P.COSH, _P.TANH, _P.ASIN, _P.ACOS, _P.ATAN, _P.ASINH, _P.ACOSH, _P.ATANH,
)  # fmt: skip
RULES = tuple(
    f"thunder.core.transforms:{'_grad_fn_map' if id in _grad_fn_map else 'backward_impls'}[{id}]"
    for id in (*ANALYTIC, PrimIDs.ABS)
)


def conjugate_gradients(_: Hooks) -> None:
    """Changes Thunder's rules for primitives that take complex tensors."""
    for id in ANALYTIC:
        if id in _grad_fn_map:
            _grad_fn_map[id] = conjugated(_grad_fn_map[id])
        else:
            # Of a rule in two parts: the second has what the first kept, then the gradient.
            backward = backward_impls[id]
            backward_impls[id] = of_complex(
                lambda *kept, of=backward: tree_map(
                    _conjugate, of(*kept[:-1], _conjugate(kept[-1]))
                ),
                backward,
            )
    _grad_fn_map[PrimIDs.ABS] = of_complex(_abs, _grad_fn_map[PrimIDs.ABS])


def pad_with_real_numbers(_: Hooks) -> None:
    """From now on, the torch executor pads with x for x + 0j, as torch takes no complex number."""
    of_thunder = torchex._pad_prim_impl

    def pad(a: Any, /, padding_value: complex, padding_config: Any) -> Any:
        value = padding_value if padding_value.imag else padding_value.real
        return of_thunder(a, value, padding_config)

    symbol = torchex.ex.register_operator("torch_pad_prim_impl", meta=prims.pad.meta, fn=pad)
    torchex.ex.register_implementation(prims.pad, symbol)


def of_complex(rule: GradientRule, other: GradientRule) -> GradientRule:
    """The rule for calls with complex tensors, and the other one for the rest."""

    @functools.wraps(other)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (rule if any(map(is_complex, (*args, *kwargs.values()))) else other)(*args, **kwargs)

    return call


def conjugated(rule: GradientRule) -> GradientRule:
    """A rule without conjugates  ->  torch's gradient of complex tensors."""

    def call(*args: Any, **kwargs: Any) -> Any:
        trace = get_tracectx()
        trace.push_scope([])
        result = rule(*args, **kwargs)
        swaps: dict[Variable, Proxy] = {}
        for bsym in trace.pop_scope():
            _record(bsym, swaps)
        return result

    return of_complex(call, rule)


def is_complex(x: Any) -> bool:
    """True for a complex tensor."""
    return isinstance(x, TensorProxy) and dtypes.is_complex_dtype(x.dtype)


def _record(bsym: BoundSymbol, swaps: dict[Variable, Proxy]) -> None:
    """The bound symbol, in the trace; what enters and what leaves the rule is conjugated."""
    bsym = bsym.from_bsym_swap_proxies(swaps, skip_output=True)
    if bsym.sym.id is PrimIDs.PUT_GRAD:
        operand, gradient = bsym.args
        put_grad(operand, _conjugate(gradient))
        return
    get_tracectx().peek_scope().append(bsym)
    if bsym.sym.id is PrimIDs.GET_GRAD:
        swaps[variableify(bsym.output)] = _conjugate(bsym.output)


def _conjugate(x: Any) -> Any:
    return ltorch.conj(x) if is_complex(x) else x


def _abs(a: TensorProxy) -> Any:
    y = prims.abs(a)
    g = get_grad(y)
    put_grad(a, a * ltorch.where(y == 0, 0.0, g / y))
    return y

