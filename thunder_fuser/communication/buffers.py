# SPDX-License-Identifier: Apache-2.0
"""A cache of memory that is used again in later calls.

It holds exchanges, which are expensive to map, and with the option `persistent_buffers` the
buffers of programs (host/persistent.py). It never holds what a caller gets.

All ranks of a group must agree on hits and evictions, because to map an exchange is a collective.
So a key holds no address and no stream pointer, which differ between ranks. And each group has its
own size limit and LRU order, because only calls of a group are the same on all its ranks.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import Protocol, TypeVar

import torch

from thunder_fuser.threads import make_lock

MOST_BYTES = 4 << 30  # for each group
_PARITIES = (0, 1)


@dataclass(frozen=True, slots=True)
class BufferKey:
    """Calls with equal keys use the same memory. A key is equal on all ranks of its group.

    program: the number of a host program; "" for memory that all programs share. stream: the number
    of the caller's stream in the order of first use. group: a process group's name; "" for memory
    that only this rank uses. parity: 0 or 1; calls take the two buffers in turn. thread: only for
    memory that only this rank uses, since two threads may run one program on one stream.
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
    thread: int = 0

    def pair(self) -> tuple[BufferKey, BufferKey]:
        """The keys of both parities."""
        return replace(self, parity=0), replace(self, parity=1)


class Buffer(Protocol):
    """An entry of the cache."""

    @property
    def bytes(self) -> int: ...

    def close(self) -> None: ...


B = TypeVar("B", bound=Buffer)


@dataclass
class Plain:
    """A buffer that is one tensor of this rank."""

    tensor: torch.Tensor

    @property
    def bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    def close(self) -> None:
        pass  # torch's allocator reuses memory in stream order


@dataclass
class BufferCache:
    """The entries of each group, the least recently used first. most_bytes: for each group."""

    most_bytes: int = MOST_BYTES
    counts: Counter[str] = field(default_factory=Counter)
    _groups: dict[str, OrderedDict[BufferKey, Buffer]] = field(default_factory=dict)
    _turns: dict[BufferKey, int] = field(default_factory=dict)

    def next(
        self, keys: tuple[BufferKey, BufferKey], make: Callable[[], B],
        before_eviction: Callable[[], None],
    ) -> B:  # fmt: skip
        """The entry of one parity; the next call with this pair of keys takes the other one.

        before_eviction: runs once before entries are freed, on all ranks of the group.
        """
        parity = self._turns.get(keys[0], 1) ^ 1
        self._turns[keys[0]] = parity
        return self.get(keys[parity], make, before_eviction)

    def get(self, key: BufferKey, make: Callable[[], B], before_eviction: Callable[[], None]) -> B:
        """The entry of a key, made on a miss. It may evict others of its group, never itself."""
        entries = self._groups.setdefault(key.group, OrderedDict())
        found = entries.get(key)
        self.counts["miss" if found is None else "hit"] += 1
        if found is None:
            found = entries[key] = make()
            self._evict(key, before_eviction)
        entries.move_to_end(key)
        return found  # type: ignore[return-value]

    def _evict(self, made: BufferKey, before: Callable[[], None]) -> None:
        """Evicts entries beyond the limit. Both parities of a key go together, so that all ranks
        begin again with parity 0."""
        entries = self._groups[made.group]
        keep = replace(made, parity=0)
        newest_first = dict.fromkeys(replace(key, parity=0) for key in reversed(entries))
        excess = sum(one.bytes for one in entries.values()) - self.most_bytes
        gone: list[Buffer] = []
        for key in reversed(newest_first):
            if excess <= 0 or key == keep:
                continue
            pair = self._pop_pair(key)
            excess -= sum(one.bytes for one in pair)
            gone += pair
        self._close(gone, before)

    def _pop_pair(self, key: BufferKey) -> list[Buffer]:
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

    def release(
        self, group: str, before: Callable[[], None], statement: str = "", program: str = ""
    ) -> None:
        """Frees a group's entries, or only those of a statement or a program. All ranks call it at
        the same point of their programs. before: as `before_eviction`."""
        chosen = {
            replace(key, parity=0) for key in self._groups.get(group, ())
            if statement in ("", key.statement) and program in ("", key.program)
        }
        self._close([one for key in chosen for one in self._pop_pair(key)], before)

    def entries(self) -> dict[BufferKey, Buffer]:
        """The entries of all groups."""
        return {key: one for group in self._groups.values() for key, one in group.items()}

    def __str__(self) -> str:
        held = self.entries().values()
        counts = ", ".join(f"{self.counts[name]} {name}" for name in ("hit", "miss", "evicted"))
        return f"{len(held)} of {sum(one.bytes for one in held)} bytes; {counts}"


CACHE = BufferCache()  # the exchanges
LOCAL = BufferCache()  # the buffers of programs
_LOCK = make_lock()  # guards LOCAL
_ENDED_PROGRAMS: deque[str] = deque()
_STREAMS: dict[int, int] = {}


def stream_number(device: torch.device) -> int:
    """The current stream's number: 0, 1, ... in the order in which this process first used it."""
    if device.type != "cuda":
        return 0
    index = torch.cuda.current_device() if device.index is None else device.index
    return _STREAMS.setdefault(torch._C._cuda_getCurrentRawStream(index), len(_STREAMS))


def persistent(  # noqa: PLR0917  the fields of a key
    program: str, statement: str, sizes: tuple[int, ...], strides: tuple[int, ...],
    dtype: torch.dtype, device: torch.device,
) -> torch.Tensor:  # fmt: skip
    """Memory for a value of a program, which gets the same at its next call on this stream and
    thread. Its content is undefined.

    While a CUDA graph is captured the memory is new, because the graph keeps using it.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    key = BufferKey(
        program, statement, sizes, strides, dtype, str(device), stream_number(device),
        thread=get_ident(),
    )  # fmt: skip

    def make() -> Plain:
        return Plain(torch.empty_strided(sizes, strides, dtype=dtype, device=device))

    with _LOCK:
        return _cleaned().get(key, make, lambda: None).tensor


def forget(program: str) -> None:
    """Notes that a program has ended. The garbage collector may call it at any point, so the
    memory is freed later."""
    _ENDED_PROGRAMS.append(program)


def held_by_programs() -> BufferCache:
    """The buffers of all programs that still exist."""
    with _LOCK:
        return _cleaned()


def _cleaned() -> BufferCache:
    while _ENDED_PROGRAMS:
        LOCAL.release("", lambda: None, program=_ENDED_PROGRAMS.popleft())
    return LOCAL
