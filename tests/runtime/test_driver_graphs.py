# SPDX-License-Identifier: Apache-2.0
"""What a capture by the driver calls, in which order, and that it ends in any case.

Without a GPU, by a driver that only notes its calls."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda.bindings import driver

from thunder_fuser.errors import LaunchError
from thunder_fuser.runtime import driver_graphs
from thunder_fuser.runtime.driver_graphs import DriverGraph, keep

POOL = (0, 1)
STREAM: Any = SimpleNamespace(cuda_stream=77)
OK = driver.CUresult.CUDA_SUCCESS
ENDED = ["cuStreamBeginCapture", "cuStreamEndCapture"]


class Noted:
    """The names of the calls of the driver and of torch's allocator."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.answers: dict[str, Any] = {}
        self.pinned = 0
        for name, results in {
            "cuStreamBeginCapture": (), "cuStreamEndCapture": ("graph",), "cuGraphDestroy": (),
            "cuGraphInstantiate": ("executable",), "cuGraphExecDestroy": (), "cuGraphLaunch": (),
            "cuThreadExchangeStreamCaptureMode": ("mode",),
            "cuGetErrorName": (b"invalid",), "cuGetErrorString": (b"",),
        }.items():  # fmt: skip
            patch.setattr(driver, name, self._noting(name, results))
        for name in ("beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool"):
            patch.setattr(torch._C, f"_cuda_{name}", self._noting(name, ()))
        patch.setattr(torch._C, "_cuda_getDevice", lambda: 0)
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 5)
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        patch.setattr(torch.cuda, "empty_cache", lambda: None)
        patch.setattr(driver_graphs, "current_context", lambda index: nullcontext())
        patch.setattr(torch.cuda, "host_memory_stats", self._stats)

    def _noting(self, name: str, results: tuple[str, ...]) -> Any:
        def noted(*args: object) -> tuple[Any, ...]:
            self.calls.append(name)
            return (self.answers.get(name, OK), *results)

        noted.__name__ = name
        return noted

    def _stats(self) -> dict[str, int]:
        return {"active_requests.allocated": self.pinned}


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


def test_a_capture_and_its_replays(noted: Noted) -> None:
    graph = DriverGraph(0, POOL, None)
    with graph.captured_on(STREAM):
        noted.calls.append("block")
    assert noted.calls == [
        "beginAllocateCurrentThreadToPool", "cuStreamBeginCapture", "block", "cuStreamEndCapture",
        "cuGraphInstantiate", "cuGraphDestroy", "endAllocateToPool",
    ]  # fmt: skip
    noted.calls.clear()
    graph.replay()
    graph.replay()
    assert noted.calls == ["cuGraphLaunch"] * 2
    noted.calls.clear()
    del graph
    assert {"cuGraphExecDestroy", "releasePool"} <= {*noted.calls}


def test_what_is_kept_lies_in_a_second_pool(noted: Noted) -> None:
    """Each beginning counts as a use of a pool: none is left when the graph is gone."""
    keep(True)  # outside of a capture nothing changes
    assert noted.calls == []
    graph = DriverGraph(0, POOL, (0, 8))
    with graph.captured_on(STREAM):
        noted.calls.clear()
        keep(True)
        assert noted.calls == [
            "endAllocateToPool", "beginAllocateCurrentThreadToPool", "releasePool"
        ]
        keep(False)
    assert noted.calls.count("endAllocateToPool") == 3
    noted.calls.clear()
    del graph
    assert noted.calls.count("releasePool") == 2


@pytest.mark.parametrize("end", [OK, driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED])
def test_an_error_of_the_block_ends_the_capture(noted: Noted, end: Any) -> None:
    noted.answers["cuStreamEndCapture"] = end
    graph = DriverGraph(0, POOL, None)
    with pytest.raises(RuntimeError, match="not in capture mode"), graph.captured_on(STREAM):
        raise RuntimeError("a generator not in capture mode")
    del graph
    destroyed = ["cuGraphDestroy"] if end is OK else []
    assert noted.calls == [
        "beginAllocateCurrentThreadToPool", *ENDED, *destroyed, "endAllocateToPool", "releasePool"
    ]


@pytest.mark.parametrize("call", [*ENDED, "cuGraphInstantiate"])
def test_an_error_of_the_driver(noted: Noted, call: str) -> None:
    noted.answers[call] = driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    graph = DriverGraph(0, POOL, None)
    with pytest.raises(LaunchError, match=f"{call} failed"), graph.captured_on(STREAM):
        pass
    del graph
    assert {"endAllocateToPool", "releasePool"} <= {*noted.calls}
    assert "cuGraphExecDestroy" not in noted.calls


def test_memory_of_the_host_is_refused(noted: Noted) -> None:
    """torch would hand it to others while replays still read it."""
    graph = DriverGraph(0, POOL, None)
    with pytest.raises(LaunchError, match="page-locked"), graph.captured_on(STREAM):
        noted.pinned += 1
    assert [one for one in noted.calls if one in ENDED] == ENDED


def test_a_thread_without_a_context(noted: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = DriverGraph(0, POOL, None)
    with graph.captured_on(STREAM):
        pass
    statuses = iter([driver.CUresult.CUDA_ERROR_INVALID_CONTEXT, OK])
    monkeypatch.setattr(driver, "cuGraphLaunch", lambda *_: (next(statuses),))
    graph.replay()
    assert next(statuses, None) is None
