# SPDX-License-Identifier: Apache-2.0
"""How many steps a function takes, which no load of the machine can change.

A step is an instruction of Python's interpreter, so a loop inside an expression counts too; what a
C function does by itself (a slice, a union of sets) does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


def steps(call: Callable[[], Any]) -> int:
    """The instructions that the call executes."""
    return _monitored(call) if sys.version_info >= (3, 12) else _traced(call)


def _monitored(call: Callable[[], Any]) -> int:
    """From Python 3.12 on, where a trace function hears of no instruction before a second call."""
    watch, count = sys.monitoring, 0  # type: ignore[attr-defined,unused-ignore]

    def note(code: CodeType, offset: int) -> None:
        nonlocal count
        count += 1

    tool, event = watch.PROFILER_ID, watch.events.INSTRUCTION
    watch.use_tool_id(tool, "steps")
    watch.register_callback(tool, event, note)
    watch.set_events(tool, event)
    try:
        call()
    finally:
        watch.set_events(tool, 0)
        watch.free_tool_id(tool)
    return count


def _traced(call: Callable[[], Any]) -> int:
    count = 0

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return note

    def note(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "opcode"

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def growth(make: Callable[[int], Callable[[], Any]], size: int) -> float:
    """Steps of a call of twice the size, over those of the size.

    `make(size)` prepares the call, which runs once before it is counted, so that what is made once
    a process is made. Linear work gives 2 or a little less, quadratic work nearly 4.
    """
    counts = []
    for one in (size, 2 * size):
        make(one)()
        counts.append(steps(make(one)))
    return counts[1] / counts[0]


LINEAR = 2.15
