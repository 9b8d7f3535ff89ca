# SPDX-License-Identifier: Apache-2.0
"""The memory of a forward's CUDA graph, which its backward's graph takes over piece by piece.

    forward     [ saved a | saved b | intermediates      ]
    backward    [ saved a | gradient of b | intermediates ]     b was read for the last time
                [ gradient of a | gradient of b |         ]

While the backward is captured, it frees each saved value after the last call that reads it. What it
allocates next may lie there. So a forward is replayed only while nobody holds these gradients, and
no third graph is ever captured in the pool: it might get memory that the backward has yet to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from weakref import finalize

import torch

# {address of a memory: its owner, for each saved value there}
Owners = dict[int, list[torch.UntypedStorage]]
_lent: ContextVar[Owners | None] = ContextVar("lent", default=None)


class Pool(Protocol):
    """The memory of a forward's graph and its backward's. It is there as long as the object is."""

    @property
    def handle(self) -> Any: ...
    def spans(self) -> list[tuple[int, int]]: ...
    def alias(self, storage: torch.UntypedStorage) -> torch.UntypedStorage: ...


class CudaPool:
    """A private pool of torch's allocator. handle: its identifier, as torch's graphs have it."""

    def __init__(self, device: torch.device) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(device.index, self.handle)
        torch._C._cuda_endAllocateToPool(device.index, self.handle)
        finalize(self, torch._C._cuda_releasePool, device.index, self.handle).atexit = False

    def spans(self) -> list[tuple[int, int]]:
        """The first address of each of its segments, and the one behind the last."""
        return spans_of(self.handle)

    def alias(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The same bytes, which it does not own. It keeps the pool, so nobody else gets them."""
        whole = _Bytes(self, storage.data_ptr(), storage.nbytes())
        return torch.as_tensor(whole, device=storage.device).untyped_storage()


class _Bytes:
    """Memory of a pool in the words of __cuda_array_interface__; torch's storage holds it."""

    def __init__(self, pool: CudaPool, address: int, size: int) -> None:
        self._pool = pool
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2
        }  # fmt: skip


def spans_of(handle: Any) -> list[tuple[int, int]]:
    """The segments of a pool of torch's allocator."""
    # None: with the pool's identifier, torch 2.11 frees its numbers once too often.
    return [
        (segment["address"], segment["address"] + segment["total_size"])
        for segment in torch._C._cuda_memorySnapshot(None)["segments"]
        if tuple(segment["segment_pool_id"]) == tuple(handle)
    ]


def storage_of(tensor: torch.Tensor) -> int:
    """An identifier of its memory, the same for all views."""
    return int(tensor.untyped_storage()._cdata)


def over(storage: torch.UntypedStorage, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout in another memory."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


@contextmanager
def lending(owners: Owners) -> Iterator[None]:
    """Lets `taken` of this thread take what is lent."""
    before = _lent.set(owners)
    try:
        yield
    finally:
        _lent.reset(before)


def taken(*saved: torch.Tensor) -> list[torch.Tensor]:
    """Saved values -> the same, where they are lent as the owners of their memory.

        [t1, t2] = taken(t1, t2)
        t3 = linear(t1, w)
        del t1                      # frees its memory in a capture, and nothing in other calls

    Memory of several saved values is free when all of them are taken and gone.
    """
    lent = _lent.get()
    if not lent:
        return [*saved]
    owners = [lent.get(tensor.untyped_storage().data_ptr()) for tensor in saved]
    return [
        over(here.pop(), tensor) if here else tensor
        for here, tensor in zip(owners, saved, strict=True)
    ]
