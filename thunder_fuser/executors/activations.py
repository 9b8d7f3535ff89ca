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
from dataclasses import dataclass
from types import NoneType
from typing import Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.types import FLOATS, as_type, compute_type, data_type
from thunder_fuser.trace.op import Reject

# x and the numbers that follow it -> (y, what computes dy/dx).
Curve = Callable[..., tuple[Any, Callable[[], Any]]]


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of one tensor, f(x, *numbers, inplace=False)."""

    id: str
    curve: Curve

    def transform(self, x: Any, *given: Any, **named: Any) -> Any:
        numbers, inplace = self._apart(given, named)
        return _written(x, self.curve(_wide(x), **numbers)[0], inplace)

    def gradient(self, x: Any, *given: Any, **named: Any) -> Any:
        numbers, inplace = self._apart(given, named)
        y, slope = self.curve(_wide(x), **numbers)
        result = _written(x, y, inplace)
        wide = as_type(prims.get_grad(result), y.dtype)
        prims.put_grad(x, as_type(ltorch.mul(wide, slope()), x.dtype))
        return result

    def refuses(self, x: Any, *given: Any, **named: Any) -> Reject | None:
        if any(not isinstance(one, (int, float, NoneType)) for one in (*given, *named.values())):
            return Reject(f"{self.id} with a computed number")
        if type(x) is not TensorProxy or data_type(x.dtype) not in FLOATS:
            return Reject(f"{self.id} of other than a plain tensor of floats")
        if self.curve is _celu and not self._apart(given, named)[0].get("alpha", 1):
            return Reject("celu that divides by zero")  # torch raises, and so it should
        return None

    def _apart(
        self, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[dict[str, Any], bool]:
        """The numbers by name, and `inplace`, which follows them; of the numbers True is 1."""
        names = (*list(inspect.signature(self.curve).parameters)[1:], "inplace")
        numbers = {**dict(zip(names, given, strict=False)), **named}
        inplace = bool(numbers.pop("inplace", False))
        plain = {name: one + 0 if isinstance(one, bool) else one for name, one in numbers.items()}
        return plain, inplace


def _written(x: Any, y: Any, inplace: bool) -> Any:
    """The result in the type of x, or in its memory."""
    result = as_type(y, x.dtype)
    return ltorch._copy_(x, result) if inplace else result


def _wide(x: TensorProxy) -> Any:
    return as_type(x, compute_type(x))


def _sigmoid(x: Any) -> tuple[Any, Callable[[], Any]]:
    y = ltorch.reciprocal(1.0 + ltorch.exp(-x))
    return y, lambda: y * (1.0 - y)


def _logsigmoid(x: Any) -> tuple[Any, Callable[[], Any]]:
    """min(x, 0) - log1p(n) with n = exp(-|x|)."""
    negative, n = x < 0, ltorch.exp(-ltorch.abs(x))
    y = ltorch.where(negative, x, 0.0) - ltorch.log1p(n)
    return y, lambda: ltorch.where(negative, 1.0, n) / (1.0 + n)


def _elu(x: Any, alpha: float = 1.0) -> tuple[Any, Callable[[], Any]]:
    y = ltorch.where(x < 0, alpha * ltorch.expm1(x), x)  # of 0 is 0, for an infinite alpha too
    return y, lambda: ltorch.where(x <= 0, alpha * ltorch.exp(x), 1.0)  # of NaN is 1


def _celu(x: Any, alpha: float = 1.0) -> tuple[Any, Callable[[], Any]]:
    y = ltorch.where(x < 0, alpha * ltorch.expm1(x / alpha), x)
    return y, lambda: ltorch.where(x <= 0, ltorch.exp(x / alpha), 1.0)


_ALPHA, _SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _selu(x: Any) -> tuple[Any, Callable[[], Any]]:
    y, slope = _elu(x, _ALPHA)
    return _SCALE * y, lambda: _SCALE * slope()


def _mish(x: Any) -> tuple[Any, Callable[[], Any]]:
    """With tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2), e = exp(x); both over e * e for x >= 0.

    Its derivative is that quotient, t, plus x * 4 e (e + 1) / (e (e + 2) + 2)^2.
    """
    negative, n = x < 0, ltorch.exp(-ltorch.abs(x))
    above = ltorch.where(negative, n * (n + 2.0), 1.0 + 2.0 * n)
    below = ltorch.reciprocal(above + ltorch.where(negative, 2.0, 2.0 * n * n))
    t = above * below

    def slope() -> Any:
        bend = ltorch.where(negative, n, n * n) * (1.0 + n) * 4.0 * below * below
        return t + x * bend

    return x * t, slope


def _entr(x: Any) -> tuple[Any, Callable[[], Any]]:
    """-x log(x), 0 at 0, -infinity below."""
    rest = ltorch.where(x < 0, -math.inf, 0.0)
    y = ltorch.where(x <= 0, rest, -x * ltorch.log(x))
    return y, lambda: -1.0 - ltorch.log(x)


def _logit(x: Any, eps: Any = None) -> tuple[Any, Callable[[], Any]]:
    """log(x / (1 - x)) of x between eps and 1 - eps; outside, a gradient of 0 (no eps: of NaN)."""
    low, beyond = (0.0, math.nan) if eps is None else (float(eps), 0.0)
    below, above = x < low, x > 1.0 - low
    inner = x if eps is None else ltorch.where(below, low, ltorch.where(above, 1.0 - low, x))
    y, outside = ltorch.log(inner / (1.0 - inner)), ltorch.logical_or(below, above)
    # Of -0.0 as of 0.0: infinity.
    return y, lambda: ltorch.where(outside, beyond, ltorch.reciprocal(ltorch.abs(x) * (1.0 - x)))


ACTIVATIONS = (
    Activation("torch.sigmoid", _sigmoid),
    Activation("torch.celu", _celu),
    Activation("torch.nn.functional.elu", _elu),
    Activation("torch.nn.functional.logsigmoid", _logsigmoid),
    Activation("torch.nn.functional.mish", _mish),
    Activation("torch.selu", _selu),
    Activation("torch.logit", _logit),
    Activation("torch.special.entr", _entr),
    Activation("torch.special.logit", _logit),
)
