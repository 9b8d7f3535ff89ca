# SPDX-License-Identifier: Apache-2.0
"""Captures the launches of a function in a CUDA graph, with the memory that they read and write.

The graphs of a device share a memory pool for what nobody holds after a replay:

    graph 1    [ its results ]   [ intermediates, small results ]
    graph 2    [ its results ]   [      the same memory         ]

So a replay waits for all earlier replays, on whichever stream they ran. And its caller holds `lock`
until it has enqueued the copies of small results. What is handed out lies in a pool of each graph.
A forward that saves values has a pool for all its memory instead, see graph_pools.py.

Other threads may draw from torch's generator while a graph is captured: it is left free. A function
that draws from it is captured with it, but only while no other thread runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch._prims_common import compute_required_storage_length

from thunder_fuser.base.logs import log
from thunder_fuser.base.threads import make_lock
from thunder_fuser.errors import CaptureBusyError
from thunder_fuser.runtime.driver_graphs import DriverGraph, keep
from thunder_fuser.runtime.graph_pools import (
    CudaPool,
    Owners,
    Pool,
    lending,
    spans_of,
    storage_of,
)

Capturable = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Recording:
    """inputs: the tensors that the graph reads. outputs: those that it writes at each replay.

    bytes: what the device reserved for it, where no other thread reserved memory meanwhile.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    replay: Callable[[], None]
    bytes: int


class CudaRecorder:
    """Captures functions on one device, on its own stream. A process has one for each device."""

    device_type = "cuda"

    def __init__(self, index: int) -> None:
        self.lock = make_lock()
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)
        self._generator = Generator()
        self._graphs: WeakSet[DriverGraph | torch.cuda.CUDAGraph] = WeakSet()
        self._streams: list[torch.cuda.Stream] = []  # those on which graphs were replayed
        self._failed: list[torch.cuda.CUDAGraph] = []

    def is_capturing(self) -> bool:
        """True inside any capture. A graph cannot be replayed in one."""
        return torch.cuda.is_current_stream_capturing()

    def settings(self) -> Hashable:
        """The global settings that torch's functions read, but a replay would not."""
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
        """Makes the current stream wait for replays on other streams, and for later work there.

        A backward reads what its forward's replay saved. It runs on the forward's stream.
        """
        stream = torch.cuda.current_stream(self._device)
        for other in self._streams:
            if other != stream:
                stream.wait_stream(other)
        if stream not in self._streams:
            self._streams.append(stream)

    def make_pool(self) -> CudaPool:
        """A pool for a forward and its backward."""
        return CudaPool(self._device)

    def capture(
        self, run: Capturable, args: Sequence[Any], copied: Container[int], *, kept: Sequence[int],
        room: int = 0, pool: Pool | None = None, lent: Owners | None = None,
    ) -> Recording:  # fmt: skip
        """Records what `run` launches for arguments like these. Raises what `run` raises.

        copied: the numbers of the arguments that the graph replaces by its own, uninitialised
        memory. kept: the numbers of the results that must survive replays of other graphs; `run`
        calls `keep` around what makes them. room: bytes that are reserved for large results at
        once. pool: the memory for all that is not kept, instead of what graphs share. lent: the
        memory that `run` may take with `taken`, and free.
        """
        fresh, lasting = torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle()
        shared = next((graph.pool() for graph in self._graphs), fresh)
        common = shared if pool is None else pool.handle
        of_results = lasting if kept else common

        def record(graph: Any, captured: AbstractContextManager[None]) -> Recording:
            with captured:
                before = torch.cuda.memory_reserved(self._device)
                _make_room(room, of_results, self._device)
                inputs = tuple(memory_like(x) if at in copied else x for at, x in enumerate(args))
                outputs = tuple(run(*inputs))
            if graph.pool() == shared:
                self._graphs.add(graph)
            taken = torch.cuda.memory_reserved(self._device) - before
            return Recording(inputs, outputs, graph.replay, taken)

        def without() -> Recording:
            graph = DriverGraph(self._device.index, common, lasting if kept else None)
            with nullcontext() if lent is None else lending(lent):
                recording = record(graph, graph.captured_on(self._stream))
            if _are_in(lasting, recording, kept):
                return recording
            log("graphs", lambda: "a result lies with the intermediates; all lie in one pool now")
            del recording
            graph = DriverGraph(self._device.index, torch.cuda.graph_pool_handle(), None)
            return record(graph, graph.captured_on(self._stream))

        def with_generator() -> Recording:
            # Another pool than one whose saved values the attempt before has freed.
            graph, of_all = torch.cuda.CUDAGraph(), of_results if lent is None else lasting
            return record(graph, self._captured_by_torch(graph, of_all))

        # torch.cuda.graph leaves its stream current if the capture fails.
        current = torch.cuda.stream(torch.cuda.current_stream(self._device))
        with torch.cuda.device(self._device), current, _workspaces_in_the_pool():
            return self._generator.capture(run, without, with_generator)

    @contextmanager
    def _captured_by_torch(self, graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
        try:
            with torch.cuda.graph(
                graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                yield
        except BaseException:
            self._end_failed(graph, pool)
            raise

    def _end_failed(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Cleans up what torch does not if the driver refuses to end a capture.

        torch's generator then still waits for the end, and refuses to make random numbers; the end
        of any other capture suffices. Its allocator of host memory queries the graph for ever, and
        refuses another capture into the pool.
        """
        self._failed.append(graph)
        self._graphs.clear()
        with suppress(RuntimeError):  # torch did it already
            torch._C._cuda_endAllocateToPool(self._device.index, pool)
            torch._C._cuda_releasePool(self._device.index, pool)
        graph.reset()
        with torch.cuda.graph(
            torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode="thread_local"
        ):
            torch.zeros(1, device=self._device)


class Generator:
    """torch's generator of a device, which a capture leaves to other threads if it can."""

    def __init__(self) -> None:
        self._refusals: WeakKeyDictionary[Capturable, str] = WeakKeyDictionary()

    def capture(
        self, run: Capturable, without: Callable[[], Recording], with_it: Callable[[], Recording]
    ) -> Recording:
        """Captures a function without the generator, or with it if that failed once.

        Raises CaptureBusyError if another thread runs, which might draw from the generator.
        """
        if run not in self._refusals:
            try:
                return without()
            except Exception as error:  # from torch, the driver or a library
                self._refusals[run] = f"{type(error).__name__}: {error}".partition("\n")[0]
        if others := other_threads():
            raise CaptureBusyError(
                "a CUDA graph with random numbers",
                expected="no other thread during the capture, since it could draw none",
                got=f"{', '.join(others)} (a capture without them: {self._refusals[run]})",
                do="make the first two calls before the threads start; a later call tries again",
            )
        return with_it()


def other_threads() -> list[str]:
    """The names of the threads that run Python besides this one, and may call torch. Those that
    Python did not start, such as autograd's, work for one that is counted."""
    return [
        thread.name for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.name.startswith("thunder_fuser")
        and type(thread).__module__ != "tqdm._monitor"  # of a progress bar
        and not isinstance(thread, threading._DummyThread)
    ]  # fmt: skip


@contextmanager
def _workspaces_in_the_pool() -> Iterator[None]:
    """cuBLAS takes its workspaces from the capture's pool, and the capture gives them back.

    Else the first capture of a thread keeps them. Another thread may be using them, but not the one
    that waits while a thread of autograd runs its backward.
    """
    is_waiting = isinstance(threading.current_thread(), threading._DummyThread)
    is_waiting = is_waiting and torch._C._current_graph_task_id() != -1
    is_alone = len(other_threads()) <= is_waiting
    if is_alone:
        torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        if is_alone:
            torch._C._cuda_clearCublasWorkspaces()


def _make_room(room: int, pool: Any, device: torch.device) -> None:
    """Takes what a pool lacks as one segment: results of many sizes would leave gaps in several."""
    lacks = room - sum(end - start for start, end in spans_of(pool)) if room else 0
    if lacks > 0:
        keep(True)
        torch.UntypedStorage(lacks, device=device)  # it is free at once
        keep(False)


def memory_like(arg: torch.Tensor) -> torch.Tensor:
    """New, uninitialised memory with the strides and the alignment of an argument.

    So the kernels are those of a call without capture, and the results have the same bits.
    """
    shift = (arg.data_ptr() & 15) // arg.element_size()
    extent = compute_required_storage_length(arg.shape, arg.stride(), 0)
    memory = torch.empty(shift + extent, dtype=arg.dtype, device=arg.device)
    return memory.as_strided(arg.shape, arg.stride(), shift)


def _are_in(pool: Any, recording: Recording, kept: Sequence[int]) -> bool:
    """True if all kept results lie in a pool, apart from views of arguments."""
    arguments = {storage_of(x): x for x in recording.inputs if isinstance(x, torch.Tensor)}
    spans = spans_of(pool) if kept else []

    def is_in(output: torch.Tensor) -> bool:
        argument = arguments.get(storage_of(output))
        if argument is not None:
            return is_view(output, argument)
        address = output.untyped_storage().data_ptr()
        return not address or any(start <= address < end for start, end in spans)

    outputs = (recording.outputs[at] for at in kept)
    return all(is_in(x) for x in outputs if isinstance(x, torch.Tensor) and x.is_cuda)


def is_view(tensor: torch.Tensor, argument: torch.Tensor) -> bool:
    """True if as_strided alone makes it from an argument with the same memory."""
    return tensor.dtype is argument.dtype and not (tensor.is_neg() or tensor.is_conj())


@cache
def cuda_recorder(index: int) -> CudaRecorder:
    """The recorder of a device."""
    return CudaRecorder(index)
