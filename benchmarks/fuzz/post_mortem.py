# SPDX-License-Identifier: Apache-2.0
"""A seed that ended its process -> whether torch or Thunder does, too; else its program, shrunk.

Each try is a fork of this process, which itself only draws what torch has survived.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.fuzz.findings import (
    Program,
    make,
    poison_ends,
    run_in_thunder,
    run_in_torch,
    script_of,
    steps_of,
    verdict_of,
)
from benchmarks.fuzz.judge import Failure, text_of_body
from benchmarks.fuzz.shrink import shrink

TRIES = 24
TRY = 20.0  # seconds


def examine(
    target: str, kind: str, seed: int, seconds: float, tell: Callable[..., None]
) -> None:
    """Tells why it is no finding, or its ops and script: as drawn, then as small as it gets."""
    stop = time.monotonic() + seconds

    def end_of(run: Callable[[], Any]) -> str:
        return _end_of(run, target, min(TRY, stop - time.monotonic()))

    if end_of(lambda: None):
        tell(but=", and no fork of a process can use the device")
        return
    if end_of(lambda: run_in_torch(make(seed, target))) == kind:
        tell(aside=f"torch itself: {kind}")
        return
    if end_of(lambda: run_in_thunder(make(seed, target))) == kind:
        tell(aside=f"Thunder too: {kind}")
        return
    program = make(seed, target)
    body = text_of_body(program.text)
    if kind == "crash" and target == "cuda" and is_misaligned_attention(program):
        tell(aside="torch's attention with a mask ends the process where an operand is misaligned")
        return
    divides = any(word in body for word in ("//", "%", "div", "remainder"))
    if kind == "crash" and divides and "'torchcompile'" in program.executors:
        alone = replace(program, executors=("fuser",))
        if not end_of(lambda: verdict_of(alone)):
            tell(aside="kernels of torch.compile end the process where integers are divided by 0")
            return

    def show(found: Program, **facts: Any) -> None:
        script = script_of(found, seed, Failure(kind, "call", 0, "the process ends"))
        tell(ops=found.traits, script=script, **facts)

    if end_of(lambda: verdict_of(program)) != kind:
        show(program, but=", but not of this program alone: of one before it, or its length")
        return
    show(program)
    if kind == "crash":
        show(shrink(program, steps_of(program), lambda one: not end_of(lambda: run_in_torch(one))
             and end_of(lambda: verdict_of(one)) == kind, TRIES, seconds / 2))  # fmt: skip


def is_misaligned_attention(program: Program) -> bool:
    """Whether an operand may be misaligned beside a mask. torch copies none, but happens to take
    another kernel where the mask's last axis is strided. Ours is not."""
    masked = re.search(r"scaled_dot_product_attention\([^()]*(attn_mask=|, m\b)", program.text)
    return bool(masked) and any({"offset", "sliced"} & {*one.layouts} for one in program.inputs)


def _end_of(run: Callable[[], Any], target: str, seconds: float) -> str:
    """What becomes of a process that runs it: crash, hang, or nothing if it is done in time."""
    if seconds <= 0:
        return ""
    child = os.fork()
    if not child:
        _live(run, target)
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "crash" if status else ""
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hang"


def _live(run: Callable[[], Any], target: str) -> None:
    """Errors are no end. What ends it prints no stacks."""
    faulthandler.disable()
    try:
        if target == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        os._exit(1)
    with contextlib.suppress(Exception):
        run()
    poison_ends(target)
    os._exit(0)
