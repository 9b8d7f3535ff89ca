# SPDX-License-Identifier: Apache-2.0
"""Runs a command, and returns its exit status and output. None of its processes stays behind.

A compiler starts other processes, which do not get its signals. So each command has its own process
group. The group is killed after the time limit, when the wait is interrupted, and when this
process is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from thunder_fuser.base.threads import check_abandoned

POLL_SECONDS = 0.05
# The shell's input is a pipe, whose other end this process holds. So `read` returns when this
# process ends. The shell itself writes nothing, because its messages contain process numbers.
_GUARDED = """
exec 3<&0 </dev/null
"$@" 3<&- &
command=$!
exec >/dev/null 2>&1
{ read -r _ <&3; kill -s KILL 0; } &
guard=$!
wait "$command"
status=$?
kill -s KILL "$guard"
exit "$status"
"""


class TooLongError(Exception):
    """The command exceeded its time limit and was killed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit status and output of a command. status: 128 + signal if a signal killed it."""

    status: int
    output: str
    errors: str

    @property
    def signal(self) -> signal.Signals | None:
        """The signal that killed the command, or None."""
        number = self.status - 128
        return signal.Signals(number) if number in set(signal.Signals) else None


def run(
    command: Sequence[str], environment: Mapping[str, str], limit: float,
    watch: Callable[[float], None],
) -> Ended:
    """Runs a command to its end. Calls `watch` repeatedly with the seconds so far."""
    guarded, held = os.pipe()
    try:
        with subprocess.Popen(
            ["/bin/sh", "-c", _GUARDED, "sh", *command], env=environment, stdin=guarded,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                return _ended(process, limit, watch)
            finally:
                _kill_group(process)
    finally:
        os.close(guarded)
        os.close(held)


def _ended(
    process: subprocess.Popen[bytes], limit: float, watch: Callable[[float], None]
) -> Ended:
    start = time.monotonic()
    while True:
        has_ended = process.poll() is not None
        try:
            return _result(process, *process.communicate(timeout=POLL_SECONDS))
        except subprocess.TimeoutExpired as waiting:
            if has_ended:  # but one of its processes still runs, and keeps the output open
                return _result(process, waiting.stdout, waiting.stderr)
        check_abandoned()
        seconds = time.monotonic() - start
        if seconds > limit:
            raise TooLongError
        watch(seconds)


def _result(
    process: subprocess.Popen[bytes], output: bytes | None, errors: bytes | None
) -> Ended:
    """The result. A negative status means that the shell was killed with its group."""
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    words = [(text or b"").decode(errors="replace") for text in (output, errors)]
    return Ended(status, words[0], words[1])


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the group, unless it has ended, because then another process may have its number."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
