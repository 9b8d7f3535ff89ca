# SPDX-License-Identifier: Apache-2.0
"""A function on CUDA tensors -> its launches as a CUDA graph, with the memory they read and write.

The graphs of a device share a pool of memory, in which a graph may overwrite what another has
computed. So a replay runs after all replays before it, on whichever stream they were, and its
caller holds `lock` until it has enqueued the copies of the results. A graph whose results are read
where they are gets a pool of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakSet

import torch

from thunder_fuser.threads import make_lock

Function = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Recording:
    """inputs: what the graph reads; outputs: what a replay writes, the same memory each time."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    replay: Callable[[], None]


class CudaRecorder:
    """Captures functions on one device, on a stream of its own. One of each device a process."""

    device_type = "cuda"

    def __init__(self, index: int) -> None:
        self.lock = make_lock()
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._streams: list[torch.cuda.Stream] = []  # of replays
        self._failed: list[torch.cuda.CUDAGraph] = []

    def is_capturing(self) -> bool:
        """True inside of a capture, of whoever's: a graph cannot be replayed into it."""
        return torch.cuda.is_current_stream_capturing()

    def settings(self) -> Hashable:
        """What torch's functions read beside their arguments, and a graph would not."""
        native = torch._C
        return (
            native._get_fp32_precision_getter("cuda", "matmul"),
            native._get_fp32_precision_getter("cuda", "conv"),
            native._get_cublas_allow_fp16_reduced_precision_reduction(),
            native._get_cublas_allow_bf16_reduced_precision_reduction(),
            native._get_cudnn_deterministic(), native._get_cudnn_benchmark(),
            native._get_deterministic_algorithms(),
        )  # fmt: skip

    def take_turn(self) -> None:
        """Lets the current stream wait for the replays on others, and for what follows them there.

        A backward, which reads what a forward's replay has saved, runs on the forward's stream.
        """
        stream = torch.cuda.current_stream(self._device)
        for other in self._streams:
            if other != stream:
                stream.wait_stream(other)
        if stream not in self._streams:
            self._streams.append(stream)

    def capture(
        self, run: Function, args: Sequence[Any], copied: Container[int], *, keeps: bool
    ) -> Recording:
        """What `run` launches for arguments like these, without running it. Raises what it raises.

        copied: the arguments that get memory of the graph instead, unwritten yet. keeps: no other
        graph may overwrite the results.
        """
        graph = torch.cuda.CUDAGraph()
        shared = None if keeps else next(iter(self._graphs), None)
        pool = torch.cuda.graph_pool_handle() if shared is None else shared.pool()
        # torch.cuda.graph leaves its stream current if the capture fails.
        with torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.current_stream()):
            try:
                with torch.cuda.graph(
                    graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    inputs = inputs_like(args, copied)
                    outputs = tuple(run(*inputs))
            except BaseException:
                self._end_failed(graph, pool)
                raise
        if not keeps:
            self._graphs.add(graph)
        return Recording(inputs, outputs, graph.replay)

    def _end_failed(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """What torch leaves undone where the driver refuses to end a capture.

        Its generator then waits for the end, and refuses to make random numbers. The end of any
        capture is good enough. Its allocator of host memory asks the graph for ever, and refuses
        another capture into the pool.
        """
        self._failed.append(graph)
        self._graphs.clear()
        with suppress(RuntimeError):  # it was done
            torch._C._cuda_endAllocateToPool(self._device.index, pool)
            torch._C._cuda_releasePool(self._device.index, pool)
        graph.reset()
        with torch.cuda.graph(
            torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode="thread_local"
        ):
            torch.zeros(1, device=self._device)


def inputs_like(args: Sequence[Any], copied: Container[int]) -> tuple[Any, ...]:
    """The arguments, with memory like theirs in place of those to copy."""
    return tuple(memory_like(arg) if at in copied else arg for at, arg in enumerate(args))


def memory_like(arg: torch.Tensor) -> torch.Tensor:
    """Memory of its own with the strides and the alignment of an argument, unwritten.

    So that the kernels are those of an uncaptured call, and the results have the same bits.
    """
    shift = (arg.data_ptr() & 15) // arg.element_size()
    axes = zip(arg.shape, arg.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in axes) if arg.numel() else 0
    memory = torch.empty(shift + extent, dtype=arg.dtype, device=arg.device)
    return memory.as_strided(arg.shape, arg.stride(), shift)


@cache
def cuda_recorder(index: int) -> CudaRecorder:
    """The recorder of a device."""
    return CudaRecorder(index)
