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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.devices import DeviceType
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.functions.define import Backward, of_calls, refuses_floats
from thunder_fuser.executors.types import as_type, compute_type
from thunder_fuser.trace.op import Reject


@dataclass(frozen=True, slots=True)
class _Norm:
    """A call: x [..., *normalized_shape], weight and bias [*normalized_shape]."""

    x: TensorProxy
    normalized_shape: Sequence[int]
    weight: TensorProxy | None = None
    bias: TensorProxy | None = None
    eps: float = 1e-5
    centred: bool = True

    @property
    def row(self) -> tuple[int, ...]:
        """The axes that are normalised."""
        return tuple(range(self.x.ndim - len(self.normalized_shape), self.x.ndim))

    def wide(self, one: TensorProxy) -> Any:
        """A tensor in the type that the norm is computed in."""
        return as_type(one, compute_type(self.x))

    def mean(self, one: Any) -> Any:
        """Of each row, [..., 1]."""
        return ltorch.mean(one, self.row, keepdim=True)

    def forward(self) -> tuple[Any, Backward]:
        x = self.wide(self.x)
        if self.centred:
            variance, mean = ltorch.var_mean(x, self.row, correction=0, keepdim=True)
        else:
            variance, mean = self.mean(x * x), None
        r = ltorch.rsqrt(variance + self.eps)
        y = _normal(x, mean, r)
        y = y if self.weight is None else y * self.wide(self.weight)
        y = y if self.bias is None else y + self.wide(self.bias)
        return as_type(y, self.x.dtype), lambda g: self.backward(x, mean, r, self.wide(g))

    def backward(self, x: Any, mean: Any, r: Any, g: Any) -> Any:
        h = g if self.weight is None else g * self.wide(self.weight)
        normal, along, mean_h = self.sums(x, mean, r, h)
        dx = h - normal * along if mean_h is None else h - mean_h - normal * along
        yield self.x, as_type(dx * r, self.x.dtype)
        outer = tuple(range(self.row[0]))
        for parameter, of_rows in ((self.weight, g * normal), (self.bias, g)):
            if parameter is not None:
                found = ltorch.sum(of_rows, outer) if outer else of_rows
                yield parameter, as_type(found, parameter.dtype)

    def sums(self, x: Any, mean: Any, r: Any, h: Any) -> tuple[Any, Any, Any]:
        """(n, mean(h * n), mean(h)); no mean(h) for rows that are not centred."""
        mean_h = self.mean(h) if self.centred else None
        on_cpu = self.x.device.devicetype is DeviceType.CPU
        if not self.centred or self.x.dtype.bytes > 2 or not on_cpu:
            normal = _normal(x, mean, r)
            return normal, self.mean(h * normal), mean_h
        mean = self.mean(x)
        along = (self.mean(h * x) - mean_h * mean) * r
        return _normal(x, mean, r), along, mean_h

    def refuses(self) -> Reject | None:
        """Taken: floats, with parameters of a row's shape."""
        x, shape = self.x, tuple(self.normalized_shape)
        if refused := refuses_floats("a norm", x, self.weight, self.bias):
            return refused
        if not shape or shape != tuple(x._shape[-len(shape) :]):
            return Reject("a norm with arguments that torch refuses")
        parameters = [one for one in (self.weight, self.bias) if one is not None]
        if any(tuple(one._shape) != shape for one in parameters):
            return Reject("a norm with parameters of another shape than a row")
        if any(one.dtype.bytes > compute_type(x).bytes for one in parameters):
            return Reject("a norm with parameters wider than it is computed")
        return None if isinstance(self.eps, (int, float)) else Reject("a norm with a computed eps")


def _normal(x: Any, mean: Any, r: Any) -> Any:
    return (x if mean is None else x - mean) * r


def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> _Norm:
    """eps: that of the type in which it is computed, if not given."""
    if eps is None:
        eps = torch.finfo(dtypes.to_torch_dtype(compute_type(x))).eps
    return _Norm(x, normalized_shape, weight, None, eps, centred=False)


NORMS = {"torch.layer_norm": of_calls(_Norm), "torch.rms_norm": of_calls(_rms_norm)}
