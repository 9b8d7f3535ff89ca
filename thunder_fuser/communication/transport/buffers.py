# SPDX-License-Identifier: Apache-2.0
"""A cache of exchanges: memory shared with other ranks, which is expensive to map.

All ranks of a group must agree on hits and evictions, because to map an exchange is a collective.
So a key holds no address and no stream pointer, which differ between ranks. And each group has its
own size limit and LRU order, because only calls of a group are the same on all its ranks.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

MOST_BYTES = 4 << 30  # for each group


@dataclass(frozen=True, slots=True)
class BufferKey:
    """Calls with equal keys use the same memory. A key is equal on all ranks of its group.

    stream: the number of the caller's stream in the order of first use. group: a process group's
    name.
    """

    statement: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str
    stream: int = 0
    group: str = ""


class Buffer(Protocol):
    """An entry of the cache."""

    @property
    def bytes(self) -> int: ...

    def close(self) -> None: ...


B = TypeVar("B", bound=Buffer)


@dataclass
class BufferCache:
    """The buffers of each group, by key, the least recently used first. most_bytes: for each group.

    A key has one buffer or several, of which calls take the least recently used.
    """

    most_bytes: int = MOST_BYTES
    counts: Counter[str] = field(default_factory=Counter)
    _groups: dict[str, OrderedDict[BufferKey, list[Buffer]]] = field(default_factory=dict)

    def get(
        self, key: BufferKey, make: Callable[[], B], before_eviction: Callable[[], None],
        count: int = 1,
    ) -> B:  # fmt: skip
        """The next of the key's `count` buffers, made on a miss. A new one may evict those of other
        keys of its group. before_eviction: runs once before they are freed, on all ranks."""
        entries = self._groups.setdefault(key.group, OrderedDict())
        buffers = entries.setdefault(key, [])
        is_hit = len(buffers) == count
        self.counts["hit" if is_hit else "miss"] += 1
        buffer = buffers.pop(0) if is_hit else make()
        buffers.append(buffer)
        entries.move_to_end(key)
        if not is_hit:
            self._evict(key, before_eviction)
        return buffer  # type: ignore[return-value]

    def _evict(self, keep: BufferKey, before: Callable[[], None]) -> None:
        """Evicts keys beyond the limit, each with all its buffers. So they begin anew on all ranks,
        which take buffers in the same order."""
        entries = self._groups[keep.group]
        excess = sum(b.bytes for buffers in entries.values() for b in buffers) - self.most_bytes
        gone: list[BufferKey] = []
        for key, buffers in entries.items():
            if excess > 0 and key != keep:
                excess -= sum(buffer.bytes for buffer in buffers)
                gone.append(key)
        self._close(keep.group, gone, before)

    def _close(self, group: str, keys: Sequence[BufferKey], before: Callable[[], None]) -> None:
        if keys:
            before()
        for buffer in [buffer for key in keys for buffer in self._groups[group].pop(key)]:
            self.counts["evicted"] += 1
            buffer.close()

    def release(self, group: str, before: Callable[[], None]) -> None:
        """Frees a group's entries. All ranks call it at the same point of their programs. before:
        as `before_eviction`."""
        self._close(group, [*self._groups.get(group, ())], before)

    def entries(self) -> list[tuple[BufferKey, Buffer]]:
        """Each buffer of all groups, with its key."""
        return [
            (key, buffer) for group in self._groups.values() for key, buffers in group.items()
            for buffer in buffers
        ]  # fmt: skip

    def __str__(self) -> str:
        held = [buffer for _, buffer in self.entries()]
        counts = ", ".join(f"{self.counts[name]} {name}" for name in ("hit", "miss", "evicted"))
        return f"{len(held)} of {sum(buffer.bytes for buffer in held)} bytes; {counts}"


CACHE = BufferCache()
_STREAMS: dict[int, int] = {}


def stream_number(device: torch.device) -> int:
    """The current stream's number: 0, 1, ... in the order in which this process first used it."""
    if device.type != "cuda":
        return 0
    index = torch.cuda.current_device() if device.index is None else device.index
    return _STREAMS.setdefault(torch._C._cuda_getCurrentRawStream(index), len(_STREAMS))
