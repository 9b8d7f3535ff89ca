# SPDX-License-Identifier: Apache-2.0
"""A compiler's log -> a CompileError with the first complaint, and the kernel's lines around it."""

from __future__ import annotations

import re

from thunder_fuser.errors import CompileError

CONTEXT_LINES = 3
LONGEST_LINE = 200
_LINKER = "collect2:"  # this line only says that the linker failed; the reason is above it
_AT_LINE = re.compile(r"[:(](\d+)\)?:(?:\d+:)?\s*(?:fatal |catastrophic )?error")


def rejected(compiler: str, log: str, text: str, source: str) -> CompileError:
    """The error for a kernel's text. source: the text's file name in the log."""
    log = log.replace(source, "kernel").strip()
    complaint = first_complaint(log)
    match = _AT_LINE.search(complaint)
    lines = numbered_lines(text, int(match.group(1))) if match else ()
    reason = f": {complaint[:LONGEST_LINE]}" * bool(complaint)
    error = CompileError(f"{compiler} refused a generated kernel{reason}", lines=tuple(lines))
    error.text, error.log = text, f"{log}\n" * bool(log)
    return error


def first_complaint(log: str) -> str:
    """The first line that says what is wrong; empty if the compiler said nothing.

    >>> first_complaint("kernel: In function 'f':\\nkernel:2:9: error: no 'x' here\\n 2 | x;")
    "kernel:2:9: error: no 'x' here"
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    with_line = [line for line in lines if _AT_LINE.search(line)]
    others = [line for line in lines if "error:" in line and not line.startswith(_LINKER)]
    return next(iter((*with_line, *others, *lines)), "")


def numbered_lines(text: str, line: int) -> list[str]:
    """The lines around `line` (counted from 1), which is marked.

    >>> numbered_lines("a\\nb\\nc", 2)
    ['   1 | a', '>  2 | b', '   3 | c']
    """
    lines = text.splitlines()
    first = max(line - CONTEXT_LINES, 1)
    last = min(line + CONTEXT_LINES, len(lines))
    return [
        f"{'>' if number == line else ' '} {number:2d} | {lines[number - 1][:LONGEST_LINE]}"
        for number in range(first, last + 1)
    ]
