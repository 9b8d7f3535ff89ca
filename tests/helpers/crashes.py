# SPDX-License-Identifier: Apache-2.0
"""The stacks of workers that crashed or hung, printed at the end of the run.

pytest-xdist says only which test a worker ran. The stack that Python writes goes to the standard
error, thousands of lines above the summary.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path
from typing import TextIO

import pytest

SECONDS = 600  # of a test; the slowest that ends takes under 60

_stacks: list[TextIO] = []  # this worker's file, open until the process ends


def record_crashes() -> None:
    """From now on, a signal that ends this worker writes the stacks of its threads to a file."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        path = _folder() / f"crash-{worker}-{os.getpid()}.txt"
        _stacks.append(path.open("w", encoding="utf-8"))
        faulthandler.enable(_stacks[0])


def pytest_runtest_logstart() -> None:
    """A test that hangs ends its worker, so that the run goes on with another one."""
    if _stacks:
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=_stacks[0])


def pytest_sessionfinish() -> None:
    """So does the run itself, if it hangs at its end."""
    if not _stacks:
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.__stderr__)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for path in sorted(_folder().glob("crash-*.txt")):
        if stacks := path.read_text("utf-8", errors="replace"):
            terminalreporter.section(f"a worker crashed or hung: {path.stem}")
            terminalreporter.write_line("\n".join(stacks.splitlines()[:80]))


def _folder() -> Path:
    return Path(os.environ["FUSER_TESTS"])
