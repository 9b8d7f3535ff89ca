# SPDX-License-Identifier: Apache-2.0
"""A warning -> the line of the user's program that it is about.

Python's own rule, a fixed number of frames, does not work here: the frames between the user's line
and the fuser belong to Thunder, torch and generated code.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

V = TypeVar("V")
_PASSED = frozenset({
    "", "torch", "thunder", "thunder_fuser", "contextlib", "functools", "threading", "concurrent",
})  # fmt: skip
# In a thread of the fuser: the user's line that started its job.
_caller: ContextVar[tuple[str, int] | None] = ContextVar("caller", default=None)


def warn_at(where: str, text: str, category: type[Warning]) -> None:
    """A warning at file:line; at the line that called Thunder if `where` is empty."""
    file, _, line = (where or line_of_the_call()).rpartition(":")
    warnings.warn_explicit(text, category, file, int(line))


def line_of_the_call() -> str:
    """file:line of the user's call; <unknown>:0 in a thread that a library started."""
    file, line = place_of_the_call() or ("<unknown>", 0)
    return f"{file}:{line}"


def place_of_the_call() -> tuple[str, int] | None:
    """File and line of the innermost frame outside of torch, Thunder, this package and threading.

    Generated code, which belongs to no module, is passed over too.
    """
    for frame, line in traceback.walk_stack(sys._getframe()):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _PASSED:
            return frame.f_code.co_filename, line
    return _caller.get()


def called_from_here(job: Callable[[], V]) -> Callable[[], V]:
    """The job for another thread; its warnings are about the user's line that runs now."""
    place = place_of_the_call()

    def run() -> V:
        before = _caller.set(place)
        try:
            return job()
        finally:
            _caller.reset(before)

    return run
