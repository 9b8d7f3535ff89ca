# SPDX-License-Identifier: Apache-2.0
"""CUDA modules: shared by text, unloaded after their last user and never under a launch.

A driver that only writes down what it is asked stands in for the device; tests/gpu has a real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import pytest
import torch
from helpers.kernel_texts import make_source

from thunder_fuser.base.threads import SingleFlight
from thunder_fuser.codegen.source import KernelSource, Param
from thunder_fuser.options import options
from thunder_fuser.runtime import cuda


class Driver:
    """Every call succeeds; `said` has those that matter here."""

    attributes: ClassVar = {cuda.SMEM_ATTRIBUTE: "smem", cuda.CLUSTER_ATTRIBUTE: "cluster"}

    def __init__(self) -> None:
        self.said: list[Any] = []
        self._handles = iter(range(1, 1000))
        self._nodes = 0  # of the graph that is captured

    def cuModuleLoadData(self, cubin: bytes) -> tuple[int, int]:
        handle = next(self._handles)
        self.said.append(("load", handle))
        return 0, handle

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[int, Any]:
        return 0, ("function", module, name)

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> tuple[int]:
        self.said.append((self.attributes[attribute], value))
        return (0,)

    def cuCtxSynchronize(self) -> tuple[int]:
        self.said.append("wait")
        return (0,)

    def cuModuleUnload(self, module: int) -> tuple[int]:
        self.said.append(("unload", module))
        return (0,)

    CUstreamCaptureStatus = cuda.driver.CUstreamCaptureStatus

    def cuStreamGetCaptureInfo(self, stream: int) -> tuple[Any, ...]:
        active = self.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        return 0, active, 7, "graph", [self._nodes] * bool(self._nodes), [], 1

    def cuLaunchKernel(self, *_: Any) -> tuple[int]:
        self._nodes += 1
        return (0,)

    CUlaunchAttribute, CUlaunchConfig = cuda.driver.CUlaunchAttribute, cuda.driver.CUlaunchConfig

    def cuLaunchKernelEx(self, config: Any, *_: Any) -> tuple[int]:
        self._nodes += 1
        (attribute,) = config.attrs
        self.said.append(("early", attribute.id, config.gridDimX, config.blockDimX))
        return (0,)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: (0, 0)

    def take(self) -> list[Any]:
        """What was said since the last time."""
        said, self.said = self.said, []
        return said


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    fake = Driver()
    monkeypatch.setattr(cuda, "driver", fake)
    monkeypatch.setattr(cuda, "_MODULES", SingleFlight(WeakValueDictionary()))
    capturing(monkeypatch, False)
    cuda._primary_context.cache_clear()
    cuda._RETIRED.clear()
    yield fake
    cuda._RETIRED.clear()
    cuda._CAPTURED.clear()
    cuda._RETIRED.clear()
    cuda._primary_context.cache_clear()


def capturing(monkeypatch: pytest.MonkeyPatch, state: bool) -> None:
    name = "_cuda_isCurrentStreamCapturing"
    monkeypatch.setattr(torch._C, name, lambda: state, raising=False)


def source(number: int, **more: Any) -> KernelSource:
    params = [Param("T0", "float", "output")]
    made = make_source(f"kernel_{number}", f"st(T0, 0, {number}.0f);", params)
    return replace(made, **{"early": True, **more})


def load(number: int, device: int = 0, arch: str = "sm_90a", **more: Any) -> cuda.CudaKernel:
    return cuda.load_kernel(source(number, **more), arch, device)


def test_a_text_is_loaded_once(driver: Driver) -> None:
    """Also where it is launched in other ways; the more demanding way is allowed for both."""
    kernels = [load(1), load(1, grid=(7, 1, 1)), load(1, smem_bytes=100_000), load(1, cluster=16)]
    assert driver.take() == [("load", 1), ("smem", 100_000), ("cluster", 1)]
    kernels += [load(1, smem_bytes=60_000), load(1, cluster=16)]
    assert driver.take() == []
    assert len({id(kernel._module) for kernel in kernels}) == 1


def test_each_device_has_its_own(driver: Driver) -> None:
    kept = [load(1, device=0), load(1, device=1)]
    assert driver.take() == [("load", 1), ("load", 2)] and len(kept) == 2


def test_unloaded_after_the_last_user_when_nothing_runs(driver: Driver) -> None:
    first, second = load(1), load(1)
    del first
    kept = load(2)
    assert driver.take() == [("load", 1), ("load", 2)]
    del second
    assert driver.take() == []  # not from a finalizer, which may run anywhere
    kept = [kept, load(3)]
    assert driver.take() == ["wait", ("unload", 1), ("load", 3)]
    kept.append(load(1))
    assert driver.take() == [("load", 4)]


def test_other_devices_are_not_waited_for(driver: Driver) -> None:
    gone = load(1, device=1)
    del gone
    kept = [load(2, device=0)]
    assert driver.take() == [("load", 1), ("load", 2)]
    kept.append(load(3, device=1))
    assert driver.take() == ["wait", ("unload", 1), ("load", 3)]


def test_a_captured_kernel_stays(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph may launch it as long as the process lives."""
    kernel = load(1)
    capturing(monkeypatch, True)
    kernel.launch(5, (0,))
    capturing(monkeypatch, False)
    del kernel
    kept = [load(2)]
    said = [one for one in driver.take() if one[0] != "early"]
    assert said == [("load", 1), ("load", 2)] and kept


@pytest.mark.parametrize(
    ("arch", "value", "is_early"),
    [("sm_90a", True, True), ("sm_100a", True, True), ("sm_90a", False, False)],
)  # fmt: skip
@pytest.mark.parametrize("is_captured", [True, False])
def test_a_kernel_of_a_graph_starts_early(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, is_captured: bool, *, arch: str, value: bool,
    is_early: bool,
) -> None:  # fmt: skip
    kernel = load(1, arch=arch)
    capturing(monkeypatch, is_captured)
    with options(dependent_launches=value):
        kernel.launch(5, (0,))
    (*early,) = (one for one in driver.take() if one[0] == "early")
    assert early == [("early", cuda.DEPENDENT, *kernel.dims[0:4:3])] * (is_early and is_captured)


def test_a_long_kernel_starts_in_turn(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = load(1, early=False)
    capturing(monkeypatch, True)
    kernel.launch(5, (0,))
    assert [one for one in driver.take() if one[0] == "early"] == []


def test_what_is_read_ahead_is_there(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product starts early unless the kernel in front writes its matrix."""
    params = Param("T0", "float", "input", 64, ahead=True), Param("T1", "float", "output", 32)
    kernel, early = load(1, params=params), []
    capturing(monkeypatch, True)
    for matrix, result in ((100, 900), (500, 200), (168, 800), (800, 600), (540, 700), (600, 0)):
        kernel.launch(5, (matrix, result))
        early.append("early" in [entry[0] for entry in driver.take()])
    assert early == [True, True, False, False, False, True]


def test_nothing_is_waited_for_during_a_capture(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = load(1)
    del gone
    capturing(monkeypatch, True)
    kept = [load(2)]
    capturing(monkeypatch, False)
    assert driver.take() == [("load", 1), ("load", 2)]
    kept.append(load(3))
    assert driver.take() == ["wait", ("unload", 1), ("load", 3)]


def test_the_default_stream_is_never_asked(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be captured, and a warm launch has no time to ask."""
    kernel = load(1)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
    kernel.launch(0, (0,))
    with pytest.raises(TypeError):
        kernel.launch(5, (0,))
