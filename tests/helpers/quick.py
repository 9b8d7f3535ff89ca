# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that takes out what costs tests time and tells them nothing."""

from __future__ import annotations

import gc
import inspect
import sys
from inspect import FrameInfo


def pytest_configure() -> None:
    inspect.stack = _frames  # type: ignore[assignment]


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: no collection of garbage walks over them again, and
    what traces leave is looked through seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)


def _frames(context: int = 0) -> list[FrameInfo]:
    """The stack without sources and modules: Thunder asks for it wherever it traces, pytest's is
    deep, and each of its frames would be looked up in all modules."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        found.append(FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back  # type: ignore[assignment]
    return found
