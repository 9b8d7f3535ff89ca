# SPDX-License-Identifier: Apache-2.0
"""Batch norm in training, [N, C, *]: statistics of each channel, which update the running ones.

    mean, var = of x over all axes but C;  r = rsqrt(var + eps);  n = (x - mean) * r
    y = n * w + b                                                 g = dy, sums over the same axes
->  db = sum(g), dw = sum(g * n), dx = (g - db / M - n * (dw / M)) * (r * w)

Thunder writes the running statistics before it multiplies with the weight, so that the normalised
values wait in memory, in float32. Its gradient, derived from the pieces, has four sums. Here one op
makes all results, and the statistics are written last: torch does not define the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import thunder
import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.functions.define import (
    Backward,
    Rewrite,
    Table,
    as_type,
    compute_type,
    refuses_floats,
    with_gradient,
)


@dataclass(frozen=True, slots=True)
class _BatchNorm:
    """x [N, C, *], normalised over all axes but C; all else [C]."""

    x: TensorProxy
    running_mean: TensorProxy | None = None
    running_var: TensorProxy | None = None
    weight: TensorProxy | None = None
    bias: TensorProxy | None = None
    momentum: float = 0.1
    eps: float = 1e-5

    @property
    def summed(self) -> tuple[int, ...]:
        """The axes that are normalised."""
        return (0, *range(2, self.x.ndim))

    @property
    def count(self) -> int:
        """The elements of a channel."""
        return prod(self.x._shape) // self.x._shape[1]

    def wide(self, tensor: TensorProxy) -> Any:
        """A tensor in the type that the norm is computed in."""
        return as_type(tensor, compute_type(self.x))

    def beside_x(self, channels: Any) -> Any:
        """[C] -> [1, C, 1, ...]"""
        return ltorch.reshape(channels, (1, -1, *(1 for _ in self.x._shape[2:])))

    def forward(self) -> tuple[tuple[Any, Any, Any], Backward]:
        """(y, the new running mean, the new running variance, from the sample variance)"""
        var, mean = ltorch.var_mean(self.wide(self.x), self.summed, correction=0)
        normal = self.normal(mean, ltorch.rsqrt(var + self.eps))
        y = normal if self.weight is None else normal * self.beside_x(self.wide(self.weight))
        y = y if self.bias is None else y + self.beside_x(self.wide(self.bias))
        sample = var * (self.count / (self.count - 1))
        moved = self.moved(self.running_mean, mean), self.moved(self.running_var, sample)
        return (as_type(y, self.x.dtype), *moved), lambda g: self.gradients(mean, var, self.wide(g))

    def normal(self, mean: Any, r: Any) -> Any:
        return (self.wide(self.x) - self.beside_x(mean)) * self.beside_x(r)

    def moved(self, old: Any, new: Any) -> Any:
        """A running statistic after this batch, in its own type."""
        if old is None:
            return None
        return as_type(self.wide(old) * (1 - self.momentum) + new * self.momentum, old.dtype)

    def gradients(self, mean: Any, var: Any, g: Any) -> Iterable[tuple[Any, Any]]:
        """The gradients of x, weight and bias, from that of y; running statistics have none."""
        r = ltorch.rsqrt(var + self.eps)
        normal = self.normal(mean, r)
        db, dw = ltorch.sum(g, self.summed), ltorch.sum(g * normal, self.summed)
        scale = r if self.weight is None else r * self.wide(self.weight)
        dx = g - self.beside_x(db / self.count) - normal * self.beside_x(dw / self.count)
        yield self.x, dx * self.beside_x(scale)
        yield from (pair for pair in ((self.weight, dw), (self.bias, db)) if pair[0] is not None)


_NAME = "batch_norm_in_training"
_COMPOSITE = with_gradient(lambda *args: None, lambda *args: _BatchNorm(*args).forward())
batch_norm_in_training = Symbol(_NAME, _COMPOSITE.transform, id=_NAME)


def batch_norm(  # noqa: PLR0917 - torch's
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """input [N, C, *], all tensors beside it [C]."""
    optional = running_mean, running_var, weight, bias
    if training is not True or not _is_taken(input, optional, momentum, eps):
        return NotImplemented
    y, *moved = batch_norm_in_training(input, *optional, momentum, eps)
    for running, new in zip(optional, moved, strict=False):
        if running is not None:
            ltorch.copy_(running, new)
    return y


def instance_norm(  # noqa: PLR0917 - torch's
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """input [N, C, *]: a batch norm of [1, N * C, *]. The running statistics become the mean of all
    N; Thunder writes copies of them."""
    running, optional = (running_mean, running_var), (running_mean, running_var, weight, bias)
    is_asked = use_input_stats is True and running_mean is not None and running_var is not None
    if not is_asked or not _is_taken(input, optional, momentum, eps) or prod(input.shape[2:]) < 2:
        return NotImplemented
    n, c, *sizes = input.shape
    of_each = [None if x is None else ltorch.repeat(x, n) for x in optional]
    x = ltorch.reshape(input, (1, n * c, *sizes))
    y, *moved = batch_norm_in_training(x, *of_each, momentum, eps)
    for old, new in zip(running, moved, strict=True):
        ltorch.copy_(old, ltorch.mean(ltorch.reshape(new, (n, c)), 0))
    return ltorch.reshape(y, (n, c, *sizes))


def _is_taken(x: Any, optional: Sequence[Any], *numbers: Any) -> bool:
    """True for floats, with numbers, and statistics and parameters [C] that are not wider. The
    statistics must be written: Thunder takes arguments that share memory for one, wherever a trace
    has a copy_ of its own."""
    channels = [tensor for tensor in optional if tensor is not None]
    if not all(isinstance(tensor, TensorProxy) for tensor in (x, *channels)):
        return False
    is_same = len({tensor.name for tensor in channels}) < len(channels)
    shared = thunder._cache_info_ctx.get({}).get("alias_tensor_indices", "")
    if is_same or shared or not all(type(number) in (int, float) for number in numbers):
        return False
    if refuses_floats("a batch norm", x, *channels) or x.ndim < 2 or prod(x._shape) == x._shape[1]:
        return False
    widest = compute_type(x).bytes
    return all(y._shape == x._shape[1:2] and y.dtype.bytes <= widest for y in channels)


BATCH_NORMS: Table = {
    "torch.batch_norm": Rewrite(batch_norm), "torch.instance_norm": Rewrite(instance_norm),
    _NAME: _COMPOSITE,
}  # fmt: skip
