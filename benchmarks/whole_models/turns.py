# SPDX-License-Identifier: Apache-2.0
"""Models that compile side by side, each in its own process, and are measured one after another.

Each process holds a file's lock with the others while it compiles, and alone while it measures: so
none measures before the last has compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Turn:
    """A process among others, by the descriptor of their file; -1 for a process by itself."""

    descriptor: int

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Once all others have compiled or ended, and while none of them measures."""
        if self.descriptor < 0:
            yield
            return
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def memory(self) -> Iterator[None]:
        """While no other process does: for what fills the device's memory."""
        if self.descriptor < 0:
            yield
            return
        path = os.readlink(f"/proc/self/fd/{self.descriptor}") + ".memory"
        with open(path, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def side_by_side(names: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    """The figures of each model. One whose process fails has the reason."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        running = {name: _start(name, place, given) for name in names}
        for process in running.values():
            process.wait()  # it ends itself after its limit
        return {name: _figures(place, name) for name in names}


def _start(name: str, place: Path, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "benchmarks", "models", "--model", name,
        "--device", given.device.type, "--seconds", str(given.seconds),
        "--compile" if given.compile else "--no-compile", "--json", str(place / f"{name}.json"),
    ]  # fmt: skip
    command += ["--limit", str(given.limit)]
    if given.graphs:
        command.append("--graphs")
    if given.dtype:
        command += ["--dtype", given.dtype]
    with (place / "turns").open("a") as turns, (place / f"{name}.log").open("w") as log:
        fcntl.flock(turns, fcntl.LOCK_SH)  # the process inherits it, and holds it from its start
        command += ["--turn", str(turns.fileno())]
        return subprocess.Popen(
            command, pass_fds=[turns.fileno()], stdout=log, stderr=subprocess.STDOUT,
            env={"TORCHINDUCTOR_COMPILE_THREADS": "4", **os.environ},
        )  # fmt: skip


def _figures(place: Path, name: str) -> dict[str, Any]:
    path = place / f"{name}.json"
    found = json.loads(path.read_text()).get("figures", {}) if path.exists() else {}
    log = (place / f"{name}.log").read_text(errors="replace")
    if name not in found:
        return {"why": f"its process failed:\n{log[-6000:]}", "steps": {}}
    figures: dict[str, Any] = found[name]
    return figures
