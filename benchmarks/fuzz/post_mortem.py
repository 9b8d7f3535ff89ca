# SPDX-License-Identifier: Apache-2.0
"""A seed that ended its process -> whether torch dies of it too; else its program, shrunk.

Each try is a fork of this process, which itself only draws what torch has survived.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from benchmarks.fuzz.findings import (
    Program,
    make,
    poison_ends,
    run_in_torch,
    script_of,
    steps_of,
    verdict_of,
)
from benchmarks.fuzz.judge import Failure
from benchmarks.fuzz.shrink import shrink

TRIES = 24
TRY = 20.0  # seconds


def examine(
    target: str, kind: str, seed: int, seconds: float, tell: Callable[..., None]
) -> None:
    """Tells why it is no finding, or its ops and script: as drawn, then as small as it gets."""
    stop = time.monotonic() + seconds

    def ends(run: Callable[[], Any]) -> bool:
        return _ends(run, target, min(TRY, stop - time.monotonic()))

    if ends(lambda: run_in_torch(make(seed, target))):
        tell(aside=f"torch itself: {kind}")
        return
    program = make(seed, target)

    def show(found: Program, **facts: Any) -> None:
        script = script_of(found, seed, Failure(kind, "call", 0, "the process ends"))
        tell(ops=found.traits, script=script, **facts)

    if not ends(lambda: verdict_of(program)):
        show(program, but=", but not of this program alone: of one before it, or its length")
        return
    show(program)
    if kind == "crash":
        show(shrink(program, steps_of(program), lambda one: ends(lambda: verdict_of(one))
             and not ends(lambda: run_in_torch(one)), TRIES, seconds / 2))  # fmt: skip


def _ends(run: Callable[[], Any], target: str, seconds: float) -> bool:
    """Whether a process does not live through it, or is not done in time."""
    child = os.fork()
    if not child:
        _live(run, target)
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _live(run: Callable[[], Any], target: str) -> None:
    """Errors are no end. What ends it prints no stacks."""
    faulthandler.disable()
    try:
        run()
    except Exception:
        poison_ends(target)
    poison_ends(target)
    os._exit(0)
