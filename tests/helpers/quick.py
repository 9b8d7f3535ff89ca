# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that takes out what costs tests time and tells them nothing."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from inspect import FrameInfo

full_collections: list[None] = []  # of this test


def pytest_configure() -> None:
    quicken()
    gc.callbacks.append(_count)


def quicken() -> None:
    """What traces leave is looked through seldom; Thunder's look at the stack is short. Inductor
    writes C++ without vectors, or it would start ten interpreters to see which this machine has."""
    inspect.stack = _frames  # type: ignore[assignment]
    gc.set_threshold(20_000, 10, 20)
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"
    if (config := sys.modules.get("torch._inductor.config")) is not None:
        config.cpp.vec_isa_ok = False


def pytest_collection_finish() -> None:
    """Modules and tests are never looked through again."""
    freeze_what_stays()


def pytest_runtest_logfinish() -> None:
    """What a full collection met when a test had ended is not walked over by the next one: caches
    of Thunder and of torch grow with each test, and a collection took seconds in the end."""
    if full_collections:
        freeze_what_stays()


def freeze_what_stays() -> None:
    """The garbage goes, and no collection looks at the rest again."""
    gc.collect()
    gc.freeze()
    full_collections.clear()


def _count(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        full_collections.append(None)


def _frames(context: int = 0) -> list[FrameInfo]:
    """The stack without sources and modules: Thunder asks for it wherever it traces, pytest's is
    deep, and each of its frames would be looked up in all modules."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        found.append(FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back  # type: ignore[assignment]
    return found
