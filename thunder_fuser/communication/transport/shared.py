# SPDX-License-Identifier: Apache-2.0
"""Exchanges between processes on one host for CPU tensors: files that all processes map.

Copies run at once, in the caller's thread. So this is the strictest test of a pipeline's order of
steps: a pipeline that needs two streams to make progress would deadlock here.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.distributed import ProcessGroup

from thunder_fuser.communication.transport.exchange import BufferLayout, Exchange
from thunder_fuser.communication.transport.rank_consistency import from_all, together
from thunder_fuser.errors import PeerError

SECONDS = 60.0  # to wait for a flag
_IN_MEMORY = "/dev/shm"
_NUMBER = 8  # bytes of a flag
_POLL_SECONDS = 5e-5


def make_shared(layout: BufferLayout, group: ProcessGroup, device: torch.device) -> Exchange:
    """Maps a file of each rank. All ranks call it; PeerError if a file cannot be made or mapped."""
    size = -(-layout.bytes // mmap.PAGESIZE) * mmap.PAGESIZE + layout.flags * _NUMBER
    path = together(f"memory of {layout}", partial(_file, size), group)
    try:
        paths = from_all(path, group)
        maps = together(f"access to {layout}", lambda: [_mapped(p, size) for p in paths], group)
    finally:
        os.unlink(path)
    return SharedExchange(layout, group.rank(), maps)


def _file(size: int) -> str:
    folder = _IN_MEMORY if os.path.isdir(_IN_MEMORY) else None
    file, path = tempfile.mkstemp(prefix="thunder_fuser-", dir=folder)
    try:
        os.posix_fallocate(file, 0, size)  # an error now, not a crash at the first write
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(file)
    return path


def _mapped(path: str, size: int) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


class SharedExchange(Exchange):
    """maps: each rank's file, which has the slots and behind them the flags, at first all 0."""

    def __init__(self, layout: BufferLayout, rank: int, maps: list[torch.Tensor]) -> None:
        slots = tuple(m[: layout.bytes].view(layout.dtype).view(layout.shape) for m in maps)
        super().__init__(layout, rank, slots, maps[rank].numel())
        self._flags = [m[m.numel() - layout.flags * _NUMBER :].view(torch.int64) for m in maps]

    def begin(self) -> None:
        self.epoch += 1

    def put(self, source: torch.Tensor, rows: slice, peer: int, slot: int, flag: int) -> None:
        self.peers[peer][slot][rows] = source[rows]
        self.raise_flag(peer, flag)

    def get(
        self, target: torch.Tensor, rows: slice, peer: int, slot: int, flag: int
    ) -> Callable[[], None]:
        self.await_flag(peer, flag)
        target[rows] = self.peers[peer][slot][rows]
        return lambda: None

    def raise_flag(self, peer: int, flag: int) -> None:
        self._flags[peer][flag] = self.epoch

    def await_flag(self, peer: int, flag: int) -> None:
        flags, limit = self._flags[self.rank], time.monotonic() + SECONDS
        while int(flags[flag]) < self.epoch:
            if time.monotonic() > limit:
                raise PeerError(
                    f"rank {self.rank}, {self.layout}, flag {flag} of rank {peer}",
                    expected=f"call {self.epoch} within {SECONDS:g} seconds",
                    got=f"call {int(flags[flag])}", do="look at the log of the other ranks",
                )  # fmt: skip
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        pass  # every copy is done

    def finish(self, seconds: float) -> None:
        pass  # nothing runs in the background

    def close(self) -> None:
        self._views.clear()
        self.peers, self._flags = (), []  # a file is unmapped with its last reference
