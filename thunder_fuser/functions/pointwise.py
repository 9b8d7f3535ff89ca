# SPDX-License-Identifier: Apache-2.0
"""Pointwise functions, with activations; NaN and gradients are as in torch.

    sinc(x)     ->  sin(pi x) / (pi x), and 1 where x is 0
    xlogy(x, y) ->  x log(y), and 0 where x is 0       dx = xlogy(dz, y), and 0 where x is 0 >= y
                                                       dy = dz x / y

The gradient of `where` is 0 on the side that is not chosen. There, zero times infinity would be
NaN, so that side's operands are made finite first. If torch's gradient is not 0 there (as of xlogy
for y at x = 0, y = infinity), the gradient is written out.

Activations have gradients in which nothing overflows:

    sigmoid(x) = 1 / (1 + e)   with e = exp(-x)      its gradient, for x = -90
->  Thunder, of its pieces:    g * s * s * e         0 * infinity = NaN
    here:                      g * s * (1 - s)       0

    mish(x) = x * tanh(log1p(exp(x)))                three functions of the math library; here one:
->  x * n (n + 2) / (n (n + 2) + 2)                  with n = exp(x), for x < 0
    x * (1 + 2 n) / (1 + 2 n (1 + n))                with n = exp(-x), elsewhere
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import NoneType
from typing import Any

import thunder.torch as ltorch
from thunder.clang import maybe_broadcast, maybe_convert_to_dtype
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import sum_to
from thunder.torch.langctx import register_method

from thunder_fuser.executors.support.dtypes import FLOATS, data_type, is_known_number
from thunder_fuser.functions.define import (
    Backward,
    Composite,
    Function,
    Rewrite,
    Table,
    as_type,
    compute_type,
    is_16_bit,
    promoted,
    refuses_floats,
    rewrites,
    rounded_once,
    wide,
    with_gradient,
)
from thunder_fuser.trace.op import Reject


def clip(input: Any, min: Any = None, max: Any = None) -> Any:
    """As ltorch.clamp, but elements equal to a bound keep their gradient, as in torch."""
    bounds = [bound for bound in (min, max) if bound is not None]
    numbers = [bound.value if is_known_number(bound) else bound for bound in bounds]
    floats = [number for number in numbers if isinstance(number, float)]
    # torch ignores NaN as a single bound, and promotes integers with a float bound.
    is_float = dtypes.is_float_dtype(input.dtype)
    if not bounds or any(map(math.isnan, floats)) or (floats and not is_float):
        return NotImplemented
    result = input if min is None else _bounded(input, min, ltorch.ge)
    return result if max is None else _bounded(result, max, ltorch.le)


def _bounded(x: Any, bound: Any, within: Function) -> Any:
    """x within the bound; NaN where x or the bound is NaN, without a gradient."""
    result = ltorch.where(within(x, bound), x, bound)
    is_float = dtypes.is_float_dtype(x.dtype)
    return ltorch.where(ltorch.isnan(x), math.nan, result) if is_float else result


def copysign(input: Any, other: Any) -> Any:
    """Thunder's function, which takes -0.0 and -NaN for positive, and the type of input alone."""
    if isinstance(other, TensorProxy):
        widest = max(input.dtype, promoted(input, other), key=lambda dtype: dtype.bytes)
        return ltorch.copysign(as_type(input, widest), other)
    number = other.value if is_known_number(other) else other
    return ltorch.copysign(input, math.copysign(1.0, number) if type(number) is float else other)


def lerp(input: Any, end: Any, weight: Any) -> Any:
    """Thunder's function, after the broadcast that it lacks. torch refuses several types."""
    if len({x.dtype for x in (input, end, weight) if isinstance(x, TensorProxy)}) > 1:
        return NotImplemented
    operands = maybe_broadcast(input, end, weight, treat_cpu_scalar_tensors_as_numbers=False)
    return ltorch.lerp(*operands)


@rounded_once
def sinc(input: Any) -> Any:
    """sin(pi x) / (pi x); 1 where x * x is 0, since the gradient divides by that."""
    zero = input * input == 0
    angle = ltorch.where(zero, 1.0, input * math.pi)
    return ltorch.where(zero, 1.0, ltorch.sin(angle) / angle)


def heaviside(input: Any, values: Any) -> Any:
    """0 below zero and for NaN, 1 above, the values at zero. torch refuses two types."""
    if not isinstance(values, TensorProxy) or values.dtype != input.dtype:
        return NotImplemented
    return ltorch.where(input == 0, values, ltorch.to(input > 0, values.dtype))


def dropout(input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False) -> Any:
    """Draws numbers in float32: in bf16, Thunder draws one of 256, and p = 0.1 keeps 231 of them.

    With p = 1 the gradient is zeros, as in torch; in Thunder there is none.
    """
    if inplace or not training or not 0 < p <= 1 or not (p == 1 or is_16_bit(input)):
        return NotImplemented
    if p == 1:
        return input * 0.0
    drawn = ltorch.uniform(input.shape, 0.0, 1.0, device=input.device, dtype=dtypes.float32)
    return input * (drawn < 1 - p) * (1 / (1 - p))


def _first(better: Any, x: Any, y: Any) -> Any:
    """x where it is better or y is NaN, else y; of equal elements, x gets the gradient."""
    return ltorch.where(better | ltorch.isnan(y), x, y)


def _pair(value: Function, gradients: Function) -> Composite:
    """value(x, y), and gradients(x, y, dz) -> (dx, dy), in float32 or float64."""

    def forward(x: Any, y: Any) -> tuple[Any, Backward]:
        kind = max(compute_type(x), compute_type(y), key=lambda dtype: dtype.bytes)
        both = as_type(x, kind), as_type(y, kind)

        def backward(g: Any) -> Any:
            for operand, gradient in zip((x, y), gradients(*both, as_type(g, kind)), strict=True):
                yield operand, sum_to(gradient, operand.shape)

        return as_type(value(*both), promoted(x, y)), backward

    def refuses(x: Any, y: Any, **named: Any) -> Reject | None:
        return Reject("more arguments than two") if named else refuses_floats("a function", x, y)

    return with_gradient(refuses, forward)


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
    difference = ltorch.where(same, 0.0, x - y)
    return ltorch.maximum(x, y) + ltorch.log1p(ltorch.exp(-abs(difference)))


def _logaddexp_gradients(x: Any, y: Any, g: Any) -> tuple[Any, Any]:
    difference = y - x
    return g / (1.0 + ltorch.exp(difference)), g / (1.0 + ltorch.exp(-difference))


# ------------------------------------------------------------------------------------ activations

# (y, a function that computes dy/dx)
Curve = tuple[Any, Callable[[], Any]]


def _activation(curve: Callable[..., Curve]) -> Composite:
    """The Composite f(x, *numbers, inplace=False) of curve(x, *numbers)."""
    names = (*list(inspect.signature(curve).parameters)[1:], "inplace")

    def numbers_of(listed: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """{name: number}, with `inplace`; True becomes 1."""
        every = {**dict(zip(names, listed, strict=False)), **named}
        return {name: x + 0 if isinstance(x, bool) else x for name, x in every.items()}

    def forward(x: Any, *listed: Any, **named: Any) -> tuple[Any, Backward]:
        numbers = numbers_of(listed, named)
        inplace = numbers.pop("inplace", 0)
        y, slope = curve(wide(x), **numbers)
        result = as_type(y, x.dtype)
        result = ltorch._copy_(x, result) if inplace else result
        return result, lambda g: [(x, as_type(g, y.dtype) * slope())]

    def refuses(x: Any, *listed: Any, **named: Any) -> Reject | None:
        numbers = (*listed, *named.values())
        if not all(isinstance(number, (int, float, NoneType)) for number in numbers):
            return Reject("a computed number")
        if type(x) is not TensorProxy or data_type(x.dtype) not in FLOATS:
            return Reject("an operand that is not a plain tensor of floats")
        if curve is _celu and not numbers_of(listed, named).get("alpha", 1):
            return Reject("celu with alpha=0")  # torch raises, and so it should
        return None

    return with_gradient(refuses, forward)


def _sigmoid(x: Any) -> Curve:
    y = ltorch.reciprocal(1.0 + ltorch.exp(-x))
    return y, lambda: y * (1.0 - y)


def _logsigmoid(x: Any) -> Curve:
    """min(x, 0) - log1p(n) with n = exp(-|x|)."""
    negative, n = x < 0, ltorch.exp(-abs(x))
    y = ltorch.where(negative, x, 0.0) - ltorch.log1p(n)
    return y, lambda: ltorch.where(negative, 1.0, n) / (1.0 + n)


def _elu(x: Any, alpha: float = 1.0) -> Curve:
    y = ltorch.where(x < 0, alpha * ltorch.expm1(x), x)  # 0 for 0, even with an infinite alpha
    return y, lambda: ltorch.where(x <= 0, alpha * ltorch.exp(x), 1.0)  # 1 for NaN


def _celu(x: Any, alpha: float = 1.0) -> Curve:
    y = ltorch.where(x < 0, alpha * ltorch.expm1(x / alpha), x)
    return y, lambda: ltorch.where(x <= 0, ltorch.exp(x / alpha), 1.0)


_ALPHA, _SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _selu(x: Any) -> Curve:
    y, slope = _elu(x, _ALPHA)
    return _SCALE * y, lambda: _SCALE * slope()


def _mish(x: Any) -> Curve:
    """With tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2), e = exp(x); both over e * e for x >= 0.

    Its derivative is that quotient, t, plus x * 4 e (e + 1) / (e (e + 2) + 2)^2.
    """
    negative, n = x < 0, ltorch.exp(-abs(x))
    above = ltorch.where(negative, n * (n + 2.0), 1.0 + 2.0 * n)
    below = ltorch.reciprocal(above + ltorch.where(negative, 2.0, 2.0 * n * n))
    t = above * below

    def slope() -> Any:
        bend = ltorch.where(negative, n, n * n) * (1.0 + n) * 4.0 * below * below
        return t + x * bend

    return x * t, slope


def _entr(x: Any) -> Curve:
    """-x log(x), 0 at 0, -infinity below."""
    rest = ltorch.where(x < 0, -math.inf, 0.0)
    return ltorch.where(x <= 0, rest, -x * ltorch.log(x)), lambda: -1.0 - ltorch.log(x)


def _logit(x: Any, eps: Any = None) -> Curve:
    """log(x / (1 - x)), x clamped to eps and 1 - eps; outside, the gradient is 0 (no eps: NaN)."""
    low, beyond = (0.0, math.nan) if eps is None else (float(eps), 0.0)
    below, above = x < low, x > 1.0 - low
    inner = x if eps is None else ltorch.where(below, low, ltorch.where(above, 1.0 - low, x))
    y, outside = ltorch.log(inner / (1.0 - inner)), below | above  # -0.0 is as 0.0 below
    return y, lambda: ltorch.where(outside, beyond, ltorch.reciprocal(abs(x) * (1.0 - x)))


# -------------------------------------------------------------------------------------- the table


def _cast(dtype: dtypes.dtype) -> Function:
    """A cast to a type; a tensor of that type is returned itself."""
    # `to` would not do: Thunder takes its result for a view, and loses gradients at later writes.
    return lambda input: maybe_convert_to_dtype(input, dtype)


register_method("mod", ltorch.remainder)  # Thunder knows x % y by this name, but has no function

CASTS = rewrites(
    "Tensor.", may_be_view=True,
    bfloat16=_cast(dtypes.bfloat16), bool=_cast(dtypes.bool8), byte=_cast(dtypes.uint8),
    char=_cast(dtypes.int8), double=_cast(dtypes.float64), half=_cast(dtypes.float16),
    int=_cast(dtypes.int32), short=_cast(dtypes.int16),
)  # fmt: skip

POINTWISE: Table = {
    # Aliases of functions that Thunder knows.
    **rewrites(
        "torch.", absolute=ltorch.abs, arccos=ltorch.acos, arccosh=ltorch.acosh, arcsin=ltorch.asin,
        arcsinh=ltorch.asinh, arctan=ltorch.atan, arctan2=ltorch.atan2, arctanh=ltorch.atanh,
        divide=ltorch.div, greater=ltorch.gt, greater_equal=ltorch.ge, less=ltorch.lt,
        less_equal=ltorch.le, multiply=ltorch.mul, negative=ltorch.neg, not_equal=ltorch.ne,
        sgn=ltorch.sign, subtract=ltorch.sub,
    ),
    **rewrites(
        "torch.special.", sinc, ltorch.erf, ltorch.erfc, ltorch.erfinv, ltorch.exp2, ltorch.expm1,
        ltorch.log1p,
    ),
    **rewrites(
        "torch.", clip, copysign, heaviside, lerp, sinc,
        clamp=clip,
        clamp_max=lambda input, max: clip(input, None, max),
        clamp_min=lambda input, min: clip(input, min, None),
        deg2rad=lambda input: input * (math.pi / 180),
        floor_divide=rounded_once(lambda input, other: input // other),
        fmax=lambda input, other: _first(input >= other, input, other),
        fmin=lambda input, other: _first(input <= other, input, other),
        isneginf=lambda input: input == -math.inf,
        isposinf=lambda input: input == math.inf,
        ldexp=rounded_once(lambda input, other: input * ltorch.exp2(other)),
        masked_fill=lambda input, mask, value: (  # bools stay bools
            ltorch.masked_fill(input, mask, bool(value))
            if input.dtype == dtypes.bool8 and not isinstance(value, (bool, TensorProxy))
            else NotImplemented
        ),
        rad2deg=lambda input: input * (180 / math.pi),
        threshold=lambda input, threshold, value, inplace=False: (  # integers stay integers
            NotImplemented if inplace or dtypes.is_float_dtype(input.dtype)
            or isinstance(number := threshold + value, complex) or not math.isfinite(number)
            else ltorch.where(input > int(threshold), input, int(value))
        ),
        rsub=lambda input, other, *, alpha=1: ltorch.sub(other, input, alpha=alpha),
    ),
    **rewrites("torch.nn.functional.", dropout, may_be_view=True),
    # Of real numbers: a Rewrite is not asked for others. torch would keep it for the backward.
    **{f"torch.{name}": Rewrite(lambda input: input, may_be_view=True)
       for name in ("conj", "conj_physical", "resolve_conj")},
    **CASTS,
    # Composites with their own gradients.
    "torch.celu": _activation(_celu),
    "torch.logit": _activation(_logit),
    "torch.selu": _activation(_selu),
    "torch.sigmoid": _activation(_sigmoid),
    "torch.nn.functional.elu": _activation(_elu),
    "torch.nn.functional.logsigmoid": _activation(_logsigmoid),
    "torch.nn.functional.mish": _activation(_mish),
    "torch.special.entr": _activation(_entr),
    "torch.special.logit": _activation(_logit),
    "torch.logaddexp": _pair(_logaddexp, _logaddexp_gradients),
    "torch.xlogy": _logarithmic(ltorch.log, 0.0),
    "torch.special.xlogy": _logarithmic(ltorch.log, 0.0),
    "torch.special.xlog1py": _logarithmic(ltorch.log1p, -1.0),
}  # fmt: skip
