# SPDX-License-Identifier: Apache-2.0
"""Reductions, matrix products, layer norm and RMS norm.

    linalg.vector_norm(x, 2, dim)  ->  sqrt(sum(x * x, dim)), with a gradient of zero at zero
    addmm(bias, x, w)              ->  linear(x, w.T, bias)

Note [Norms]: the gradients of layer norm and RMS norm divide the sum of a row by its length, not
each element:

    y = n * w + b,  n = (x - mean(x)) * r,  r = rsqrt(var(x) + eps)        g = dy, h = g * w
->  Thunder, of its pieces:  dx = h * r + sum(...) / C + 2 * sum(...) * (x - mean(x)) / C
    here:                    dx = (h - mean(h) - n * mean(h * n)) * r
                             dw = sum(g * n), db = sum(g) over the rows

RMS norm is the same with 0 for both mean(x) and mean(h).

On the CPU, the backward of 16-bit rows does not save mean(x), so it saves as few bytes as with
statistics of 16 bits. mean(h * n) = (mean(h * x) - mean(h) * mean(x)) * r, so the mean is one more
sum in the pass that makes the others. The subtraction loses digits if mean(x) is large compared to
the deviation; if float32 had too few, 16 bits could not tell the elements of the row apart. On a
GPU the mean is saved, as torch.compile does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.devices import DeviceType
from thunder.core.proxies import TensorProxy
from thunder.transforms.autocast import maybe_apply_autocast

from thunder_fuser.functions.define import (
    Backward,
    Function,
    Table,
    as_type,
    compute_type,
    of_calls,
    refuses_floats,
    rewrites,
    rounded_once,
)
from thunder_fuser.trace.op import Reject


def _dims(x: Any, dim: Any) -> Any:
    return tuple(range(x.ndim)) if dim is None else dim


@rounded_once
def vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """sum(|x|^ord)^(1/ord) for ord 1 and 2, the largest |x| for infinity."""
    if ord not in (1, 2, math.inf) or dtype is not None or not dtypes.is_float_dtype(x.dtype):
        return NotImplemented
    along = _dims(x, dim), keepdim
    if ord == 2:
        return _root(ltorch.sum(x * x, *along))
    return (ltorch.sum if ord == 1 else ltorch.amax)(abs(x), *along)


def _root(squares: Any) -> Any:
    """The square root, with a gradient of zero at zero."""
    zero = squares == 0
    return ltorch.where(zero, 0.0, ltorch.sqrt(ltorch.where(zero, 1.0, squares)))


def norm(input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False) -> Any:
    """The norm of the vector of all elements, or along dimensions."""
    p = 2 if p in ("fro", None) else p
    return NotImplemented if isinstance(p, str) else vector_norm(input, p, dim, keepdim)


def _min(input: Any, other: Any = None) -> Any:
    """The minimum of all elements, or of two tensors."""
    if other is None:
        return ltorch.amin(input, _dims(input, None))
    return ltorch.minimum(input, other) if isinstance(other, TensorProxy) else NotImplemented


def aminmax(input: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dim = _dims(input, dim)
    return ltorch.amin(input, dim, keepdim), ltorch.amax(input, dim, keepdim)


@rounded_once
def nanmean(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The mean of the elements that are not NaN; NaN if all are."""
    counted = ltorch.to(~ltorch.isnan(input), input.dtype)
    return ltorch.sum(_no_nan(input), dim, keepdim) / ltorch.sum(counted, dim, keepdim)


def _no_nan(x: Any) -> Any:
    return ltorch.where(ltorch.isnan(x), 0, x) if dtypes.is_float_dtype(x.dtype) else x


def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    source = source if alpha == 1 else source * alpha
    if input.ndim:
        return ltorch.index_add(input, dim, index, source)
    row, index, source = (ltorch.reshape(x, (1,)) for x in (input, index, source))
    return ltorch.reshape(ltorch.index_add(row, 0, index, source), ())


def _spread(of_real: Function, *, root: bool = False, with_mean: bool = False) -> Function:
    """With torch's signatures: (x, unbiased), (x, dim, unbiased, keepdim), or with a correction.

    The variance of complex numbers is the sum of those of the real and the imaginary part: the
    gradient of Thunder's function would be that of real numbers.
    """

    def call(
        input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False,
        *, correction: Any = None,
    ) -> Any:  # fmt: skip
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if correction is None:
            correction = 1 if unbiased is None else int(unbiased)
        numbers = {"keepdim": keepdim, "correction": correction}
        if not dtypes.is_complex_dtype(input.dtype):
            result = of_real(input, dim, **numbers)
            return (ltorch.sqrt(result[0]), result[1]) if root and with_mean else result
        parts = ltorch.real(input), ltorch.imag(input)
        re, im = (ltorch.var(part, dim, **numbers) for part in parts)
        result = _root(re + im) if root else re + im
        return (result, ltorch.mean(input, dim, keepdim)) if with_mean else result

    return call


def _product(x: Any, y: Any, *ranks: int) -> Any:
    """The product of tensors of these ranks; torch refuses others."""
    return ltorch.matmul(x, y) if (x.ndim, y.ndim) == ranks else NotImplemented


def inner(input: Any, other: Any) -> Any:
    """The product along the last dimension of both."""
    if input.ndim == other.ndim == 1:
        return ltorch.matmul(input, other)
    return ltorch.linear(input, other) if other.ndim == 2 and input.ndim else NotImplemented


def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """A row plus a product, which is torch's linear with the second matrix transposed."""
    row = input.ndim == 1 and mat1.ndim == mat2.ndim == 2 and input.shape[0] == mat2.shape[1]
    same = input.dtype == mat1.dtype == mat2.dtype or maybe_apply_autocast(ltorch.linear)
    if not row or not same or (beta, alpha) != (1, 1):
        return NotImplemented
    return ltorch.linear(mat1, ltorch.transpose(mat2, 0, 1), input)


# ---------------------------------------------------------------------- layer norm and RMS norm


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

    def wide(self, tensor: TensorProxy) -> Any:
        """A tensor in the type that the norm is computed in."""
        return as_type(tensor, compute_type(self.x))

    def mean(self, values: Any) -> Any:
        """The mean of each row, [..., 1]."""
        return ltorch.mean(values, self.row, keepdim=True)

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
        yield self.x, dx * r
        outer = tuple(range(self.row[0]))
        for parameter, of_rows in ((self.weight, g * normal), (self.bias, g)):
            if parameter is not None:
                yield parameter, ltorch.sum(of_rows, outer) if outer else of_rows

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
        """None for floats with parameters of a row's shape; else why the call is refused."""
        x, shape = self.x, tuple(self.normalized_shape)
        if refused := refuses_floats("a norm", x, self.weight, self.bias):
            return refused
        if not shape or shape != tuple(x._shape[-len(shape) :]):
            return Reject("a norm with arguments that torch refuses")
        parameters = [tensor for tensor in (self.weight, self.bias) if tensor is not None]
        if any(tuple(parameter._shape) != shape for parameter in parameters):
            return Reject("a norm with parameters of another shape than a row")
        if any(parameter.dtype.bytes > compute_type(x).bytes for parameter in parameters):
            return Reject("a norm with parameters of a wider type than it computes in")
        return None if isinstance(self.eps, (int, float)) else Reject("a norm with a computed eps")


def _normal(x: Any, mean: Any, r: Any) -> Any:
    return (x if mean is None else x - mean) * r


def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> _Norm:
    """The call of rms_norm. eps: by default that of the type in which it computes."""
    if eps is None:
        eps = torch.finfo(dtypes.to_torch_dtype(compute_type(x))).eps
    return _Norm(x, normalized_shape, weight, None, eps, centred=False)


REDUCTIONS: Table = {
    **rewrites(
        "torch.", addmm, aminmax, index_add, inner, nanmean, norm,
        count_nonzero=lambda input, dim=None: ltorch.sum(ltorch.to(input != 0, dtypes.int64), dim),
        dist=rounded_once(lambda input, other, p=2: vector_norm(input - other, p)),
        dot=lambda input, tensor: _product(input, tensor, 1, 1),
        min=_min,
        nansum=lambda input, dim=None, keepdim=False, *, dtype=None: ltorch.sum(
            _no_nan(input), dim, keepdim, dtype=dtype
        ),
        mv=lambda input, vec: _product(input, vec, 2, 1),
        spmm=lambda input, mat2: _product(input, mat2, 2, 2),  # which is torch.mm
    ),
    **rewrites(
        "torch.", of_complex=True,
        std=_spread(ltorch.std, root=True),
        std_mean=_spread(ltorch.var_mean, root=True, with_mean=True),
        var=_spread(ltorch.var),
        var_mean=_spread(ltorch.var_mean, with_mean=True),
    ),
    **rewrites("torch.linalg.", ltorch.matmul, vector_norm),
    **rewrites("torch.special.", ltorch.logsumexp, ltorch.softmax),
    "torch.layer_norm": of_calls(_Norm),
    "torch.rms_norm": of_calls(_rms_norm),
}  # fmt: skip
