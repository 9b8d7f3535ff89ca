# SPDX-License-Identifier: Apache-2.0
"""Functions of two tensors that Thunder leaves to torch, with torch's gradients.

    xlogy(x, y)  =  x log(y), and 0 for x = 0       dx = xlogy(dz, y), and 0 for x = 0 >= y
                                                    dy = dz x / y

A choice by `where` gives what it did not choose a gradient of 0. So the gradient of the pieces
would be 0 at x = 0, y = infinity, where torch's is infinity: it is written here as a whole. 16-bit
floats are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import sum_to

from thunder_fuser.executors.types import are_floats, as_type, compute_type, refuses_tensors
from thunder_fuser.trace.op import Reject

Operands = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A function f(x, y): its value, and the gradients of x and y from that of the value."""

    id: str
    value: Callable[[Any, Any], Any]
    gradients: Callable[[Any, Any, Any], Operands]

    def transform(self, x: Any, y: Any) -> Any:
        return as_type(self.value(*_wide(x, y)), _result_type(x, y))

    def gradient(self, x: Any, y: Any) -> Any:
        wide = _wide(x, y)
        result = as_type(self.value(*wide), _result_type(x, y))
        g = as_type(prims.get_grad(result), wide[0].dtype)
        for operand, found in zip((x, y), self.gradients(*wide, g), strict=True):
            prims.put_grad(operand, as_type(sum_to(found, operand.shape), operand.dtype))
        return result

    def refuses(self, x: Any, y: Any, **named: Any) -> Reject | None:
        """Taken: plain tensors of floats."""
        if named or type(x) is not TensorProxy or type(y) is not TensorProxy:
            return Reject(f"{self.id} of other than two plain tensors")
        if refused := refuses_tensors(self.id, (x, y)):
            return refused
        if not are_floats(x, y) or not x.numel or not y.numel:
            return Reject(f"{self.id} of no elements, or of other than floats")
        return None


def _result_type(x: TensorProxy, y: TensorProxy) -> dtypes.dtype:
    """A tensor of no dimension decides only beside another one."""
    ranked = [one for one in (x, y) if one.ndim] or [x, y]
    types = {dtypes.to_strong_dtype(one.dtype) for one in ranked}
    if len(types) == 1:
        return types.pop()
    return dtypes.float64 if dtypes.float64 in types else dtypes.float32


def _wide(x: TensorProxy, y: TensorProxy) -> Operands:
    wide = dtypes.float64 if dtypes.float64 in map(compute_type, (x, y)) else dtypes.float32
    return as_type(x, wide), as_type(y, wide)


def _zero_or(x: Any, y: Any, log: Any) -> Any:
    """x * log, and 0 for x = 0 unless y is NaN."""
    zero = ltorch.logical_and(ltorch.eq(x, 0.0), ltorch.eq(y, y))
    return ltorch.where(zero, 0.0, ltorch.mul(x, log))


def _logarithmic(id: str, log: Callable[[Any], Any], pole: float) -> Pair:
    """x * log(y), where the logarithm is -infinity at the pole."""

    def value(x: Any, y: Any) -> Any:
        return _zero_or(x, y, log(y))

    def gradients(x: Any, y: Any, g: Any) -> Operands:
        undefined = ltorch.logical_and(ltorch.eq(x, 0.0), ltorch.le(y, pole))
        of_y = ltorch.true_divide(ltorch.mul(g, x), ltorch.sub(y, pole))
        return ltorch.where(undefined, 0.0, _zero_or(g, y, log(y))), of_y

    return Pair(id, value, gradients)


def _log_of_sum(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)); equal infinities are their own sum."""
    same = ltorch.logical_and(ltorch.eq(x, y), ltorch.isinf(x))
    apart = ltorch.where(same, 0.0, ltorch.sub(x, y))
    return ltorch.add(ltorch.maximum(x, y), ltorch.log1p(ltorch.exp(ltorch.neg(ltorch.abs(apart)))))


def _shares(x: Any, y: Any, g: Any) -> Operands:
    """g / (1 + exp(y - x)), and with x and y exchanged."""
    apart = ltorch.sub(y, x)
    return _share(g, apart), _share(g, ltorch.neg(apart))


def _share(g: Any, apart: Any) -> Any:
    return ltorch.true_divide(g, ltorch.add(1.0, ltorch.exp(apart)))


PAIRS = (
    Pair("torch.logaddexp", _log_of_sum, _shares),
    _logarithmic("torch.xlogy", ltorch.log, 0.0),
    _logarithmic("torch.special.xlogy", ltorch.log, 0.0),
    _logarithmic("torch.special.xlog1py", ltorch.log1p, -1.0),
)
