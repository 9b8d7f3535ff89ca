# SPDX-License-Identifier: Apache-2.0
"""Activations of torch, each with a gradient in which nothing overflows.

    sigmoid(x) = 1 / (1 + e)   with e = exp(-x)      what the backward computes, for x = -90
->  Thunder, of its pieces:    g * s * s * e         0 * infinity = NaN
    here:                      g * s * (1 - s)       0

    mish(x) = x * tanh(log1p(exp(x)))                three functions of the math library; here one:
->  x * n (n + 2) / (n (n + 2) + 2)                  with n = exp(x), for x < 0
    x * (1 + 2 n) / (1 + 2 n (1 + n))                with n = exp(-x), elsewhere

16-bit floats are computed in float32.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import NoneType
from typing import Any

import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.functions.define import Backward, Composite, wide, with_gradient
from thunder_fuser.executors.types import FLOATS, as_type, data_type
from thunder_fuser.trace.op import Reject

# x and the numbers that follow it -> (y, what computes dy/dx).
Curve = tuple[Any, Callable[[], Any]]


def _activation(curve: Callable[..., Curve]) -> Composite:
    """f(x, *numbers, inplace=False) of a curve(x, *numbers)."""
    names = (*list(inspect.signature(curve).parameters)[1:], "inplace")

    def numbers_of(given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """By name, with `inplace`; True is 1."""
        every = {**dict(zip(names, given, strict=False)), **named}
        return {name: one + 0 if isinstance(one, bool) else one for name, one in every.items()}

    def forward(x: Any, *given: Any, **named: Any) -> tuple[Any, Backward]:
        numbers = numbers_of(given, named)
        inplace = numbers.pop("inplace", 0)
        y, slope = curve(wide(x), **numbers)
        result = as_type(y, x.dtype)
        result = ltorch._copy_(x, result) if inplace else result
        return result, lambda g: [(x, as_type(as_type(g, y.dtype) * slope(), x.dtype))]

    def refuses(x: Any, *given: Any, **named: Any) -> Reject | None:
        if not all(isinstance(one, (int, float, NoneType)) for one in (*given, *named.values())):
            return Reject("a computed number")
        if type(x) is not TensorProxy or data_type(x.dtype) not in FLOATS:
            return Reject("other than a plain tensor of floats")
        if curve is _celu and not numbers_of(given, named).get("alpha", 1):
            return Reject("celu that divides by zero")  # torch raises, and so it should
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
    y = ltorch.where(x < 0, alpha * ltorch.expm1(x), x)  # of 0 is 0, for an infinite alpha too
    return y, lambda: ltorch.where(x <= 0, alpha * ltorch.exp(x), 1.0)  # of NaN is 1


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
    y = ltorch.where(x <= 0, rest, -x * ltorch.log(x))
    return y, lambda: -1.0 - ltorch.log(x)


def _logit(x: Any, eps: Any = None) -> Curve:
    """log(x / (1 - x)) of x between eps and 1 - eps; outside, a gradient of 0 (no eps: of NaN)."""
    low, beyond = (0.0, math.nan) if eps is None else (float(eps), 0.0)
    below, above = x < low, x > 1.0 - low
    inner = x if eps is None else ltorch.where(below, low, ltorch.where(above, 1.0 - low, x))
    y, outside = ltorch.log(inner / (1.0 - inner)), below | above
    # Of -0.0 as of 0.0: infinity.
    return y, lambda: ltorch.where(outside, beyond, ltorch.reciprocal(abs(x) * (1.0 - x)))


ACTIVATIONS = {
    "torch.celu": _activation(_celu),
    "torch.logit": _activation(_logit),
    "torch.selu": _activation(_selu),
    "torch.sigmoid": _activation(_sigmoid),
    "torch.nn.functional.elu": _activation(_elu),
    "torch.nn.functional.logsigmoid": _activation(_logsigmoid),
    "torch.nn.functional.mish": _activation(_mish),
    "torch.special.entr": _activation(_entr),
    "torch.special.logit": _activation(_logit),
}
