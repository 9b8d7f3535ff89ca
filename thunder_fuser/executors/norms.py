# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm, with gradients that divide rows' sums by their length, not elements.

    y = n * w + b,  n = (x - mean(x)) * r,  r = rsqrt(var(x) + eps)        g = dy, h = g * w
->  Thunder, of its pieces:  dx = h * r + sum(...) / C + 2 * sum(...) * (x - mean(x)) / C
    here:                    dx = (h - mean(h) - n * mean(h * n)) * r
                             dw = sum(g * n), db = sum(g) over the rows

RMS norm is the same with 0 for both mean(x) and mean(h).

On the CPU the backward of 16-bit rows does without mean(x), as few bytes as if the statistics were
kept in 16 bits: mean(h * n) = (mean(h * x) - mean(h) * mean(x)) * r, so the mean is one more sum of
the pass that makes the others. What cancels is mean(x) beside the deviation; where that were too
much for float32, 16 bits would not tell the elements of the row apart. On a GPU the mean is kept,
as torch.compile keeps it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.devices import DeviceType
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.types import are_floats, as_type, compute_type, refuses_tensors
from thunder_fuser.trace.op import Reject


@dataclass(frozen=True, slots=True)
class _Norm:
    """A call: x [..., *normalized_shape], weight and bias [*normalized_shape]."""

    x: TensorProxy
    normalized_shape: Sequence[int]
    weight: TensorProxy | None
    bias: TensorProxy | None
    eps: float
    centred: bool

    @property
    def row(self) -> tuple[int, ...]:
        """The axes that are normalised."""
        return tuple(range(self.x.ndim - len(self.normalized_shape), self.x.ndim))

    @property
    def keeps_mean(self) -> bool:
        return self.x.dtype.bytes > 2 or self.x.device.devicetype is not DeviceType.CPU

    def wide(self, one: TensorProxy) -> Any:
        """A tensor in the type that the norm is computed in."""
        return as_type(one, compute_type(self.x))

    def mean(self, one: Any) -> Any:
        """Of each row, [..., 1]."""
        return ltorch.mean(one, self.row, keepdim=True)


@dataclass(frozen=True, slots=True)
class _Rows:
    """x in the wide type, and of each row mean(x), if it is centred, and r."""

    x: Any
    mean: Any
    scale: Any

    def normal(self) -> Any:
        centred = self.x if self.mean is None else self.x - self.mean
        return centred * self.scale


def _layer_norm_call(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> _Norm:
    return _Norm(x, normalized_shape, weight, bias, eps, centred=True)


def _rms_norm_call(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> _Norm:
    """eps: that of the type in which it is computed, if not given."""
    if eps is None:
        eps = torch.finfo(dtypes.to_torch_dtype(compute_type(x))).eps
    return _Norm(x, normalized_shape, weight, None, eps, centred=False)


def _forward(call: _Norm) -> tuple[Any, _Rows]:
    x = call.wide(call.x)
    if call.centred:
        variance, mean = ltorch.var_mean(x, call.row, correction=0, keepdim=True)
    else:
        variance, mean = call.mean(x * x), None
    rows = _Rows(x, mean, ltorch.rsqrt(variance + call.eps))
    y = rows.normal()
    y = y if call.weight is None else y * call.wide(call.weight)
    y = y if call.bias is None else y + call.wide(call.bias)
    return as_type(y, call.x.dtype), rows


def _backward(call: _Norm, rows: _Rows, g: Any) -> None:
    h = g if call.weight is None else g * call.wide(call.weight)
    mean_h, normal, along = _of_rows(call, rows, h)
    dx = h - normal * along if mean_h is None else h - mean_h - normal * along
    put_grad(call.x, as_type(dx * rows.scale, call.x.dtype))
    _give(call, call.weight, g * normal)
    _give(call, call.bias, g)


def _of_rows(call: _Norm, rows: _Rows, h: Any) -> tuple[Any, Any, Any]:
    """(mean(h), n, mean(h * n)); no mean(h) for rows that are not centred."""
    mean_h = call.mean(h) if call.centred else None
    if not call.centred or call.keeps_mean:
        normal = rows.normal()
        return mean_h, normal, call.mean(h * normal)
    mean_x = call.mean(rows.x)
    along = (call.mean(h * rows.x) - mean_h * mean_x) * rows.scale
    return mean_h, _Rows(rows.x, mean_x, rows.scale).normal(), along


def _give(call: _Norm, parameter: TensorProxy | None, of_rows: Any) -> None:
    """A parameter's gradient: the sum over all rows."""
    if parameter is not None:
        outer = tuple(range(call.row[0]))
        found = ltorch.sum(of_rows, outer) if outer else of_rows
        put_grad(parameter, as_type(found, parameter.dtype))


def _refuses(call: _Norm) -> Reject | None:
    """Taken: floats, with parameters of a row's shape."""
    x, shape = call.x, tuple(call.normalized_shape)
    parameters = [one for one in (call.weight, call.bias) if one is not None]
    if refused := refuses_tensors("a norm", (x, *parameters)):
        return refused
    if not are_floats(x, *parameters):
        return Reject("a norm of other than floats")
    if not shape or shape != tuple(x._shape[-len(shape) :]) or not prod(x._shape):
        return Reject("a norm of no elements, or with arguments that torch refuses")
    if any(tuple(one._shape) != shape for one in parameters):
        return Reject("a norm with parameters of another shape than a row")
    if any(one.dtype.bytes > compute_type(x).bytes for one in parameters):
        return Reject("a norm with parameters wider than it is computed")
    return None if isinstance(call.eps, (int, float)) else Reject("a norm with a computed eps")


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm of Thunder, by its id and what reads the arguments of a call."""

    id: str
    call: Callable[..., _Norm]

    def transform(self, *args: Any, **kwargs: Any) -> Any:
        return _forward(self.call(*args, **kwargs))[0]

    def gradient(self, *args: Any, **kwargs: Any) -> Any:
        call = self.call(*args, **kwargs)
        result, rows = _forward(call)
        _backward(call, rows, call.wide(get_grad(result)))
        return result

    def refuses(self, *args: Any, **kwargs: Any) -> Reject | None:
        return _refuses(self.call(*args, **kwargs))


NORMS = (Norm("torch.layer_norm", _layer_norm_call), Norm("torch.rms_norm", _rms_norm_call))
