# SPDX-License-Identifier: Apache-2.0
"""An exchange: memory that each rank of a group has, and that all its ranks can read and write.

    put     copies into a peer's memory, then raises a flag there
    get     waits for an own flag, then copies from a peer's memory
    raise_flag, await_flag    the same flags without a copy

The memory is `slots` of one shape. A flag is a number that only grows: it is raised to the count of
calls so far, so nothing needs to be reset. Copies run beside the caller's work, in order.

Nobody says when memory may be written again. An exchange is used in every second call of a pipeline
(its parity), and the call between shows that a peer has read everything: see docs/adr/0018.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Form:
    """What the memory of a rank holds. Equal on all ranks.

    statement: the pipeline that it belongs to. flags: how many there are.
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
        """Of the slots."""
        return self.slots * self.rows * self.columns * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.statement} {list(self.shape)} {dtype}"


class Exchange(ABC):
    """The memory of one parity. peers: that of each rank, also the own: [slots, rows, columns]."""

    def __init__(self, form: Form, rank: int, peers: tuple[torch.Tensor, ...], size: int) -> None:
        self.form, self.rank, self.peers, self.bytes = form, rank, peers, size
        self.epoch = 0

    @property
    def world(self) -> int:
        return len(self.peers)

    @property
    def local(self) -> torch.Tensor:
        """This rank's own memory."""
        return self.peers[self.rank]

    @contextmanager
    def call(self) -> Iterator[None]:
        """One use. What the caller does after it comes after all copies, even if it fails."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    @abstractmethod
    def begin(self) -> None:
        """A new call: copies come after the caller's work so far."""

    @abstractmethod
    def put(self, source: torch.Tensor, peer: int, target: torch.Tensor, flag: int) -> None:
        """Copies into the peer's memory and then raises its flag, beside the caller's work."""

    @abstractmethod
    def get(
        self, target: torch.Tensor, peer: int, source: torch.Tensor, flag: int
    ) -> Callable[[], None]:
        """Waits for an own flag that the peer raises, and then copies, beside the caller's work.

        The function that it returns makes the caller's later work wait for the copy.
        """

    @abstractmethod
    def raise_flag(self, peer: int, flag: int) -> None:
        """Raises a flag of a peer when the caller's work so far is done."""

    @abstractmethod
    def await_flag(self, peer: int, flag: int) -> None:
        """The caller's later work waits for an own flag, which the peer raises."""

    @abstractmethod
    def end(self) -> None:
        """The caller's later work waits for all copies."""

    @abstractmethod
    def finish(self, seconds: float) -> None:
        """The host waits until the last call is done; PeerError after so many seconds."""

    @abstractmethod
    def close(self) -> None:
        """Frees the memory. All ranks close it at the same point of their programs."""
