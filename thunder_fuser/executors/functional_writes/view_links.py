# SPDX-License-Identifier: Apache-2.0
"""A bound symbol of a program -> its results that are views, each with the step that makes it one.

    t2 = getitem(b, 1)      ->  t1: slice_prim of b; t2: squeeze of t1
    t3 = reshape(b, (-1,))  ->  t3: reshape of b, in doubt: a view or a copy, as strides decide
    t4 = detach(b)          ->  t4: detach of b, the call itself
    t5 = repeat(b, 1)       ->  nothing: torch copies, though Thunder's primitives are views

torch knows which of its functions return views. It is asked by calls on meta tensors, which have
strides and memory of their own but no elements. A result that shares memory for some strides only
is in doubt, unless the strides of the call are known: see layouts.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.functional_writes.layouts import EagerLayouts, Pairs, pairs_of
from thunder_fuser.executors.record.result_dtypes import as_meta
from thunder_fuser.executors.stride_orders.orders import channels_last
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.trace.proxies import MOVES, TORCH_VIEWS, makes, parts, reads


@dataclass(frozen=True, slots=True)
class Link:
    """How a tensor views another.

    parent: the name of the other. step: the primitive, or else the call, that makes the view; None
    if none does alone. is_sure: False if it may be a copy instead. by: the name of the user's
    operation.
    """

    parent: str
    step: BoundSymbol | None
    is_sure: bool
    by: str

    def is_like(self, other: Link) -> bool:
        """True if both are the same view of equal tensors."""
        steps = [(x.sym.id, x.args[1:], x.kwargs) for x in (self.step, other.step) if x is not None]
        return len(steps) == 2 and steps[0] == steps[1]

    def is_apart(self, other: Link) -> bool:
        """True if both are slices of equal tensors that have no element in common."""
        mine, theirs = self._ends(), other._ends()
        return any(a[0] >= b[1] or b[0] >= a[1] for a, b in zip(mine, theirs, strict=False))

    def _ends(self) -> list[tuple[int, int]]:
        """Where a slice starts and ends on each axis; nothing if that is unknown."""
        if self.step is None or self.step.sym.id is not PrimIDs.SLICE:
            return []
        ends = [*zip(self.step.args[1], self.step.args[2], strict=True)]
        return ends if all(type(end) is int for pair in ends for end in pair) else []


def links_of(bsym: BoundSymbol, layouts: EagerLayouts | None = None) -> dict[str, Link]:
    """{name: its link}, for results that are views of operands, and for values between the two."""
    steps = {
        part.output.name: part for part in parts(bsym)
        if part.sym.id in MOVES and isinstance(part.output, TensorProxy)
    }  # fmt: skip
    if isinstance(bsym.sym.id, PrimIDs):
        is_sure = bsym.sym.id not in (PrimIDs.RESHAPE, PrimIDs.STRIDE_ORDER)
        return {name: _link(bsym, step, is_sure) for name, step in steps.items()}
    links: dict[str, Link] = {}
    for name, operand, is_sure in _shared(bsym, steps, layouts):
        at = name
        while at != operand and at in steps:
            links[at] = _link(bsym, steps[at], is_sure)
            at = links[at].parent
        if at != operand:
            ends = [getattr(value, "name", "") for value in (*bsym.args[:1], bsym.output)]
            step = bsym if ends == [operand, name] else None
            links[name] = Link(operand, step, is_sure, bsym.sym.name)
    return links


def _link(bsym: BoundSymbol, step: BoundSymbol, is_sure: bool) -> Link:
    return Link(step.args[0].name, step, is_sure, bsym.sym.name)


def _shared(
    bsym: BoundSymbol, steps: dict[str, BoundSymbol], layouts: EagerLayouts | None
) -> Iterator[tuple[str, str, bool]]:
    """(a result, the operand whose memory it has, whether for all strides)"""
    results = {proxy.name for proxy in makes(bsym)}
    listed = bsym.sym.name in TORCH_VIEWS
    if not (listed or not bsym.subsymbols or results & steps.keys()):
        return
    contiguous = partial(as_meta, types={})
    answers = [pairs_of(bsym, layout) for layout in (contiguous, _transposed, _channels_last)]
    if answers[0] is None:  # torch cannot say
        first = next((proxy.name for proxy in reads(bsym) if isinstance(proxy, TensorProxy)), "")
        some = {(name, first) for name in results if listed or name in steps} if first else set()
        every: Pairs = set()
    else:
        known_pairs = [pairs for pairs in answers if pairs is not None]
        some, every = set.union(*known_pairs), set.intersection(*known_pairs)
    known = layouts.pairs(bsym) if layouts is not None and some != every else None
    some, every = (some, every) if known is None else (known, known)
    for name, operand in sorted(some):
        if name != operand:
            yield name, operand, (name, operand) in every


# --------------------------------------------------------------------------------- torch's answer


def _transposed(value: Any) -> Any:
    """The first axis lies innermost, with gaps."""
    tensor = as_meta(value, {})
    if not isinstance(value, TensorProxy):
        return tensor
    strides = contiguous_strides(tensor.shape, tuple(range(tensor.ndim)))
    return tensor.new_empty_strided(tensor.shape, [2 * stride for stride in strides])


def _channels_last(value: Any) -> Any:
    tensor = as_meta(value, {})
    return channels_last(tensor) if isinstance(value, TensorProxy) else tensor
