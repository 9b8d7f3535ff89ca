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

from thunder_fuser.executors.regions.region import Region
from thunder_fuser.trace.dataflow import Memory
from thunder_fuser.trace.proxies import makes, parts, shared_by, written_by


@dataclass(slots=True)
class _Index:
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


_INDICES: WeakKeyDictionary[TraceCtx, _Index] = WeakKeyDictionary()


def _index() -> _Index | None:
    """The index of the trace; None inside of another symbol."""
    trace = get_tracectx()
    if len(trace.scopes) > 1:
        return None
    index = _INDICES.setdefault(trace, _Index())
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
    made = (out.name for leaf in region.leaves for out in makes(leaf))
    return region if all(map(index.keeps, made)) else None
