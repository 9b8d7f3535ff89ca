# SPDX-License-Identifier: Apache-2.0
"""Elementwise functions of torch in functions that Thunder knows; NaN and gradients as torch's.

    torch.sinc(x)  ->  sin(pi x) / (pi x), and 1 where x is 0

A choice is `where`, whose other side gets no gradient; what that side computes is made harmless
first, for zero times infinity would come back out of its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
from thunder.clang import maybe_broadcast, maybe_convert_to_dtype
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.functions.precision import rounded_once
from thunder_fuser.executors.types import is_known_number

_INF = math.inf


def clip(input: Any, min: Any = None, max: Any = None) -> Any:
    """As ltorch.clamp; but what equals a bound keeps its gradient, as in torch."""
    bounds = [one for one in (min, max) if one is not None]
    if not bounds or not all(_is_bound(input, one) for one in bounds):
        return NotImplemented
    result = input if min is None else _bounded(input, min, ltorch.ge)
    return result if max is None else _bounded(result, max, ltorch.le)


def _is_bound(x: Any, bound: Any) -> bool:
    """False for NaN, alone no bound to torch, and for floats that bound integers."""
    number = bound.value if is_known_number(bound) else bound
    if not isinstance(number, float):
        return True
    return dtypes.is_float_dtype(x.dtype) and not math.isnan(number)


def _bounded(x: Any, bound: Any, within: Any) -> Any:
    """NaN where either is; NaN has no gradient."""
    result = ltorch.where(within(x, bound), x, bound)
    is_float = dtypes.is_float_dtype(x.dtype)
    return ltorch.where(ltorch.isnan(x), math.nan, result) if is_float else result


def clamp_min(input: Any, min: Any) -> Any:
    return clip(input, min, None)


def clamp_max(input: Any, max: Any) -> Any:
    return clip(input, None, max)


def divide(input: Any, other: Any, *, rounding_mode: None = None) -> Any:
    return ltorch.true_divide(input, other) if rounding_mode is None else NotImplemented


@rounded_once
def floor_divide(input: Any, other: Any) -> Any:
    """Thunder's, whose result of two 0-dim bf16 tensors is float32."""
    return ltorch.floor_divide(input, other)


def copysign(input: Any, other: Any) -> Any:
    """Thunder's, to which -0.0 and -NaN are positive numbers."""
    number = other.value if is_known_number(other) else other
    is_float = isinstance(number, float)
    return ltorch.copysign(input, math.copysign(1.0, number) if is_float else other)


def lerp(input: Any, end: Any, weight: Any) -> Any:
    """Of tensors of one type, which Thunder does not bring to one shape."""
    tensors = [one for one in (input, end, weight) if isinstance(one, TensorProxy)]
    if len({one.dtype for one in tensors}) > 1:
        return NotImplemented  # for torch to refuse
    operands = maybe_broadcast(input, end, weight, treat_cpu_scalar_tensors_as_numbers=False)
    return ltorch.lerp(*operands)


def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return ltorch.sub(other, input, alpha=alpha)


def deg2rad(input: Any) -> Any:
    return ltorch.mul(input, math.pi / 180)


def rad2deg(input: Any) -> Any:
    return ltorch.mul(input, 180 / math.pi)


@rounded_once
def sinc(input: Any) -> Any:
    """sin(pi x) / (pi x), and 1 where the square of x is 0, which its gradient divides by."""
    zero = ltorch.eq(ltorch.mul(input, input), 0)
    angle = ltorch.where(zero, 1.0, ltorch.mul(input, math.pi))
    return ltorch.where(zero, 1.0, ltorch.true_divide(ltorch.sin(angle), angle))


def heaviside(input: Any, values: Any) -> Any:
    """0 below zero and for NaN, 1 above, the values at zero."""
    if not isinstance(values, TensorProxy) or values.dtype != input.dtype:
        return NotImplemented  # for torch to refuse
    above = ltorch.to(ltorch.gt(input, 0), values.dtype)
    return ltorch.where(ltorch.eq(input, 0), values, above)


def fmax(input: Any, other: Any) -> Any:
    """The larger one, and of a number and NaN the number; of equals the first has the gradient."""
    return ltorch.where(_first(ltorch.ge(input, other), other), input, other)


def fmin(input: Any, other: Any) -> Any:
    return ltorch.where(_first(ltorch.le(input, other), other), input, other)


def _first(better: Any, other: Any) -> Any:
    return ltorch.logical_or(better, ltorch.isnan(other))


def isposinf(input: Any) -> Any:
    return ltorch.eq(input, _INF)


def isneginf(input: Any) -> Any:
    return ltorch.eq(input, -_INF)


def _cast(dtype: dtypes.dtype) -> Callable[[Any], Any]:
    """`x.half()` and the like; of a tensor of that type the tensor itself.

    Not by `to`, whose result Thunder takes for a view: a later write in place would lose gradients.
    """
    return lambda input: maybe_convert_to_dtype(input, dtype)


CASTS = {
    "bfloat16": dtypes.bfloat16, "half": dtypes.float16, "double": dtypes.float64,
    "byte": dtypes.uint8, "char": dtypes.int8, "short": dtypes.int16, "int": dtypes.int32,
    "bool": dtypes.bool8,
}  # fmt: skip

# Those that return a tensor of that type as it is, as torch does.
CASTING = frozenset(f"Tensor.{name}" for name in CASTS)

POINTWISE = {
    **{f"Tensor.{name}": _cast(dtype) for name, dtype in CASTS.items()},
    "torch.absolute": ltorch.abs,
    "torch.arccos": ltorch.acos,
    "torch.arccosh": ltorch.acosh,
    "torch.arcsin": ltorch.asin,
    "torch.arcsinh": ltorch.asinh,
    "torch.arctan": ltorch.atan,
    "torch.arctan2": ltorch.atan2,
    "torch.arctanh": ltorch.atanh,
    "torch.clamp_max": clamp_max,
    "torch.clamp_min": clamp_min,
    "torch.clamp": clip,
    "torch.clip": clip,
    "torch.copysign": copysign,
    "torch.deg2rad": deg2rad,
    "torch.divide": divide,
    "torch.floor_divide": floor_divide,
    "torch.fmax": fmax,
    "torch.fmin": fmin,
    "torch.greater": ltorch.gt,
    "torch.greater_equal": ltorch.ge,
    "torch.heaviside": heaviside,
    "torch.isneginf": isneginf,
    "torch.isposinf": isposinf,
    "torch.lerp": lerp,
    "torch.less": ltorch.lt,
    "torch.less_equal": ltorch.le,
    "torch.multiply": ltorch.mul,
    "torch.negative": ltorch.neg,
    "torch.not_equal": ltorch.ne,
    "torch.rad2deg": rad2deg,
    "torch.rsub": rsub,
    "torch.sgn": ltorch.sign,
    "torch.sinc": sinc,
    "torch.special.erf": ltorch.erf,
    "torch.special.erfc": ltorch.erfc,
    "torch.special.erfinv": ltorch.erfinv,
    "torch.special.exp2": ltorch.exp2,
    "torch.special.expm1": ltorch.expm1,
    "torch.special.log1p": ltorch.log1p,
    "torch.special.sinc": sinc,
    "torch.subtract": ltorch.sub,
}
