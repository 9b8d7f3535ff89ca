# SPDX-License-Identifier: Apache-2.0
"""Gradients that Thunder does not have, or has wrong.

    y = flip(x, dims)      ->  dx = flip(dy, dims)
    y = minimum(x, z)      ->  dx = dy where x < z, dy / 2 where x = z
    y = atan2(x, z)        ->  dx = dy * z / (x * x + z * z), and 0 where that is 0 / 0
    y = x ** z             ->  dx = dy * z * x ** (z - 1), and 0 for z = 0; dz = dy * y * log(x),
                               and 0 for x = 0 <= z
    y = relu(x)            ->  dx = dy, and 0 where y <= 0 (Thunder: also where y is NaN, and there
                               y is 0)
    y = real(x)            ->  dx = dy + 0i
    y = prod(x, dims)      ->  dx = dy * y / x; of a row with one zero, dy times the others there;
                               beside a zero 0, or NaN if another is infinite or NaN (Thunder: NaN)

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


def _real(x: Any) -> Any:
    y = prims.real(x)
    put_grad(x, ltorch.to(get_grad(y), x.dtype))
    return y


def _imag(x: Any) -> Any:
    y = prims.imag(x)
    put_grad(x, ltorch.mul(ltorch.to(get_grad(y), x.dtype), 1j))
    return y


def _remainder(x: Any, z: Any) -> Any:
    """x - floor(x / z) z."""
    y = prims.remainder(x, z)
    g = get_grad(y)
    _give(x, lambda: g)
    _give(z, lambda: ltorch.neg(ltorch.mul(g, ltorch.floor(ltorch.true_divide(x, z)))))
    return y


def _atan2(x: Any, z: Any) -> Any:
    y = prims.atan2(x, z)
    squares = ltorch.add(ltorch.mul(x, x), ltorch.mul(z, z))
    scale = ltorch.where(ltorch.eq(squares, 0.0), 0.0, ltorch.reciprocal(squares))
    g = get_grad(y)
    _give(x, lambda: ltorch.mul(g, ltorch.mul(z, scale)))
    _give(z, lambda: ltorch.mul(g, ltorch.mul(ltorch.neg(x), scale)))
    return y


def _pow(x: Any, z: Any) -> Any:
    y = prims.pow(x, z)
    g = get_grad(y)
    _give(x, lambda: _of_base(g, x, z))
    _give(z, lambda: _of_exponent(g, x, z, y))
    return y


def _of_base(g: Any, x: Any, z: Any) -> Any:
    if isinstance(z, TensorProxy):
        slope = ltorch.mul(z, ltorch.pow(x, ltorch.sub(z, 1.0)))
        return ltorch.where(ltorch.eq(z, 0.0), 0.0, ltorch.mul(g, slope))
    if z == 0:  # Thunder's backward must read its argument
        return ltorch.where(ltorch.isnan(g), ltorch.zeros_like(g), 0.0)
    if z == 1:
        return g
    below = x if z == 2 else ltorch.pow(x, z - 1)
    return ltorch.mul(g, ltorch.mul(below, z))


def _of_exponent(g: Any, x: Any, z: Any, y: Any) -> Any:
    x = x if isinstance(x, TensorProxy) else ltorch.full_like(z, x)
    flat = ltorch.logical_and(ltorch.eq(x, 0.0), ltorch.ge(z, 0.0))
    return ltorch.where(flat, 0.0, ltorch.mul(g, ltorch.mul(y, ltorch.log(x))))


def _relu(x: Any, inplace: bool = False) -> Any:
    y = ltorch.relu(x, inplace)
    put_grad(x, ltorch.where(ltorch.le(y, 0), 0.0, get_grad(y)))
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


def _prod(x: Any, dims: Sequence[int]) -> Any:
    y = prims.prod(x, dims)
    axes = tuple(dims)
    zero, wild = ltorch.eq(x, 0), ltorch.logical_not(ltorch.isfinite(x))
    x_or_1 = ltorch.where(zero, 1, x)
    others = ltorch.prod(x_or_1, axes, keepdim=True)
    beside_zero = ltorch.where(_is_only(wild, x, axes), ltorch.zeros_like(x), float("nan"))
    rest = ltorch.where(
        _is_only(zero, x, axes), ltorch.true_divide(others, x_or_1), beside_zero
    )
    put_grad(x, ltorch.mul(ltorch.reshape(get_grad(y), others.shape), rest))
    return y


def _is_only(marked: Any, like: Any, axes: tuple[int, ...]) -> Any:
    """Whether no other element of the row is marked."""
    marks = ltorch.to(marked, like.dtype)
    return ltorch.eq(ltorch.sum(marks, axes, keepdim=True), marks)


GRADIENTS: dict[PrimIDs | str, Callable[..., Any]] = {
    "torch.relu": _relu,
    PrimIDs.ARGMIN: prims.argmin,
    PrimIDs.ATAN2: _atan2,
    PrimIDs.FLIP: _flip,
    PrimIDs.IMAG: _imag,
    PrimIDs.INDEX_ADD: _index_add,
    PrimIDs.ISFINITE: prims.isfinite,
    PrimIDs.LERP: _lerp,
    PrimIDs.MINIMUM: _minimum,
    PrimIDs.POW: _pow,
    PrimIDs.PROD: _prod,
    PrimIDs.REAL: _real,
    PrimIDs.REMAINDER: _remainder,
    PrimIDs.ROUND: prims.round,
    PrimIDs.TRUNC: prims.trunc,
}
