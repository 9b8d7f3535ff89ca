# SPDX-License-Identifier: Apache-2.0
"""A recorder without a GPU: a replay calls the function and writes into the same memory each time.

As with a CUDA graph, capturing runs nothing, inputs and results stay where they are, a replay
overwrites what the one before has written, and an argument is an address: nothing keeps it alive.
A backward that takes what its forward saved destroys it, and a replay of the forward its results.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from thunder_fuser.errors import CaptureBusyError
from thunder_fuser.runtime.cuda_graphs import memory_like
from thunder_fuser.runtime.graph_pools import Owners, lending, over


@dataclass
class CpuPool:
    """users: the recordings of which it holds all memory."""

    users: list[Replayed] = field(default_factory=list)
    handle: object = None

    def spans(self) -> list[tuple[int, int]]:
        return [(1, 1 << 64)]

    def alias(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        return bytes_at(storage.data_ptr(), storage.nbytes(), self).untyped_storage()


@dataclass
class Replayed:
    """inputs, outputs, replay: as of runtime/cuda_graphs.py. freed: the addresses of what it took
    and freed, each time."""

    run: Callable[..., Sequence[Any]]
    inputs: tuple[Any, ...]
    keeps: bool
    pool: CpuPool | None
    lent: Owners | None
    freed: set[int] = field(default_factory=set)
    outputs: tuple[Any, ...] = ()
    replays: int = 0
    bytes: int = 1 << 20

    def replay(self) -> None:
        self.replays += 1
        with torch.inference_mode(False), torch.no_grad():
            if self.lent is None and self.pool is not None:
                guests = (one.outputs for one in self.pool.users if one is not self)
                for tensor in chain(*guests):
                    destroy(tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None)
            running = {True}
            with lending(self._lent_now(running)):
                results = self.run(*self.inputs)
            running.clear()
            if not self.outputs:
                self.outputs = tuple(results)
                return
            for own, new in zip(self.outputs, results, strict=True):
                if isinstance(own, torch.Tensor) and own is not new:
                    own.copy_(new)

    def _lent_now(self, running: set[bool]) -> Owners:
        """Owners that destroy their memory when they are freed, while it runs."""

        def free(storage: torch.UntypedStorage) -> None:
            if running:
                self.freed.add(storage.data_ptr())
                destroy(storage)

        owners = Owners({})
        for address, lent in (self.lent or {}).items():
            mark = Mark()
            weakref.finalize(mark, free, lent[0]).atexit = False
            owner = bytes_at(address, lent[0].nbytes(), mark).untyped_storage()
            owners[address] = [owner] * len(lent)
        return owners


class Mark:
    """What memory holds, to be told of its end."""


@dataclass
class CpuRecorder:
    """fails: the message of each capture's error; busy: how many captures may not be made yet;
    value: what `settings` answers."""

    fails: str = ""
    busy: int = 0
    capturing: bool = False
    value: object = None
    device_type: str = "cpu"
    recordings: list[Replayed] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    turns: int = 0

    def is_capturing(self) -> bool:
        return self.capturing

    def settings(self) -> object:
        return self.value

    def take_turn(self) -> None:
        assert self.lock.locked()
        self.turns += 1

    def make_pool(self) -> CpuPool:
        return CpuPool()

    def capture(
        self, run: Callable[..., Sequence[Any]], args: Sequence[Any], copied: Container[int],
        *, kept: Sequence[int], room: int, pool: CpuPool | None, lent: Owners | None,
    ) -> Replayed:  # fmt: skip
        if self.busy:
            self.busy -= 1
            raise CaptureBusyError("the generator is needed elsewhere")
        if self.fails:
            raise RuntimeError(self.fails)
        own = tuple(memory_like(x) if at in copied else x for at, x in enumerate(args))
        inputs = (one if at in copied else at_its_address(one) for at, one in enumerate(own))
        self.recordings.append(Replayed(run, tuple(inputs), bool(kept or pool), pool, lent))
        if pool is not None and not kept:
            pool.users.append(self.recordings[-1])
        return self.recordings[-1]


def destroy(storage: torch.UntypedStorage | None) -> None:
    """Fills it with ones, which are no number as a float."""
    if storage is not None:
        torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)


def at_its_address(value: Any) -> Any:
    """The same memory, which it does not keep alive."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    storage = value.untyped_storage()
    return over(bytes_at(storage.data_ptr(), storage.nbytes()).untyped_storage(), value)


def bytes_at(address: int, size: int, owner: object = None) -> torch.Tensor:
    """Memory that it does not keep alive, but an owner."""
    memory = (ctypes.c_uint8 * size).from_address(address)
    memory.owner = owner
    return torch.frombuffer(memory, dtype=torch.uint8)
