# SPDX-License-Identifier: Apache-2.0
"""Shows a line on stderr during a long compilation, which says what is being waited for.

    thunder_fuser: compiling 12 of 40, 15 s

It appears after 3 seconds and is erased when the work ends. The option `progress` turns it off, or
on if stderr is no terminal. The cursor waits at the line's beginning, so that other output
overwrites it.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from thunder_fuser.base.threads import make_lock
from thunder_fuser.options import option

AFTER_SECONDS = 3.0
STEP_SECONDS = 0.1  # between two updates of the line
PAUSE_SECONDS = 5.0  # work that begins so soon after other work counts as the same wait
FADE_SECONDS = 2.0  # work without a known end has ended if its last beat is older


@dataclass(frozen=True, slots=True)
class _Beat:
    """A sign of life of work without a known end. The work has ended if no function of `package`
    is running in its thread."""

    what: str = ""
    package: str = ""
    at: float = float("-inf")
    thread: int = 0

    def is_alive(self, now: float) -> bool:
        if now - self.at > FADE_SECONDS:
            return False
        frame = sys._current_frames().get(self.thread)
        while frame is not None:
            if frame.f_globals.get("__name__", "").partition(".")[0] == self.package:
                return True
            frame = frame.f_back
        return False


class _ProgressLine:
    """The current work, and the line that shows it. Its thread runs while there is work."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._work: list[str] = []
        self._beat = _Beat()
        self._began = self._ended = float("-inf")
        self._drawn = ""
        self._thread: threading.Thread | None = None

    def begin(self, what: str) -> None:
        with self._lock:
            self._work.append(what)
            self._start()

    def end(self, what: str) -> None:
        with self._lock:
            self._ended = monotonic()
            if what in self._work:  # not in a child forked meanwhile
                self._work.remove(what)
            self._draw("")

    def is_due(self) -> bool:
        """True if the last beat is so old that a new one is needed."""
        return monotonic() - self._beat.at > STEP_SECONDS

    def beat(self, what: str, package: str) -> None:
        with self._lock:
            self._start()
            self._ended = monotonic()
            self._beat = _Beat(what, package, self._ended, threading.get_ident())

    def hide(self) -> None:
        with self._lock:
            self._draw("")

    def _start(self) -> None:
        """Notes when a wait begins, and starts the thread if there is none."""
        now = monotonic()
        if len(self._work) <= 1 and now - self._ended > PAUSE_SECONDS:
            self._began = now
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="thunder_fuser progress", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(STEP_SECONDS)
            with self._lock:
                now = monotonic()
                self._draw(self._text(now))
                if not self._work and now - self._ended > PAUSE_SECONDS:
                    self._thread = None
                    return

    def _text(self, now: float) -> str:
        waited = now - self._began
        if waited < AFTER_SECONDS or not (self._work or self._beat.is_alive(now)):
            return ""
        what = self._work[-1] if self._work else self._beat.what
        return f"thunder_fuser: {what}, {waited:.0f} s"

    def _draw(self, text: str) -> None:
        """Writes over what was drawn before."""
        if text == self._drawn:
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        blanks = " " * (len(self._drawn) - len(text))
        try:
            sys.stderr.write(f"\r{text}{blanks}\r")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):  # stderr was closed
            text = ""
        self._drawn = text


_LINE = _ProgressLine()


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows what the block does, if it takes long."""
    if not is_shown(option("progress")):
        yield
        return
    _LINE.begin(what)
    try:
        yield
    finally:
        _LINE.end(what)


def still(what: str, package: str, mode: object = None) -> None:
    """Notes that work goes on in a package that does not signal its end.

    It may be called for every op. mode: the option `progress` of the call, if it has its own.
    """
    if _LINE.is_due() and is_shown(mode or option("progress")):
        _LINE.beat(what, package)


def hide() -> None:
    """Erases the line before other output to stderr."""
    _LINE.hide()


def is_shown(mode: object) -> bool:
    """True if the line is shown with this value of the option."""
    return mode == "force" or (mode == "on" and _is_terminal())


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, OSError, ValueError):  # there is no stderr, or it was closed
        return False


def _after_fork() -> None:
    global _LINE  # noqa: PLW0603  its thread and its work are only in the parent
    _LINE = _ProgressLine()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
