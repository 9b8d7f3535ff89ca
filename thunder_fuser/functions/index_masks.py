# SPDX-License-Identifier: Apache-2.0
"""Attention masks computed from indices alone, as model libraries make them.

    mask = arange(S)[None, :] <= arange(L)[:, None]         is_causal
    mask = (arange(L)[:, None] >= 0).expand(L, S)           no mask
->  scaled_dot_product_attention(q, k, v, is_causal=True)   ->  torch's fastest kernels, and no mask
                                                                in memory

If a mask depends on constants alone, torch computes it once, while Thunder traces. What made it is
found in the trace so far: producer(mask) is the bound symbol of prims.le, and region_of(mask) has
those of iota, broadcast_in_dim and le.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, get_tracectx
from torch.utils._python_dispatch import _disable_current_modes

from thunder_fuser.executors.record.torch_function import torch_function
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.support.check import support
from thunder_fuser.executors.support.random import RANDOM
from thunder_fuser.trace.dataflow import Memory
from thunder_fuser.trace.proxies import bytes_of, makes, parts, shared_by, written_by

ALL, CAUSAL = "all", "causal"
# The bytes of the largest tensor on the way to a mask: L = 32768, for comparisons of indices. Some
# three such tensors are in memory at once, as in eager torch. The time need not be bounded: torch's
# attention takes longer on a mask than torch took to make it.
_MOST_BYTES = 2**30

_KNOWN: WeakKeyDictionary[TraceCtx, dict[str, str | None]] = WeakKeyDictionary()


def kind_of(mask: TensorProxy) -> str | None:
    """ALL for a mask that is True everywhere, CAUSAL for the mask of is_causal, None for others.

    All layers of a model ask about one mask, which is computed for the first of them.
    """
    if producer(mask) is None or not dtypes.is_boolean_dtype(mask.dtype):
        return None
    known = _KNOWN.setdefault(get_tracectx(), {})
    if mask.name not in known:
        # The program may run on fake tensors, or count calls of torch.
        with _disable_current_modes():
            values = _computed(mask)
            known[mask.name] = None if values is None else _kind(values)
    return known[mask.name]


def _computed(mask: TensorProxy) -> torch.Tensor | None:
    """The mask; None if it depends on more than constants, or needs too much memory."""
    region = region_of(mask)
    if region is None or region.inputs:
        return None
    for leaf in region.leaves:
        # The fuser's primitives make the same of the same operands, but for random numbers.
        if support(leaf) is not None or leaf.sym.id in RANDOM:
            return None
        is_view = leaf.sym.id is PrimIDs.BROADCAST_IN_DIM
        if not is_view and sum(map(bytes_of, makes(leaf))) > _MOST_BYTES:
            return None
    (values,) = torch_function(region, "mask")()
    return values  # type: ignore[no-any-return]


def _kind(mask: torch.Tensor) -> str | None:
    if not mask.numel():
        return None
    if mask.all():
        return ALL
    if mask.ndim < 2:
        return None
    causal = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril_()
    return CAUSAL if torch.equal(mask, causal.expand_as(mask)) else None


# ---- what made a tensor of the program that Thunder is tracing


@dataclass(slots=True)
class _Primitives:
    """The primitives in the first `read` bound symbols of a trace, which grows meanwhile."""

    read: int = 0
    leaves: list[BoundSymbol] = field(default_factory=list)
    producers: dict[str, BoundSymbol] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    written: set[str] = field(default_factory=set)

    def extend(self, recorded: list[BoundSymbol]) -> None:
        for leaf in (leaf for bsym in recorded[self.read :] for leaf in parts(bsym)):
            self.leaves.append(leaf)
            self.producers.update({out.name: leaf for out in makes(leaf)})
            writes = [*written_by(leaf)]
            self.written.update(name for group in writes for name in group)
            self.memory.join((*writes, *shared_by(leaf)))
        self.read = len(recorded)

    def keeps(self, name: str) -> bool:
        """True if the tensor is made here, and its memory has not been written since."""
        place = self.memory.of(name)
        is_written = any(self.memory.of(other) == place for other in self.written)
        return name in self.producers and not is_written


_INDICES: WeakKeyDictionary[TraceCtx, _Primitives] = WeakKeyDictionary()


def _index() -> _Primitives | None:
    """The index of the trace; None inside of another symbol."""
    trace = get_tracectx()
    if len(trace.scopes) > 1:
        return None
    index = _INDICES.setdefault(trace, _Primitives())
    index.extend(trace.scopes[0])
    return index


def producer(tensor: TensorProxy) -> BoundSymbol | None:
    """The primitive that made a tensor. None for an input, for a tensor that was written in place
    since then, and inside of another symbol."""
    index = _index()
    return index.producers[tensor.name] if index and index.keeps(tensor.name) else None


def region_of(tensor: TensorProxy) -> Region | None:
    """All primitives that a tensor depends on; None where one of these has no `producer`."""
    index = _index()
    if index is None or tensor.name not in index.producers:
        return None
    region = Region(tuple(index.leaves), (), (), is_backward=False).narrowed([tensor.name])
    results = (out.name for leaf in region.leaves for out in makes(leaf))
    return region if all(map(index.keeps, results)) else None
