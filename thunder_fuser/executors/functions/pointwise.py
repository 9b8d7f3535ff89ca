# SPDX-License-Identifier: Apache-2.0
"""Functions of each element; NaN and gradients as in torch.

    sinc(x)     ->  sin(pi x) / (pi x), and 1 where x is 0
    xlogy(x, y) ->  x log(y), and 0 where x is 0       dx = xlogy(dz, y), and 0 where x is 0 >= y
                                                       dy = dz x / y

The gradient of `where` is 0 on the side that is not chosen. Zero times infinity would be NaN there:
what that side computes is made finite first. And where torch's gradient is not 0, as that of xlogy
for y at x = 0, y = infinity, it is written out.
"""

from __future__ import annotations

import math
from typing import Any

import thunder.torch as ltorch
from thunder.clang import maybe_broadcast, maybe_convert_to_dtype
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import sum_to

from thunder_fuser.executors.functions.define import (
    Backward,
    Composite,
    Function,
    Table,
    refuses_floats,
    rewrites,
    rounded_once,
    with_gradient,
)
from thunder_fuser.executors.types import as_type, compute_type, is_known_number
from thunder_fuser.trace.op import Reject


def clip(input: Any, min: Any = None, max: Any = None) -> Any:
    """As ltorch.clamp; but what equals a bound keeps its gradient, as in torch."""
    bounds = [one for one in (min, max) if one is not None]
    if not bounds or not all(_is_bound(input, one) for one in bounds):
        return NotImplemented
    result = input if min is None else _bounded(input, min, ltorch.ge)
    return result if max is None else _bounded(result, max, ltorch.le)


def _is_bound(x: Any, bound: Any) -> bool:
    """False for NaN, which alone is no bound in torch, and for floats that bound integers."""
    number = bound.value if is_known_number(bound) else bound
    if not isinstance(number, float):
        return True
    return dtypes.is_float_dtype(x.dtype) and not math.isnan(number)


def _bounded(x: Any, bound: Any, within: Function) -> Any:
    """NaN where either is; NaN has no gradient."""
    result = ltorch.where(within(x, bound), x, bound)
    is_float = dtypes.is_float_dtype(x.dtype)
    return ltorch.where(ltorch.isnan(x), math.nan, result) if is_float else result


def copysign(input: Any, other: Any) -> Any:
    """Thunder's, which takes -0.0 and -NaN for positive numbers."""
    number = other.value if is_known_number(other) else other
    is_float = isinstance(number, float)
    return ltorch.copysign(input, math.copysign(1.0, number) if is_float else other)


def lerp(input: Any, end: Any, weight: Any) -> Any:
    """Thunder's, which does not bring tensors to one shape. torch refuses several types."""
    tensors = [one for one in (input, end, weight) if isinstance(one, TensorProxy)]
    if len({one.dtype for one in tensors}) > 1:
        return NotImplemented
    operands = maybe_broadcast(input, end, weight, treat_cpu_scalar_tensors_as_numbers=False)
    return ltorch.lerp(*operands)


@rounded_once
def sinc(input: Any) -> Any:
    """1 where the square of x is 0, by which its gradient divides."""
    zero = input * input == 0
    angle = ltorch.where(zero, 1.0, input * math.pi)
    return ltorch.where(zero, 1.0, ltorch.sin(angle) / angle)


def heaviside(input: Any, values: Any) -> Any:
    """0 below zero and for NaN, 1 above, the values at zero. torch refuses two types."""
    if not isinstance(values, TensorProxy) or values.dtype != input.dtype:
        return NotImplemented
    return ltorch.where(input == 0, values, ltorch.to(input > 0, values.dtype))


def _first(better: Any, x: Any, y: Any) -> Any:
    """x if it is better, or y is NaN; of two equal ones x has the gradient."""
    return ltorch.where(better | ltorch.isnan(y), x, y)


_FLOATS = (dtypes.float32, dtypes.float64)


def _pair(value: Function, gradients: Function) -> Composite:
    """value(x, y), and gradients(x, y, dz) -> (dx, dy), in float32 or float64."""

    def forward(x: Any, y: Any) -> tuple[Any, Backward]:
        kind = _FLOATS[dtypes.float64 in map(compute_type, (x, y))]
        both = as_type(x, kind), as_type(y, kind)

        def backward(g: Any) -> Any:
            found = gradients(*both, as_type(g, kind))
            for one, its in zip((x, y), found, strict=True):
                yield one, as_type(sum_to(its, one.shape), one.dtype)

        return as_type(value(*both), _type_of_both(x, y)), backward

    return with_gradient(_refuses_pair, forward)


def _type_of_both(x: TensorProxy, y: TensorProxy) -> dtypes.dtype:
    """That of a tensor without dimensions counts only beside another one."""
    ranked = [one for one in (x, y) if one.ndim] or [x, y]
    types = {dtypes.to_strong_dtype(one.dtype) for one in ranked}
    return types.pop() if len(types) == 1 else _FLOATS[dtypes.float64 in types]


def _refuses_pair(x: Any, y: Any, **named: Any) -> Reject | None:
    if named or type(x) is not TensorProxy or type(y) is not TensorProxy:
        return Reject("other than two plain tensors")
    return refuses_floats("a function", x, y)


def _logarithmic(log: Function, pole: float) -> Composite:
    """x * log(y), and 0 for x = 0 unless y is NaN; the logarithm is -infinity at the pole."""

    def value(x: Any, y: Any) -> Any:
        return ltorch.where((x == 0.0) & ltorch.eq(y, y), 0.0, x * log(y))

    def gradients(x: Any, y: Any, g: Any) -> tuple[Any, Any]:
        undefined = (x == 0.0) & (y <= pole)
        of_y = g * x / (y - pole)
        return ltorch.where(undefined, 0.0, value(g, y)), of_y

    return _pair(value, gradients)


def _logaddexp(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)); equal infinities are their own sum."""
    same = (x == y) & ltorch.isinf(x)
    apart = ltorch.where(same, 0.0, x - y)
    return ltorch.maximum(x, y) + ltorch.log1p(ltorch.exp(-abs(apart)))


def _logaddexp_gradients(x: Any, y: Any, g: Any) -> tuple[Any, Any]:
    apart = y - x
    return g / (1.0 + ltorch.exp(apart)), g / (1.0 + ltorch.exp(-apart))


def _cast(dtype: dtypes.dtype) -> Function:
    """A tensor of the type is returned as it is.

    Not by `to`, whose result Thunder takes for a view: a later write in place would lose gradients.
    """
    return lambda input: maybe_convert_to_dtype(input, dtype)


CASTS = rewrites(
    "Tensor.", may_be_view=True,
    bfloat16=_cast(dtypes.bfloat16), bool=_cast(dtypes.bool8), byte=_cast(dtypes.uint8),
    char=_cast(dtypes.int8), double=_cast(dtypes.float64), half=_cast(dtypes.float16),
    int=_cast(dtypes.int32), short=_cast(dtypes.int16),
)  # fmt: skip

POINTWISE: Table = {
    # Other names of functions that Thunder knows.
    **rewrites(
        "torch.", absolute=ltorch.abs, arccos=ltorch.acos, arccosh=ltorch.acosh, arcsin=ltorch.asin,
        arcsinh=ltorch.asinh, arctan=ltorch.atan, arctan2=ltorch.atan2, arctanh=ltorch.atanh,
        greater=ltorch.gt, greater_equal=ltorch.ge, less=ltorch.lt, less_equal=ltorch.le,
        multiply=ltorch.mul, negative=ltorch.neg, not_equal=ltorch.ne, sgn=ltorch.sign,
        subtract=ltorch.sub,
    ),
    **rewrites(
        "torch.special.", sinc, ltorch.erf, ltorch.erfc, ltorch.erfinv, ltorch.exp2, ltorch.expm1,
        ltorch.log1p,
    ),
    # Functions of their own.
    **rewrites(
        "torch.", clip, copysign, heaviside, lerp, sinc,
        clamp=clip,
        clamp_max=lambda input, max: clip(input, None, max),
        clamp_min=lambda input, min: clip(input, min, None),
        deg2rad=lambda input: input * (math.pi / 180),
        divide=lambda input, other, *, rounding_mode=None: (
            input / other if rounding_mode is None else NotImplemented
        ),
        # Thunder's result of two 0-dim bf16 tensors is float32.
        floor_divide=rounded_once(lambda input, other: input // other),
        fmax=lambda input, other: _first(input >= other, input, other),
        fmin=lambda input, other: _first(input <= other, input, other),
        isneginf=lambda input: input == -math.inf,
        isposinf=lambda input: input == math.inf,
        rad2deg=lambda input: input * (180 / math.pi),
        rsub=lambda input, other, *, alpha=1: ltorch.sub(other, input, alpha=alpha),
    ),
    **CASTS,
    "torch.logaddexp": _pair(_logaddexp, _logaddexp_gradients),
    "torch.xlogy": _logarithmic(ltorch.log, 0.0),
    "torch.special.xlogy": _logarithmic(ltorch.log, 0.0),
    "torch.special.xlog1py": _logarithmic(ltorch.log1p, -1.0),
}  # fmt: skip
