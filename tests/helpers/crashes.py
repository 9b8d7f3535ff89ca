# SPDX-License-Identifier: Apache-2.0
"""The stacks of workers that crashed, printed at the end of the run.

pytest-xdist says only which test a worker ran. The stack that Python writes goes to the standard
error, thousands of lines above the summary.
"""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import pytest


def record_crashes() -> None:
    """From now on, a signal that ends this worker writes the stacks of its threads to a file."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        path = _folder() / f"crash-{worker}-{os.getpid()}.txt"
        faulthandler.enable(path.open("w", encoding="utf-8"))  # open until the process ends


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for path in sorted(_folder().glob("crash-*.txt")):
        if stacks := path.read_text("utf-8", errors="replace"):
            terminalreporter.section(f"a worker crashed: {path.stem}")
            terminalreporter.write_line("\n".join(stacks.splitlines()[:80]))


def _folder() -> Path:
    return Path(os.environ["FUSER_TESTS"])
