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
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.functions.define import (
    Composite,
    Rewrite,
    Table,
    as_type,
    compute_type,
    refuses_floats,
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

    def wide(self, one: TensorProxy) -> Any:
        """A tensor in the type that the norm is computed in."""
        return as_type(one, compute_type(self.x))

    def beside_x(self, one: Any) -> Any:
        """[C] -> [1, C, 1, ...]"""
        return ltorch.reshape(one, (1, -1, *(1 for _ in self.x._shape[2:])))

    def statistics(self) -> tuple[Any, Any]:
        """(mean, variance) of the wide type."""
        var, mean = ltorch.var_mean(self.wide(self.x), self.summed, correction=0)
        return mean, var

    def results(self, mean: Any, var: Any) -> tuple[Any, Any, Any]:
        """(y, the new running mean, the new running variance, from the sample variance)"""
        normal = self.normal(mean, ltorch.rsqrt(var + self.eps))
        y = normal if self.weight is None else normal * self.beside_x(self.wide(self.weight))
        y = y if self.bias is None else y + self.beside_x(self.wide(self.bias))
        sample = var * (self.count / (self.count - 1))
        moved = self.moved(self.running_mean, mean), self.moved(self.running_var, sample)
        return as_type(y, self.x.dtype), *moved

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


def _forward(*args: Any) -> tuple[Any, Any, Any]:
    norm = _BatchNorm(*args)
    return norm.results(*norm.statistics())


def _with_gradient(*args: Any) -> tuple[Any, Any, Any]:
    norm = _BatchNorm(*args)
    mean, var = norm.statistics()
    y, *moved = norm.results(mean, var)
    for tensor, found in norm.gradients(mean, var, norm.wide(get_grad(y))):
        put_grad(tensor, as_type(found, tensor.dtype))
    return y, *moved


_NAME = "batch_norm_in_training"
batch_norm_in_training = Symbol(_NAME, _forward, id=_NAME)


def batch_norm(  # noqa: PLR0917 - torch's
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """input [N, C, *], all tensors beside it [C]."""
    own = running_mean, running_var, weight, bias
    if training is not True or not _is_taken(input, own, (momentum, eps)) or _share_memory(own):
        return NotImplemented
    y, *moved = batch_norm_in_training(input, *own, momentum, eps)
    for running, new in zip(own, moved, strict=False):
        if running is not None:
            ltorch.copy_(running, new)
    return y


def _is_taken(x: TensorProxy, own: Sequence[TensorProxy | None], numbers: Sequence[Any]) -> bool:
    """True for floats, with statistics and parameters [C] that are not wider, and plain numbers."""
    given = [one for one in own if one is not None]
    if refuses_floats("a batch norm", x, *given) or x.ndim < 2 or prod(x._shape) == x._shape[1]:
        return False
    widest = compute_type(x).bytes
    fits = all(one._shape == x._shape[1:2] and one.dtype.bytes <= widest for one in given)
    return fits and all(type(one) in (int, float) for one in numbers)


def _share_memory(own: Sequence[TensorProxy | None]) -> bool:
    """True if tensors of the norm are one, or if any arguments of the call share memory.

    Thunder takes such arguments for one tensor, wherever a trace has a copy_ of its own.
    """
    names = [one.name for one in own if one is not None]
    shared = thunder._cache_info_ctx.get({}).get("alias_tensor_indices", "")
    return len(set(names)) < len(names) or bool(shared)


BATCH_NORMS: Table = {
    "torch.batch_norm": Rewrite(batch_norm),
    _NAME: Composite(lambda *args: None, _forward, _with_gradient),
}
