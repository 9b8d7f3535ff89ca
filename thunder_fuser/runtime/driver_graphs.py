# SPDX-License-Identifier: Apache-2.0
"""A CUDA graph that the driver captures without torch's generator, which other threads may need.

`torch.cuda.graph` takes the generator of its device for as long as it captures: in that time a
random function of torch's raises an error in any other thread. Here it raises one in the captured
code, and draws as ever elsewhere. All that the capturing thread allocates lies in the graph's pool,
or, between `keep(True)` and `keep(False)`, in a second one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from weakref import finalize

import torch
from cuda.bindings import driver

from thunder_fuser.errors import LaunchError
from thunder_fuser.runtime.cuda import WRONG_CONTEXT, call_driver, current_context

_THING = "a CUDA graph"
_MODE = driver.CUstreamCaptureMode
_FLAGS = driver.CUgraphInstantiate_flags  # those of torch's graphs
_AS_TORCH = int(_FLAGS.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) | int(
    _FLAGS.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
)


_capturing: ContextVar[DriverGraph | None] = ContextVar("capturing", default=None)


def keep(is_kept: bool) -> None:
    """During a capture of this thread: what is allocated next is kept apart, or no longer."""
    graph = _capturing.get()
    if graph is not None:
        graph.keep(is_kept)


class DriverGraph:
    """What a block launched on one device, to be launched again; see `captured_on`.

    kept: the pool for what `keep` keeps apart; None: there is one pool for all.
    """

    def __init__(self, index: int, pool: Any, kept: Any) -> None:
        self._index, self._pool, self._kept = index, pool, kept
        self._current = pool
        self._executable: Any = None

    def pool(self) -> Any:
        """The identifier of its memory, as torch's graphs have it."""
        return self._pool

    def keep(self, is_kept: bool) -> None:
        """Takes memory from the other pool, if there is one."""
        if self._kept is None:
            return
        torch._C._cuda_endAllocateToPool(self._index, self._current)
        self._current = self._kept if is_kept else self._pool
        torch._C._cuda_beginAllocateCurrentThreadToPool(self._index, self._current)
        torch._C._cuda_releasePool(self._index, self._current)  # it counts each beginning

    def _hold(self, pool: Any) -> None:
        """Begins to take memory from a pool, which has it for as long as the graph lives."""
        torch._C._cuda_beginAllocateCurrentThreadToPool(self._index, pool)
        finalize(self, torch._C._cuda_releasePool, self._index, pool).atexit = False

    @contextmanager
    def captured_on(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Captures what the block launches on a stream. An error of the block ends the capture."""
        torch.cuda.empty_cache()  # a pool cannot take memory that another pool has cached
        if self._kept is not None:
            self._hold(self._kept)
            torch._C._cuda_endAllocateToPool(self._index, self._kept)
        self._hold(self._pool)
        before = _capturing.set(self)
        try:
            with torch.cuda.stream(stream):
                graph = yield from _captured(stream.cuda_stream)
            self._executable = self._instantiated(graph)
            finalize(self, _destroy, self._index, self._executable).atexit = False
        finally:
            _capturing.reset(before)
            torch._C._cuda_endAllocateToPool(self._index, self._current)

    def _instantiated(self, graph: Any) -> Any:
        try:
            with current_context(self._index):
                return call_driver(_THING, driver.cuGraphInstantiate, graph, _AS_TORCH)[0]
        finally:
            driver.cuGraphDestroy(graph)

    def replay(self) -> None:
        """Enqueues all its launches on the current stream."""
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        is_there = torch._C._cuda_getDevice() == self._index
        with nullcontext() if is_there else current_context(self._index):
            (status,) = driver.cuGraphLaunch(self._executable, stream)
        if status:
            if status not in WRONG_CONTEXT:
                raise LaunchError(f"{_THING}: cuGraphLaunch failed: {status.name}")
            with current_context(self._index):
                call_driver(_THING, driver.cuGraphLaunch, self._executable, stream)


def _captured(stream: int) -> Generator[None, None, Any]:
    """Yields once while the stream captures. Returns the driver's graph."""
    pinned = _pinned()
    mode = _MODE.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    call_driver(_THING, driver.cuStreamBeginCapture, stream, mode)
    try:
        yield
        # torch would hand the memory to others, since no graph of its own holds it.
        if _pinned() != pinned:
            raise LaunchError(f"{_THING}: page-locked memory of the host is in use")
    except BaseException:
        status, graph = driver.cuStreamEndCapture(stream)
        if not status:
            driver.cuGraphDestroy(graph)
        raise
    return call_driver(_THING, driver.cuStreamEndCapture, stream)[0]


def _pinned() -> int:
    """How often torch has handed out page-locked memory of the host."""
    return int(torch.cuda.host_memory_stats().get("active_requests.allocated", 0))


def _destroy(index: int, executable: Any) -> None:
    """Frees a graph. It may run during another capture, which would forbid that."""
    with current_context(index):
        _, mode = driver.cuThreadExchangeStreamCaptureMode(_MODE.CU_STREAM_CAPTURE_MODE_RELAXED)
        driver.cuGraphExecDestroy(executable)
        driver.cuThreadExchangeStreamCaptureMode(mode)
