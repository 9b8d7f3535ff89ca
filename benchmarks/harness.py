# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: calls -> median times, results -> errors, and the machine's facts.

All contenders of a point are timed in one process and in turns (a b c, a b c, ...), so that a clock
that drifts meets them alike.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
FLUSH_BYTES = 256 << 20  # several times the second-level cache of an H200 (50 MiB)
PACKAGES = ("torch", "triton", "lightning-thunder", "cuda-bindings", "numpy")

Call = Callable[[], Any]


# ------------------------------------------------------------------------------------------- time


def median_times(
    calls: Mapping[str, Call], device: torch.device, runs: int = 30
) -> dict[str, float]:
    """Microseconds of each call, the median of `runs` with cold caches; each is warmed up first."""
    for call in calls.values():
        for _ in range(2):
            call()
    time_once = _cuda_times if device.type == "cuda" else _cpu_times
    found = time_once(calls, runs)
    return {name: statistics.median(times) for name, times in found.items()}


def _cuda_times(calls: Mapping[str, Call], runs: int) -> dict[str, list[float]]:
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in calls}
    torch.cuda.synchronize()
    for _ in range(runs):
        for name, call in calls.items():
            # The flush also keeps the device busy while Python prepares the call: what lies
            # between the events is the kernels, not the way to them.
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: [start.elapsed_time(end) * 1e3 for start, end in pairs]
        for name, pairs in events.items()
    }


def _cpu_times(calls: Mapping[str, Call], runs: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name].append((time.perf_counter() - start) * 1e6)
    return found


def host_time(call: Call, device: torch.device, calls: int = 500, batches: int = 11) -> float:
    """Microseconds that Python spends in a call, not waiting for the device; median of batches."""
    times = []
    for _ in range(batches):
        _wait(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    _wait(device)
    return statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# ----------------------------------------------------------------------------------------- checks


def errors(got: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """(RMS error over the reference's RMS, largest error over its largest value); NaN if any is.

    The first sees a small fault everywhere, the second a large one in a few places.
    """
    if got.shape != exact.shape:
        raise AssertionError(f"expected shape {tuple(exact.shape)}, got {tuple(got.shape)}")
    off = got.double().sub_(exact)
    rms = off.norm() / exact.norm()
    return float(rms), float(off.abs_().max() / exact.abs().max())


def two_ulps(exact: torch.Tensor, dtype: torch.dtype) -> float:
    """Two units in the last place of `dtype`, at the reference's RMS."""
    rms = float(exact.double().square().mean().sqrt())
    return 2 * torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(rms)) if rms else 0.0


@contextmanager
def poisoned() -> Iterator[None]:
    """New tensors are full of NaN meanwhile, so an element that a kernel leaves out is seen."""
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was)


class Sections:
    """Keeps a script going past a section that fails, and remembers which did."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Prints the traceback of an exception, and swallows it."""
        try:
            yield
        except Exception:
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            self.failed.append(name)

    def check(self, name: str, passed: bool, detail: str) -> None:
        """Records a failed check."""
        if not passed:
            print(f"FAILED {name}: {detail}", flush=True)
            self.failed.append(name)

    def exit_code(self) -> int:
        """0, or 1 after saying what failed."""
        if self.failed:
            print(f"{len(self.failed)} failed: {', '.join(self.failed)}")
        return bool(self.failed)


# ------------------------------------------------------------------------------------------ facts


def facts(device: torch.device) -> dict[str, Any]:
    """Where and with what a figure was measured."""
    found = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "device": device_name(device),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        **{package: _version(package) for package in PACKAGES},
    }
    if device.type == "cuda":
        query = "--query-gpu=driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"
        found["nvidia-smi"] = _output("nvidia-smi", query, "--format=csv,noheader")
    return found


def commit() -> str:
    """The commit in force, with + after it if files differ; GIT_COMMIT where there is no git."""
    given = os.environ.get("GIT_COMMIT")
    head = _output("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return given or (f"{head}+" if head and changed else head) or "unknown"


def device_name(device: torch.device) -> str:
    """The accelerator's name, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def write_json(path: str | None, content: Any) -> None:
    """Writes a file, through another name, so that a killed run leaves a whole one."""
    if path is None:
        return
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_suffix(".tmp")
    draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    draft.replace(place)
