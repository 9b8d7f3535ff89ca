# SPDX-License-Identifier: Apache-2.0
"""What made a tensor of the program that Thunder is tracing.

    mask = le(expand(iota(5)), ...)    producer(mask) is the bound symbol of prims.le
                                       region_of(mask) has those of iota, broadcast_in_dim, le
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, get_tracectx

from thunder_fuser.executors.regions import Region
from thunder_fuser.trace.proxies import COPIES, makes, parts


@dataclass(slots=True)
class _Index:
    """The primitives in the first `read` bound symbols of a trace, which grows meanwhile."""

    read: int = 0
    leaves: list[BoundSymbol] = field(default_factory=list)
    producers: dict[str, BoundSymbol] = field(default_factory=dict)
    has_writes: bool = False

    def extend(self, recorded: list[BoundSymbol]) -> None:
        for leaf in (leaf for bsym in recorded[self.read :] for leaf in parts(bsym)):
            self.leaves.append(leaf)
            self.producers.update({out.name: leaf for out in makes(leaf)})
            self.has_writes |= leaf.sym.id in COPIES
        self.read = len(recorded)


_INDICES: WeakKeyDictionary[TraceCtx, _Index] = WeakKeyDictionary()


def _index() -> _Index | None:
    """The index of the trace. None inside of another symbol, and after the program has written in
    place: a tensor may then hold other values than its primitive made."""
    trace = get_tracectx()
    if len(trace.scopes) > 1:
        return None
    index = _INDICES.setdefault(trace, _Index())
    index.extend(trace.scopes[0])
    return None if index.has_writes else index


def producer(tensor: TensorProxy) -> BoundSymbol | None:
    """The primitive that made a tensor; None for an input, and where there is no index."""
    index = _index()
    return None if index is None else index.producers.get(tensor.name)


def region_of(tensor: TensorProxy) -> Region | None:
    """All primitives that a tensor depends on; None for an input, and where there is no index."""
    index = _index()
    if index is None or tensor.name not in index.producers:
        return None
    return Region(tuple(index.leaves), (), (), is_backward=False).narrowed([tensor.name])
