# SPDX-License-Identifier: Apache-2.0
"""Memory that lasts from call to call, by all that its use depends on.

Two things live here: exchanges, which are expensive to map and must be found by all ranks of a
group or by none, and plain buffers of a program (`persistent`). Never what a caller gets.

A key holds no address and no pointer of a stream, which differ between ranks. Each group has a
bound of its own, and its least recently used entries go when a new one is made: all ranks of a
group make the same calls of the group, so they agree on what goes and when.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import torch

MOST_BYTES = 4 << 30  # of a group
_PARITIES = (0, 1)


@dataclass(frozen=True, slots=True)
class BufferKey:
    """What may share memory. Equal on all ranks that take part.

    program: the hash of a host program; "" for memory that all programs share. stream: the number
    of the caller's stream in the order of first use. group: a process group's name; "" for memory
    of this rank alone. parity: which of two buffers that take turns.
    """

    program: str
    statement: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str
    stream: int = 0
    group: str = ""
    parity: int = 0


class Buffer(Protocol):
    """What the cache holds."""

    @property
    def bytes(self) -> int: ...

    def close(self) -> None: ...


B = TypeVar("B", bound=Buffer)


@dataclass
class Plain:
    """A tensor on one device."""

    tensor: torch.Tensor

    @property
    def bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    def close(self) -> None:
        pass  # torch's allocator keeps the order of its stream


@dataclass
class BufferCache:
    """Entries of several groups, the least recently used first."""

    most_bytes: int = MOST_BYTES
    counts: Counter[str] = field(default_factory=Counter)
    _groups: dict[str, OrderedDict[BufferKey, Buffer]] = field(default_factory=dict)
    _turns: dict[BufferKey, int] = field(default_factory=dict)

    def next(self, key: BufferKey, make: Callable[[], B], before_eviction: Callable[[], None]) -> B:
        """The entry of the other parity than that of the last call with this key.

        before_eviction: runs once before entries are freed, on all ranks of the group.
        """
        first = replace(key, parity=0)
        parity = self._turns.get(first, 1) ^ 1
        self._turns[first] = parity
        return self.get(replace(key, parity=parity), make, before_eviction)

    def get(self, key: BufferKey, make: Callable[[], B], before_eviction: Callable[[], None]) -> B:
        """The entry of a key. A new one may evict others of its group, but never itself."""
        entries = self._groups.setdefault(key.group, OrderedDict())
        found = entries.get(key)
        self.counts["miss" if found is None else "hit"] += 1
        if found is None:
            found = entries[key] = make()
            self._evict(key, before_eviction)
        entries.move_to_end(key)
        return found  # type: ignore[return-value]

    def _evict(self, made: BufferKey, before: Callable[[], None]) -> None:
        """Both parities of a key go together, so that the two take turns from the start again."""
        entries = self._groups[made.group]
        keep = replace(made, parity=0)
        newest_first = dict.fromkeys(replace(key, parity=0) for key in reversed(entries))
        excess = sum(one.bytes for one in entries.values()) - self.most_bytes
        gone: list[Buffer] = []
        for key in reversed(newest_first):
            if excess <= 0 or key == keep:
                continue
            pair = self._taken(key)
            excess -= sum(one.bytes for one in pair)
            gone += pair
        self._close(gone, before)

    def _taken(self, key: BufferKey) -> list[Buffer]:
        self._turns.pop(key, None)
        entries = self._groups[key.group]
        both = (entries.pop(replace(key, parity=parity), None) for parity in _PARITIES)
        return [one for one in both if one is not None]

    def _close(self, gone: list[Buffer], before: Callable[[], None]) -> None:
        if gone:
            before()
        for one in gone:
            self.counts["evicted"] += 1
            one.close()

    def release(self, group: str, before: Callable[[], None], statement: str = "") -> None:
        """Frees a group's entries, or those of one statement. All ranks call it at one point."""
        entries = self._groups.get(group, OrderedDict())
        chosen = {replace(key, parity=0) for key in entries if statement in ("", key.statement)}
        self._close([one for key in chosen for one in self._taken(key)], before)

    def entries(self) -> dict[BufferKey, Buffer]:
        """All of them."""
        return {key: one for group in self._groups.values() for key, one in group.items()}

    def __str__(self) -> str:
        held = self.entries().values()
        counts = ", ".join(f"{self.counts[name]} {name}" for name in ("hit", "miss", "evicted"))
        return f"{len(held)} of {sum(one.bytes for one in held)} bytes; {counts}"


CACHE = BufferCache()
_STREAMS: dict[int, int] = {}


def stream_number(device: torch.device) -> int:
    """The current stream: 0, 1, ... in the order in which this process first asked for it."""
    if device.type != "cuda":
        return 0
    return _STREAMS.setdefault(torch.cuda.current_stream(device).cuda_stream, len(_STREAMS))


def persistent(
    key: BufferKey, *, escapes: bool, zeroed: bool, cache: BufferCache = CACHE
) -> torch.Tensor:
    """A tensor of the key's sizes, strides, dtype and device; the same memory at the next call.

    escapes: a caller gets it, so it is new memory each time. zeroed: it is filled with zeros, at
    each call; else its content is that of the last call, or anything.
    """

    def make() -> Plain:
        return Plain(
            torch.empty_strided(key.sizes, key.strides, dtype=key.dtype, device=key.device)
        )

    tensor = make().tensor if escapes else cache.get(key, make, lambda: None).tensor
    return tensor.zero_() if zeroed else tensor
