# SPDX-License-Identifier: Apache-2.0
"""Exchanges of CUDA devices that reach each other's memory: torch's symmetric memory.

Copies are made by a copy engine, on a stream of high priority. A stream waits for a flag without a
kernel (runtime/stream_values.py), so no multiprocessor is taken from the matrix products. Where the
driver refuses that, torch's small signal kernels do it. Multicast is not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed._symmetric_memory import get_signal_pad_size, rendezvous

from thunder_fuser.communication.agreement import from_all, together
from thunder_fuser.communication.exchange import Exchange, Form
from thunder_fuser.errors import LaunchError, PeerError
from thunder_fuser.runtime.stream_values import wait_value, write_value

_ALIGNED = 256  # bytes
_NUMBER = 4  # bytes of a flag
_POLL_SECONDS = 0.002


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)


def make_symmetric(form: Form, group: ProcessGroup, device: torch.device) -> Exchange:
    """Allocates and maps the memory of all ranks. Called by all ranks at once.

    PeerError if a device has no access to another one's memory. LaunchError while a CUDA graph is
    captured: memory is not allocated then.
    """
    at = -(-form.bytes // _ALIGNED) * _ALIGNED
    # The last numbers, one for each rank, are for the test of flags.
    size = at + (form.flags + group.size()) * _NUMBER
    if torch.cuda.is_current_stream_capturing():
        raise LaunchError(f"{form} in the capture of a CUDA graph", do="call it once before")
    memory = together(f"memory of {form}", partial(_allocated, size, group, device), group)
    handle = together(f"access to {form}", partial(_mapped, memory, group), group)
    made = SymmetricExchange(form, handle, memory, at)
    made.by_kernels = not _flags_work(made, group)
    most = get_signal_pad_size() // _NUMBER // group.size()
    if made.by_kernels and form.flags > most:
        raise PeerError(f"flags of {form}", expected=f"at most {most}", got=str(form.flags))
    return made


def _allocated(size: int, group: ProcessGroup, device: torch.device) -> torch.Tensor:
    allocate = torch._C._distributed_c10d._SymmetricMemory.empty_strided_p2p
    memory = allocate((size,), (1,), torch.uint8, device, group.group_name)
    memory.zero_()
    torch.cuda.synchronize(device)
    return memory


def _mapped(memory: torch.Tensor, group: ProcessGroup) -> Any:
    handle = rendezvous(memory, group)
    if handle is None:
        raise RuntimeError("torch has no symmetric memory here")
    return handle


def _flags_work(exchange: SymmetricExchange, group: ProcessGroup) -> bool:
    """Whether numbers that a stream writes arrive at every peer, and a stream can wait for them."""
    first, stream = exchange.form.flags, torch.cuda.current_stream(exchange.device).cuda_stream
    own = [exchange.address(peer, first + exchange.rank) for peer in range(group.size())]
    written = all(_is_taken(write_value, stream, address) for address in own)
    torch.cuda.synchronize(exchange.device)
    if not all(from_all(written, group)):
        return False
    arrived = bool((exchange.flags[first:] == 1).all())
    arrived = arrived and _is_taken(wait_value, stream, exchange.address(exchange.rank, first))
    torch.cuda.synchronize(exchange.device)
    return all(from_all(arrived, group))


def _is_taken(function: Callable[[int, int, int], None], stream: int, address: int) -> bool:
    try:
        function(stream, address, 1)
    except LaunchError:
        return False
    return True


class SymmetricExchange(Exchange):
    """memory: this rank's bytes, mapped by all ranks: slots, and from byte `at` on the flags."""

    by_kernels = False  # how flags are raised and awaited

    def __init__(self, form: Form, handle: Any, memory: torch.Tensor, at: int) -> None:
        ranks = range(handle.world_size)
        peers = tuple(handle.get_buffer(rank, form.shape, form.dtype) for rank in ranks)
        super().__init__(form, handle.rank, peers, memory.numel())
        self.device = memory.device
        self.flags = memory[at:].view(torch.int32)
        self._handle, self._memory, self._at = handle, memory, at
        self._copies = _copy_stream(memory.device)
        self._ended: torch.cuda.Event | None = None

    def address(self, rank: int, flag: int) -> int:
        """Of a flag in a rank's memory."""
        return int(self._handle.buffer_ptrs[rank]) + self._at + flag * _NUMBER

    def begin(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise LaunchError(
                f"{self.form} in the capture of a CUDA graph", expected="a call outside of it",
                got="a capture, whose replays would all be the same call",
            )  # fmt: skip
        self.epoch += 1
        self._copies.wait_stream(torch.cuda.current_stream(self.device))

    def put(self, source: torch.Tensor, peer: int, target: torch.Tensor, flag: int) -> None:
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)
            self.raise_flag(peer, flag)

    def get(
        self, target: torch.Tensor, peer: int, source: torch.Tensor, flag: int
    ) -> Callable[[], None]:
        with torch.cuda.stream(self._copies):
            self.await_flag(peer, flag)
            target.copy_(source, non_blocking=True)
            copied = self._copies.record_event()
        return lambda: torch.cuda.current_stream(self.device).wait_event(copied)

    def raise_flag(self, peer: int, flag: int) -> None:
        if self.by_kernels:
            self._handle.put_signal(peer, channel=flag)
            return
        stream = torch.cuda.current_stream(self.device).cuda_stream
        write_value(stream, self.address(peer, flag), self.epoch)

    def await_flag(self, peer: int, flag: int) -> None:
        if self.by_kernels:
            self._handle.wait_signal(peer, channel=flag)
            return
        stream = torch.cuda.current_stream(self.device).cuda_stream
        wait_value(stream, self.address(self.rank, flag), self.epoch)

    def end(self) -> None:
        stream = torch.cuda.current_stream(self.device)
        stream.wait_stream(self._copies)
        self._ended = stream.record_event()

    def finish(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while self._ended is not None and not self._ended.query():
            if time.monotonic() > limit:
                raise PeerError(
                    f"rank {self.rank}, {self.form}",
                    expected=f"flags raised to {self.epoch} within {seconds:g} seconds",
                    got=f"{self._raised()}", do="look at the log of the other ranks",
                )  # fmt: skip
            time.sleep(_POLL_SECONDS)

    def _raised(self) -> list[int]:
        """The flags, read past the streams that wait for them."""
        with torch.cuda.stream(torch.cuda.Stream(self.device)):
            return self.flags[: self.form.flags].tolist()

    def close(self) -> None:
        torch.cuda.synchronize(self.device)
        self.peers, self.flags = (), torch.empty(0)
        self._handle = self._memory = None
