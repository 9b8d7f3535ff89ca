# SPDX-License-Identifier: Apache-2.0
"""Exchanges between CUDA devices that can access each other's memory: torch's symmetric memory.

A copy engine makes the copies, on a stream of high priority. A stream waits for a flag without a
kernel (runtime/cuda.py), so all multiprocessors are left to the matrix products. If the
driver refuses such waits, torch's small signal kernels replace them. Multicast is not used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed._symmetric_memory import get_signal_pad_size, rendezvous

from thunder_fuser.communication.transport.exchange import BufferLayout, Exchange
from thunder_fuser.communication.transport.rank_consistency import from_all, together
from thunder_fuser.communication.transport.rendezvous import begin_rendezvous
from thunder_fuser.communication.transport.watchdog import WATCHDOG
from thunder_fuser.errors import LaunchError, PeerError
from thunder_fuser.options import option
from thunder_fuser.runtime.cuda import copy, wait_value, write_value

_ALIGNED = 256  # bytes
_NUMBER = 4  # bytes of a flag
_POLL_SECONDS = 0.002


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)


def make_symmetric(layout: BufferLayout, group: ProcessGroup, device: torch.device) -> Exchange:
    """Allocates and maps the memory of all ranks. All ranks call it.

    PeerError if a device cannot access another one's memory. LaunchError while a CUDA graph is
    captured, since memory cannot be allocated then.
    """
    at = -(-layout.bytes // _ALIGNED) * _ALIGNED
    # `_flags_work` uses the last flags, one for each rank.
    size = at + (layout.flags + group.size()) * _NUMBER
    if torch.cuda.is_current_stream_capturing():
        raise LaunchError(f"{layout} in the capture of a CUDA graph", do="call it once before")
    name = together(f"a group for {layout}", partial(begin_rendezvous, group, device), group)
    memory = together(f"memory of {layout}", partial(_allocated, size, name, device), group)
    handle = together(f"access to {layout}", partial(_mapped, memory, name), group)
    exchange = SymmetricExchange(layout, handle, memory, at, timeout=_timeout(group, device))
    exchange.by_kernels = not _flags_work(exchange, group)
    most = get_signal_pad_size() // _NUMBER // group.size()
    if exchange.by_kernels and layout.flags > most:
        raise PeerError(f"flags of {layout}", expected=f"at most {most}", got=str(layout.flags))
    return exchange


def _timeout(group: ProcessGroup, device: torch.device) -> float:
    """The seconds of the option peer_timeout; infinite if the option says never."""
    asked = int(option("peer_timeout"))
    if asked >= 0:
        return asked or math.inf
    return float(group._get_backend(device).options._timeout.total_seconds())


def _allocated(size: int, group_name: str, device: torch.device) -> torch.Tensor:
    allocate = torch._C._distributed_c10d._SymmetricMemory.empty_strided_p2p
    memory = allocate((size,), (1,), torch.uint8, device, group_name)
    memory.zero_()
    torch.cuda.synchronize(device)
    return memory


def _mapped(memory: torch.Tensor, group_name: str) -> Any:
    handle = rendezvous(memory, group_name)
    if handle is None:
        raise RuntimeError("torch has no symmetric memory here")
    return handle


def _flags_work(exchange: SymmetricExchange, group: ProcessGroup) -> bool:
    """Whether numbers that a stream writes arrive at every peer, and a stream can wait for them."""
    first, stream = exchange.layout.flags, torch.cuda.current_stream(exchange.device).cuda_stream
    addresses = [exchange.address(peer, first + exchange.rank) for peer in range(group.size())]
    written = all(_driver_accepts(write_value, stream, address) for address in addresses)
    torch.cuda.synchronize(exchange.device)
    if not all(from_all(written, group)):
        return False
    arrived = bool((exchange.flags[first:] == 1).all())
    at = exchange.address(exchange.rank, first)
    arrived = arrived and _driver_accepts(wait_value, stream, at)
    torch.cuda.synchronize(exchange.device)
    return all(from_all(arrived, group))


def _driver_accepts(function: Callable[[int, int, int], None], stream: int, address: int) -> bool:
    try:
        function(stream, address, 1)
    except LaunchError:
        return False
    return True


class SymmetricExchange(Exchange):
    """memory: this rank's bytes, mapped by all ranks: slots, and from byte `at` on the flags.

    timeout: seconds after which the watchdog aborts the process if a stream still waits.

    A call takes little time on the host: events, addresses and the streams of the call are cached.
    """

    by_kernels = False  # whether signal kernels raise flags and wait for them

    def __init__(
        self, layout: BufferLayout, handle: Any, memory: torch.Tensor, at: int, *,
        timeout: float = math.inf,
    ) -> None:
        ranks = range(handle.world_size)
        peers = tuple(handle.get_buffer(rank, layout.shape, layout.dtype) for rank in ranks)
        super().__init__(layout, handle.rank, peers, memory.numel())
        self.device, self.timeout = memory.device, timeout
        self.flags = memory[at:].view(torch.int32)
        self._handle, self._memory = handle, memory
        self._slots = [peer.data_ptr() for peer in peers]
        self._flags = [int(address) + at for address in handle.buffer_ptrs]
        self._row_bytes = layout.columns * layout.dtype.itemsize
        self._copies = _copy_stream(memory.device)
        self._caller = torch.cuda.current_stream(memory.device)
        self._begun, self._copied, self._ended = (torch.cuda.Event() for _ in range(3))
        self._arrivals: list[torch.cuda.Event] = []  # one for each get of a call, in order
        self._used = self._ends = self._sampled = 0

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.layout}"

    def address(self, rank: int, flag: int) -> int:
        """The address of a flag in a rank's memory."""
        return self._flags[rank] + flag * _NUMBER

    def begin(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise LaunchError(
                f"{self.layout} in the capture of a CUDA graph", expected="a call outside of it",
                got="a capture, whose replays would all be the same call",
            )  # fmt: skip
        self.epoch, self._used = self.epoch + 1, 0
        self._caller = torch.cuda.current_stream(self.device)
        self._begun.record(self._caller)
        self._copies.wait_event(self._begun)

    def put(self, source: torch.Tensor, rows: slice, peer: int, slot: int, flag: int) -> None:
        self._copy(source, rows, peer, slot, from_peer=False)
        self._raise(self._copies, peer, flag)

    def get(
        self, target: torch.Tensor, rows: slice, peer: int, slot: int, flag: int
    ) -> Callable[[], None]:
        self._await(self._copies, peer, flag)
        self._copy(target, rows, peer, slot, from_peer=True)
        arrived = self._arrival()
        arrived.record(self._copies)
        return partial(self._caller.wait_event, arrived)

    def _copy(
        self, rows_here: torch.Tensor, rows: slice, peer: int, slot: int, *, from_peer: bool
    ) -> None:
        first, size = rows.start * self._row_bytes, (rows.stop - rows.start) * self._row_bytes
        theirs = self._slots[peer] + slot * self.layout.rows * self._row_bytes + first
        ours = rows_here.data_ptr() + first
        pair = (ours, theirs) if from_peer else (theirs, ours)
        copy(self._copies.cuda_stream, *pair, size)

    def _arrival(self) -> torch.cuda.Event:
        if self._used == len(self._arrivals):
            self._arrivals.append(torch.cuda.Event())
        self._used += 1
        return self._arrivals[self._used - 1]

    def raise_flag(self, peer: int, flag: int) -> None:
        self._raise(self._caller, peer, flag)

    def await_flag(self, peer: int, flag: int) -> None:
        self._await(self._caller, peer, flag)

    def _raise(self, stream: torch.cuda.Stream, peer: int, flag: int) -> None:
        if self.by_kernels:
            with torch.cuda.stream(stream):
                self._handle.put_signal(peer, channel=flag)
        else:
            write_value(stream.cuda_stream, self.address(peer, flag), self.epoch)

    def _await(self, stream: torch.cuda.Stream, peer: int, flag: int) -> None:
        if self.by_kernels:
            with torch.cuda.stream(stream):
                self._handle.wait_signal(peer, channel=flag)
        else:
            wait_value(stream.cuda_stream, self.address(self.rank, flag), self.epoch)

    def end(self) -> None:
        self._copied.record(self._copies)
        self._caller.wait_event(self._copied)
        ended = self._ended
        ended.record(self._caller)
        if ended is not self._ended:  # `sample` ran in the watchdog's thread at this moment
            self._ended.record(self._caller)
        self._ends += 1
        if self.timeout < math.inf:
            WATCHDOG.watch(self)

    def sample(self) -> Callable[[], bool] | None:
        """A function that says whether the device has finished the last call. None if the call
        before was sampled already, and there is no new one."""
        if self._sampled == self._ends:
            return None
        self._sampled = self._ends
        ended, self._ended = self._ended, torch.cuda.Event()  # so that no later call records it
        return ended.query

    def timeout_error(self, seconds: float) -> PeerError:
        """The error that says which flags peers have not raised after so many seconds."""
        return PeerError(
            str(self), expected=f"flags raised to {self.epoch} within {seconds:g} seconds",
            got=f"{self._raised()}", do="look at the log of the other ranks",
        )  # fmt: skip

    def finish(self, seconds: float) -> None:
        limit, done = time.monotonic() + seconds, self._caller.record_event()
        while not done.query():
            if time.monotonic() > limit:
                raise self.timeout_error(seconds)
            time.sleep(_POLL_SECONDS)

    def _raised(self) -> list[int]:
        """The flags, read on a new stream, because the others may wait for them."""
        with torch.cuda.stream(torch.cuda.Stream(self.device)):
            return self.flags[: self.layout.flags].tolist()

    def close(self) -> None:
        WATCHDOG.forget(self)
        torch.cuda.synchronize(self.device)
        self._views.clear()
        self.peers, self.flags = (), torch.empty(0)
        self._handle = self._memory = None
