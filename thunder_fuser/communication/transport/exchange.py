# SPDX-License-Identifier: Apache-2.0
"""An exchange: a buffer on each rank of a group, which all its ranks can read and write.

    put     copies into a peer's buffer, then raises a flag there
    get     waits for a flag of this rank, then copies from a peer's buffer
    raise_flag, await_flag    the same flags without a copy

A buffer has `slots` of one shape. A flag is a number that only grows: it is raised to the number of
the call, so it is never reset. Copies run beside the caller's work, in order.

No message says that a buffer may be written again. Instead a pipeline has two exchanges and uses
them in turn: the call on one shows that peers have read the other; see docs/adr/0018.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """The layout of an exchange's buffers, which is equal on all ranks.

    statement: the pipeline that uses it. flags: their number.
    """

    statement: str
    slots: int
    rows: int
    columns: int
    dtype: torch.dtype
    flags: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.slots, self.rows, self.columns

    @property
    def bytes(self) -> int:
        """The bytes of the slots."""
        return self.slots * self.rows * self.columns * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.statement} {list(self.shape)} {dtype}"


class Exchange(ABC):
    """peers: the slots of each rank, this one included, each [slots, rows, columns]."""

    def __init__(
        self, layout: BufferLayout, rank: int, peers: tuple[torch.Tensor, ...], size: int
    ) -> None:
        self.layout, self.rank, self.peers, self.bytes = layout, rank, peers, size
        self.epoch = 0
        self._views: dict[tuple[int, int, int], torch.Tensor] = {}

    @property
    def world(self) -> int:
        return len(self.peers)

    @property
    def local(self) -> torch.Tensor:
        """This rank's slots."""
        return self.peers[self.rank]

    def rows(self, slot: int, rows: slice) -> torch.Tensor:
        """Rows of a slot of this rank. The view is cached: a new one costs time on the host."""
        key = slot, rows.start, rows.stop
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = self.local[slot, rows]
        return view

    @contextmanager
    def call(self) -> Iterator[None]:
        """One call. The caller's later work waits for all copies, even if the block raises."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    @abstractmethod
    def begin(self) -> None:
        """Begins a call: its copies wait for the caller's work so far."""

    @abstractmethod
    def put(self, source: torch.Tensor, rows: slice, peer: int, slot: int, flag: int) -> None:
        """Copies rows of the source into the same rows of a peer's slot, then raises its flag.

        source: contiguous, [rows, columns], as a slot. The copy runs beside the caller's work.
        """

    @abstractmethod
    def get(
        self, target: torch.Tensor, rows: slice, peer: int, slot: int, flag: int
    ) -> Callable[[], None]:
        """Waits until the peer raises a flag of this rank, then copies rows of the peer's slot.

        target: as `source` of put. Returns a function: after it, the caller's later work waits for
        the copy.
        """

    @abstractmethod
    def raise_flag(self, peer: int, flag: int) -> None:
        """Raises a flag of a peer once the caller's work so far is done."""

    @abstractmethod
    def await_flag(self, peer: int, flag: int) -> None:
        """Makes the caller's later work wait until the peer raises a flag of this rank."""

    @abstractmethod
    def end(self) -> None:
        """Makes the caller's later work wait for all copies."""

    @abstractmethod
    def finish(self, seconds: float) -> None:
        """Blocks the host until the last call is done; PeerError after so many seconds."""

    @abstractmethod
    def close(self) -> None:
        """Frees the buffers. All ranks close it at the same point of their programs."""
