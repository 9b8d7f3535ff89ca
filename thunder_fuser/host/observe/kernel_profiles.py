# SPDX-License-Identifier: Apache-2.0
"""PythonProfiler: the kernels of the definitions that run in a block, with times and bytes.

    with PythonProfiler() as profiler:
        fd.execute(inputs)
    for kernel in profiler.profile.kernel_profiles:
        print(kernel.name, kernel.time_ms, kernel.effective_bandwidth_gbs)

It times the functions of a host program; explain/profiles.py does so too:

    clock = Clock(on_cuda=False)
    with watched(program.run.__globals__, {"kernel_0": "the sum"}, clock):
        program.run(x)
    clock.microseconds()                     {"the sum": [12.5]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from thunder_fuser.analysis.part import bytes_in_memory
from thunder_fuser.errors import InputError
from thunder_fuser.host.programs.program import HostProgram

# ---- a clock


class Clock:
    """The start and end of each call, by the name given to its function."""

    def __init__(self, on_cuda: bool) -> None:
        self._on_cuda = on_cuda
        self.found: dict[str, list[tuple[Any, Any]]] = {}

    def _now(self) -> Any:
        if not self._on_cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a record of each call's start and end."""
        calls = self.found.setdefault(name, [])

        def call(*args: Any, **kwargs: Any) -> Any:
            start = self._now()
            result = function(*args, **kwargs)
            calls.append((start, self._now()))
            return result

        return call

    def microseconds(self) -> dict[str, list[float]]:
        """{name: the duration of each call}. Waits for the device."""
        if self._on_cuda:
            torch.cuda.synchronize()
        return {
            name: [
                1e3 * start.elapsed_time(end) if self._on_cuda else 1e6 * (end - start)
                for start, end in calls
            ]
            for name, calls in self.found.items()
        }


@contextmanager
def watched(scope: dict[str, Any], names: dict[str, Any], clock: Clock) -> Iterator[None]:
    """Times the functions under some keys of a scope until the block ends. names: {key: the name
    for the clock}."""
    before = {key: scope[key] for key in names}
    around = {key: clock.timed(name, scope[key]) for key, name in names.items()}
    scope.update(around)
    try:
        yield
    finally:
        for key, function in before.items():
            if scope.get(key) is around[key]:
                scope[key] = function


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """One segment of a fusion: a kernel or a torch call. The bytes of its arguments and results
    count once each."""

    name: str
    segment_id: int
    scheduler: str
    device: str
    time_ms: float
    input_bytes: int
    output_bytes: int

    @property
    def effective_bandwidth_gbs(self) -> float:
        """GB (10**9 bytes) a second."""
        return _bandwidth(self.input_bytes + self.output_bytes, self.time_ms)


@dataclass(frozen=True, slots=True)
class FusionProfile:
    """One call of `execute`. compile_time_ms: to find or compile the program. host_time_ms: the
    rest of the call."""

    fusion_id: int
    host_time_ms: float
    compile_time_ms: float
    input_bytes: int
    output_bytes: int
    kernel_profiles: tuple[KernelProfile, ...]

    @property
    def segments(self) -> int:
        return len(self.kernel_profiles)

    @property
    def kernel_time_ms(self) -> float:
        return sum(kernel.time_ms for kernel in self.kernel_profiles)

    @property
    def effective_bandwidth_gbs(self) -> float:
        """The bytes of the fusion's arguments and results, divided by the time of its kernels."""
        return _bandwidth(self.input_bytes + self.output_bytes, self.kernel_time_ms)


def _bandwidth(nbytes: int, milliseconds: float) -> float:
    return nbytes / milliseconds / 1e6 if milliseconds else 0.0


class PythonProfiler:
    """Profiles each `execute` in its block. `profiles` has a FusionProfile for each call."""

    def __init__(self) -> None:
        self.profiles: list[FusionProfile] = []
        self._token: Token[PythonProfiler | None] | None = None

    def __enter__(self) -> PythonProfiler:
        self._token = _ACTIVE.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._token is not None
        _ACTIVE.reset(self._token)

    @property
    def profile(self) -> FusionProfile:
        """The profile of the last call. InputError if there was none."""
        if not self.profiles:
            raise InputError(
                "PythonProfiler.profile", expected="a call of fd.execute in the block", got="none"
            )
        return self.profiles[-1]

    def watch(
        self, number: int, find: Callable[[], HostProgram], run: Callable[[], list[Any]]
    ) -> list[Any]:
        """Calls `run`, profiles it, and returns its results. find: finds or compiles the program
        that `run` runs. number: the fusion's."""
        start = perf_counter()
        program = find()
        ready = perf_counter()
        scope, names = program.run.__globals__, _segments(program)
        clock = Clock(on_cuda=scope["device"].type == "cuda")
        with watched(scope, names, clock):
            results = run()
        times = clock.microseconds()
        host = 1e3 * (perf_counter() - ready)
        kernels = _kernels(program, {name: sum(calls) / 1e3 for name, calls in times.items()})
        compiling = 1e3 * (ready - start)
        self.profiles.append(FusionProfile(number, host, compiling, *_bytes(program), kernels))
        return results


def _bytes(program: HostProgram) -> tuple[int, int]:
    """The bytes of the arguments, and of the results, each counted once."""
    strides, fusion = program.segmented.strides, program.segmented.fusion
    results = {output.name for output in fusion.outputs}
    read, written = (
        sum(bytes_in_memory(fusion.tensors[name], strides[name]) for name in side)
        for side in (fusion.inputs, results)
    )
    return read, written


def _segments(program: HostProgram) -> dict[str, str]:
    """{name of a function in the program: number of the segment that it runs}"""
    scope = program.run.__globals__
    return {
        key: str(number)
        for number in range(len(program.segmented.segments))
        for key in (f"kernel_{number}_in_c", f"kernel_{number}", f"torch_{number}") if key in scope
    }  # fmt: skip


def _kernels(program: HostProgram, times: dict[str, float]) -> tuple[KernelProfile, ...]:
    """The profiles of the segments. times: {number of a segment: milliseconds}."""
    sources = iter(program.sources)
    device = str(program.run.__globals__["device"])
    profiles = []
    for number, segment in enumerate(program.segmented.segments):
        part, is_kernel = segment.part, segment.scheduler.makes_kernel
        name = next(sources).name if is_kernel else "torch." + part.exprs[0].op
        profiles.append(
            KernelProfile(
                name, number, segment.scheduler.name, device, times[str(number)], *part.moved
            )
        )
    return tuple(profiles)


_ACTIVE: ContextVar[PythonProfiler | None] = ContextVar("profiler", default=None)
active = _ACTIVE.get
