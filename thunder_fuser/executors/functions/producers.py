# SPDX-License-Identifier: Apache-2.0
"""A tensor -> the primitive that made it, in the trace that Thunder is recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, get_tracectx

from thunder_fuser.trace.proxies import COPIES, makes, parts


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
