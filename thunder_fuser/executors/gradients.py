# SPDX-License-Identifier: Apache-2.0
"""Gradients that Thunder does not have, or has wrong.

    y = flip(x, dims)      ->  dx = flip(dy, dims)
    y = minimum(x, z)      ->  dx = dy where x < z, dy / 2 where x = z
    y = prod(x, dims)      ->  dx = dy * y / x; of a row with one zero, dy times the others there
                               (Thunder: NaN)

What moves in steps (round, trunc, isfinite, the place of an extreme) has no gradient: Thunder is
told so, and its result does not ask for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import sum_to


def _give(operand: Any, gradient: Callable[[], Any]) -> None:
    """To a tensor, not to a number. One of no dimension was broadcast without an op of its own."""
    if isinstance(operand, TensorProxy):
        found = gradient()
        put_grad(operand, ltorch.sum(found) if found.ndim > operand.ndim else found)


def _flip(x: Any, dims: Sequence[int]) -> Any:
    y = prims.flip(x, dims)
    put_grad(x, prims.flip(get_grad(y), dims))
    return y


def _minimum(x: Any, z: Any) -> Any:
    """NaN on either side is passed to both, as in Thunder's gradient of maximum."""
    y = prims.minimum(x, z)
    g = get_grad(y)
    shared = ltorch.where(ltorch.eq(x, z), ltorch.mul(g, 0.5), g)
    _give(x, lambda: ltorch.where(ltorch.gt(x, z), 0.0, shared))
    _give(z, lambda: ltorch.where(ltorch.gt(z, x), 0.0, shared))
    return y


def _remainder(x: Any, z: Any) -> Any:
    """x - floor(x / z) z."""
    y = prims.remainder(x, z)
    g = get_grad(y)
    _give(x, lambda: g)
    _give(z, lambda: ltorch.neg(ltorch.mul(g, ltorch.floor(ltorch.true_divide(x, z)))))
    return y


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    """start + weight (end - start)."""
    y = prims.lerp(start, end, weight)
    g = get_grad(y)
    _give(start, lambda: ltorch.mul(g, ltorch.sub(1.0, weight)))
    _give(end, lambda: ltorch.mul(g, weight))
    _give(weight, lambda: ltorch.mul(g, ltorch.sub(end, start)))
    return y


def _index_add(x: Any, index: Any, value: Any, dim: int) -> Any:
    y = prims.index_add(x, index, value, dim)
    g = get_grad(y)
    put_grad(x, g)
    put_grad(value, ltorch.index_select(g, dim, index))
    return y


def index_put_gradient(
    x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Any:
    """Thunder's rule gives the values' gradient to an index."""
    y = ltorch.index_put(x, indices, values, accumulate)
    g = get_grad(y)
    kept = g if accumulate else ltorch.index_put(g, indices, ltorch.zeros_like(values))
    put_grad(x, kept)
    put_grad(values, sum_to(g[tuple(indices)], values.shape))
    return y


def _prod(x: Any, dims: Sequence[int]) -> Any:
    y = prims.prod(x, dims)
    zero = ltorch.eq(x, 0)
    zeros = ltorch.sum(ltorch.to(zero, x.dtype), tuple(dims), keepdim=True)
    x_or_1 = ltorch.where(zero, 1, x)
    others = ltorch.prod(x_or_1, tuple(dims), keepdim=True)
    # The product without an element: 0 if another is 0.
    alone = ltorch.eq(zeros, ltorch.to(zero, x.dtype))
    rest = ltorch.where(alone, ltorch.true_divide(others, x_or_1), 0)
    g = get_grad(y)
    put_grad(x, ltorch.mul(ltorch.reshape(g, others.shape), rest))
    return y


GRADIENTS: dict[PrimIDs, Callable[..., Any]] = {
    PrimIDs.ARGMIN: prims.argmin,
    PrimIDs.FLIP: _flip,
    PrimIDs.INDEX_ADD: _index_add,
    PrimIDs.ISFINITE: prims.isfinite,
    PrimIDs.LERP: _lerp,
    PrimIDs.MINIMUM: _minimum,
    PrimIDs.PROD: _prod,
    PrimIDs.REMAINDER: _remainder,
    PrimIDs.ROUND: prims.round,
    PrimIDs.TRUNC: prims.trunc,
}
