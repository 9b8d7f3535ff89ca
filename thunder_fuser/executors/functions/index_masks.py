# SPDX-License-Identifier: Apache-2.0
"""Attention masks computed from indices alone, as model libraries make them.

    mask = arange(S)[None, :] <= arange(L)[:, None]         is_causal
    mask = (arange(L)[:, None] >= 0).expand(L, S)           no mask
->  scaled_dot_product_attention(q, k, v, is_causal=True)   ->  torch's fastest kernels, and no mask
                                                                in memory

An integer tensor is known if it is affine in its indices. A mask is known if it is True where such
a tensor is not negative:

    arange(S)[None, :]      0 + 0 * i + 1 * j
    mask above              0 + 1 * i - 1 * j >= 0
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, get_tracectx

from thunder_fuser.trace.proxies import COPIES, makes, parts

ALL, CAUSAL = "all", "causal"


@dataclass(frozen=True, slots=True)
class Affine:
    """offset + sum(step * index) over the axes of a tensor."""

    offset: int
    steps: tuple[int, ...]

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        steps = (one + factor * two for one, two in zip(self.steps, other.steps, strict=True))
        return Affine(self.offset + factor * other.offset, tuple(steps))

    def at_least(self, shape: tuple[int, ...]) -> int:
        """The smallest element of a tensor of this shape."""
        reach = (step * (size - 1) for step, size in zip(self.steps, shape, strict=True))
        return self.offset + sum(min(0, one) for one in reach)


def kind_of(mask: TensorProxy) -> str | None:
    """ALL for a mask that is True everywhere, CAUSAL for the mask of is_causal, None for others.

    mask: bool, [L, S] or [B, H, L, S], or 1 in place of any of these, with elements.
    """
    if not dtypes.is_boolean_dtype(mask.dtype) or not all(map(_is_plain, mask._shape)):
        return None
    found = _value(mask)
    if found is None:
        return None
    if found.at_least(tuple(mask._shape)) >= 0:
        return ALL
    *others, row, key = found.steps
    is_causal = row > 0 and row == -key and 0 <= found.offset < row and not any(others)
    return CAUSAL if is_causal else None


def _is_plain(size: Any) -> bool:
    return type(size) is int and size > 0


def _value(tensor: Any, shape: tuple[int, ...] = ()) -> Affine | None:
    """For an integer tensor, or a number beside one of this shape: its elements. For a bool tensor:
    an affine that is not negative where the tensor is True."""
    if type(tensor) in (int, bool):
        return Affine(tensor, (0,) * len(shape))
    made = producer(tensor) if type(tensor) is TensorProxy else None
    rule = None if made is None else _RULES.get(made.sym.id)
    return None if made is None or rule is None else rule(made)


def _iota(bsym: BoundSymbol) -> Affine | None:
    start, step = bsym.kwargs["start"], bsym.kwargs["step"]
    return Affine(start, (step,)) if type(start) is type(step) is int else None


def _broadcast(bsym: BoundSymbol) -> Affine | None:
    tensor, shape, axes = bsym.args
    if (inner := _value(tensor)) is None:
        return None
    steps = [0] * len(shape)
    for axis, step, size in zip(axes, inner.steps, tensor._shape, strict=True):
        steps[axis] = step if size == shape[axis] else 0
    return Affine(inner.offset, tuple(steps))


def _slice(bsym: BoundSymbol) -> Affine | None:
    tensor, starts, _, *rest = bsym.args
    strides = (rest and rest[0]) or [1] * len(starts)
    if (inner := _value(tensor)) is None:
        return None
    offset = sum(map(operator.mul, inner.steps, starts))
    return Affine(inner.offset + offset, tuple(map(operator.mul, inner.steps, strides)))


def _transpose(bsym: BoundSymbol) -> Affine | None:
    tensor, order = bsym.args
    inner = _value(tensor)
    return None if inner is None else Affine(inner.offset, tuple(inner.steps[at] for at in order))


def _squeeze(bsym: BoundSymbol) -> Affine | None:
    tensor, axes = bsym.args
    if (inner := _value(tensor)) is None:
        return None
    return Affine(inner.offset, tuple(s for at, s in enumerate(inner.steps) if at not in axes))


def _same(bsym: BoundSymbol) -> Affine | None:
    return _value(bsym.args[0])


def _cast(bsym: BoundSymbol) -> Affine | None:
    """The same for a cast between int64 and int32, which hold any index; others may wrap."""
    kinds = {bsym.args[0].dtype, bsym.output.dtype}
    return _same(bsym) if kinds <= {dtypes.int64, dtypes.int32} else None


def _pair(bsym: BoundSymbol) -> tuple[Affine, Affine] | None:
    shape = tuple(bsym.output._shape)
    one, two = (_value(arg, shape) for arg in bsym.args[:2])
    return None if one is None or two is None else (one, two)


def _sum(factor: int) -> Callable[[BoundSymbol], Affine | None]:
    def rule(bsym: BoundSymbol) -> Affine | None:
        pair = _pair(bsym)
        return pair and pair[0].plus(pair[1], factor)

    return rule


def _compared(greater: int, strictly: int) -> Callable[[BoundSymbol], Affine | None]:
    """The rule for a comparison: argument `greater` >= the other, or > if `strictly` is 1."""

    def rule(bsym: BoundSymbol) -> Affine | None:
        if any(isinstance(one, TensorProxy) and not _are_integers(one) for one in bsym.args):
            return None
        if (pair := _pair(bsym)) is None:
            return None
        more = pair[greater].plus(pair[1 - greater], -1)
        return Affine(more.offset - strictly, more.steps)

    return rule


def _are_integers(tensor: TensorProxy) -> bool:
    return dtypes.is_integer_dtype(tensor.dtype) and not dtypes.is_boolean_dtype(tensor.dtype)


def _and(bsym: BoundSymbol) -> Affine | None:
    """If one of two masks is True everywhere: the other mask."""
    if not dtypes.is_boolean_dtype(bsym.output.dtype) or (pair := _pair(bsym)) is None:
        return None
    shape = tuple(bsym.output._shape)
    full = [at for at, one in enumerate(pair) if one.at_least(shape) >= 0]
    return pair[1 - full[0]] if full else None


_RULES: dict[Any, Callable[[BoundSymbol], Affine | None]] = {
    PrimIDs.IOTA: _iota, PrimIDs.BROADCAST_IN_DIM: _broadcast, PrimIDs.SLICE: _slice,
    PrimIDs.TRANSPOSE: _transpose, PrimIDs.SQUEEZE: _squeeze, PrimIDs.SHALLOW_COPY: _same,
    PrimIDs.CONVERT_ELEMENT_TYPE: _cast, PrimIDs.ADD: _sum(1), PrimIDs.SUB: _sum(-1),
    PrimIDs.GE: _compared(0, 0), PrimIDs.GT: _compared(0, 1),
    PrimIDs.LE: _compared(1, 0), PrimIDs.LT: _compared(1, 1), PrimIDs.BITWISE_AND: _and,
}  # fmt: skip


# --------------------------------------- the producers in the trace that Thunder is recording

@dataclass(slots=True)
class _Index:
    """The producers in the first `read` bound symbols of a trace, which grows meanwhile."""

    read: int = 0
    producers: dict[str, BoundSymbol] = field(default_factory=dict)
    has_writes: bool = False

    def extend(self, recorded: list[BoundSymbol]) -> None:
        for leaf in (leaf for bsym in recorded[self.read :] for leaf in parts(bsym)):
            self.producers.update({out.name: leaf for out in makes(leaf)})
            self.has_writes |= leaf.sym.id in COPIES
        self.read = len(recorded)


_INDICES: WeakKeyDictionary[TraceCtx, _Index] = WeakKeyDictionary()


def producer(tensor: TensorProxy) -> BoundSymbol | None:
    """The primitive that made a tensor.

        mask = le(expand(iota(5)), ...)    producer(mask) is the bound symbol of prims.le

    None for an input, inside of another symbol, and after the program has written in place: the
    tensor may then hold other values than the primitive made.
    """
    trace = get_tracectx()
    if len(trace.scopes) > 1:
        return None
    index = _INDICES.setdefault(trace, _Index())
    index.extend(trace.scopes[0])
    return None if index.has_writes else index.producers.get(tensor.name)
