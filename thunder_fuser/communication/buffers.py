# SPDX-License-Identifier: Apache-2.0
"""Memory that lasts from call to call, by all that its use depends on.

Two things live here: exchanges, which are expensive to map and must be found by all ranks of a
group or by none, and plain buffers of programs, with the option `persistent_buffers`
(host/persistent.py). Never what a caller gets.

A key holds no address and no pointer of a stream, which differ between ranks. Each group has a
bound of its own, and its least recently used entries go when a new one is made: all ranks of a
group make the same calls of the group, so they agree on what goes and when.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import Protocol, TypeVar

import torch

from thunder_fuser.threads import make_lock

MOST_BYTES = 4 << 30  # of a group
_PARITIES = (0, 1)


@dataclass(frozen=True, slots=True)
class BufferKey:
    """What may share memory. Equal on all ranks that take part.

    program: the hash of a host program; "" for memory that all programs share. stream: the number
    of the caller's stream in the order of first use. group: a process group's name; "" for memory
    of this rank alone. parity: which of two buffers that take turns. thread: of memory of this rank
    alone, since two threads may run one program on one stream.
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

    def next(
        self, keys: tuple[BufferKey, BufferKey], make: Callable[[], B],
        before_eviction: Callable[[], None],
    ) -> B:  # fmt: skip
        """The entry of the other parity than that of the last call with this pair of keys.

        before_eviction: runs once before entries are freed, on all ranks of the group.
        """
        parity = self._turns.get(keys[0], 1) ^ 1
        self._turns[keys[0]] = parity
        return self.get(keys[parity], make, before_eviction)

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

    def release(
        self, group: str, before: Callable[[], None], statement: str = "", program: str = ""
    ) -> None:
        """Frees a group's entries, or those of one statement or program. All ranks call it at one
        point."""
        chosen = {
            replace(key, parity=0) for key in self._groups.get(group, ())
            if statement in ("", key.statement) and program in ("", key.program)
        }
        self._close([one for key in chosen for one in self._taken(key)], before)

    def entries(self) -> dict[BufferKey, Buffer]:
        """All of them."""
        return {key: one for group in self._groups.values() for key, one in group.items()}

    def __str__(self) -> str:
        held = self.entries().values()
        counts = ", ".join(f"{self.counts[name]} {name}" for name in ("hit", "miss", "evicted"))
        return f"{len(held)} of {sum(one.bytes for one in held)} bytes; {counts}"


CACHE = BufferCache()  # of exchanges
LOCAL = BufferCache()  # of programs
_LOCK = make_lock()  # of LOCAL
_GONE: deque[str] = deque()
_STREAMS: dict[int, int] = {}


def stream_number(device: torch.device) -> int:
    """The current stream: 0, 1, ... in the order in which this process first asked for it."""
    if device.type != "cuda":
        return 0
    index = torch.cuda.current_device() if device.index is None else device.index
    return _STREAMS.setdefault(torch._C._cuda_getCurrentRawStream(index), len(_STREAMS))


def persistent(  # noqa: PLR0917  the fields of a key
    program: str, statement: str, sizes: tuple[int, ...], strides: tuple[int, ...],
    dtype: torch.dtype, device: torch.device,
) -> torch.Tensor:  # fmt: skip
    """Memory for a value of a program; the same at its next call on this stream and thread.

    Its content is that of the last call, or anything. The memory of a captured graph is new: the
    graph uses it for as long as it lives.
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
        return _cleaned().get(key, make, _nothing).tensor


def forget(program: str) -> None:
    """Notes that a program is gone. A collection may call it anywhere: the memory goes later."""
    _GONE.append(program)


def held_by_programs() -> BufferCache:
    """The memory of all programs that are still there."""
    with _LOCK:
        return _cleaned()


def _cleaned() -> BufferCache:
    while _GONE:
        LOCAL.release("", _nothing, program=_GONE.popleft())
    return LOCAL


def _nothing() -> None:
    pass
