# SPDX-License-Identifier: Apache-2.0
"""A command -> its exit status and words; no process of it outlives the wait for it.

A compiler starts others, and a signal to it does not reach them. So each command gets a process
group of its own, which is killed as a whole: after the time limit, when whoever waits is
interrupted, and also when this process is killed and so cannot do it itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from thunder_fuser.jobs import check_abandoned

POLL_SECONDS = 0.05
# The input is a pipe whose other end this process holds, so `read` ends when this process does.
# The shell itself writes nothing: its words would name process numbers.
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
    """The command had not ended at its time limit; it was killed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it wrote. status: 128 plus a signal's number if one killed
    it."""

    status: int
    output: str
    errors: str

    @property
    def signal(self) -> signal.Signals | None:
        """What killed it."""
        number = self.status - 128
        return signal.Signals(number) if number in set(signal.Signals) else None


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit: float,
    watch: Callable[[float], None],
) -> Ended:
    """Runs a command to its end. `watch` is told again and again how many seconds it has taken."""
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
            if has_ended:  # something that it left running holds its output open
                return _result(process, waiting.stdout, waiting.stderr)
        check_abandoned()
        seconds = time.monotonic() - start
        if seconds > limit:
            raise TooLongError
        watch(seconds)


def _result(
    process: subprocess.Popen[bytes], output: bytes | None, errors: bytes | None
) -> Ended:
    """A negative status is that of the shell, killed with its group."""
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    words = [(text or b"").decode(errors="replace") for text in (output, errors)]
    return Ended(status, words[0], words[1])


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Unless it has ended: then its number may be another's by now."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
