# SPDX-License-Identifier: Apache-2.0
"""A thread that aborts the process when a stream waits for the flag of a dead peer.

The host of such a process may be in a synchronisation that never returns, so no error can be raised
there. The thread does what torch's NCCL watchdog does: after the group's time-out it logs a
PeerError with rank, statement, memory and flags, and aborts the process. A launcher sees that and
ends the other ranks. The option `peer_timeout` gives other seconds; 0 turns it off.

The thread sleeps while no call is outstanding. A call only adds its exchange to a set.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from thunder_fuser.base.logs import LOGGER
from thunder_fuser.errors import PeerError
from thunder_fuser.runtime.cuda import allow_capture_elsewhere

_POLL_SECONDS = 1.0
_REPORT_SECONDS = 10.0


class Watched(Protocol):
    """Work that may wait for ever. Its text names the rank, the statement and the memory."""

    @property
    def timeout(self) -> float:
        """The seconds for which it may wait."""

    def sample(self) -> Callable[[], bool] | None:
        """A function that says whether the work so far is done; None if there is none that is newer
        than the last sample."""

    def timeout_error(self, seconds: float) -> PeerError:
        """The error that says what it has waited for in so many seconds."""


@dataclass(slots=True)
class _Probe:
    is_done: Callable[[], bool]
    since: float


class Watchdog:
    """end: ends the process after a report. prepare: runs first in the thread."""

    def __init__(
        self, end: Callable[[], None], prepare: Callable[[], None], poll: float = _POLL_SECONDS
    ) -> None:
        self._end, self._prepare, self._poll = end, prepare, poll
        self._outstanding: set[Watched] = set()
        self._is_asked = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = 0

    def watch(self, watched: Watched) -> None:
        """Watches it until all its work is done."""
        if watched in self._outstanding:
            return
        self._outstanding.add(watched)
        self._is_asked.set()
        if self._thread is None or self._process != os.getpid():  # threads do not survive a fork
            self._process = os.getpid()
            self._thread = threading.Thread(target=self._run, name="thunder_fuser", daemon=True)
            self._thread.start()

    def forget(self, watched: Watched) -> None:
        """Stops watching it."""
        self._outstanding.discard(watched)

    def _run(self) -> None:
        self._prepare()
        samples: dict[Watched, _Probe] = {}
        while True:
            self._is_asked.wait()
            time.sleep(self._poll)
            self.check(samples, time.monotonic())
            if not self._outstanding:
                self._is_asked.clear()
                if self._outstanding:  # it was added just before `clear`
                    self._is_asked.set()

    def check(self, samples: dict[Watched, _Probe], now: float) -> None:
        """Checks all that is outstanding once. samples: those of earlier checks."""
        for watched in samples.keys() - self._outstanding:
            del samples[watched]  # it was freed
        for watched in tuple(self._outstanding):
            try:
                self._check_watched(watched, samples, now)
            except RuntimeError:  # the device's: the caller gets the same error at its next call
                self.forget(watched)

    def _check_watched(self, watched: Watched, samples: dict[Watched, _Probe], now: float) -> None:
        sample = samples.get(watched)
        if sample is None or sample.is_done():
            self._renew(watched, samples, now)
        elif now - sample.since > watched.timeout:
            self._report(watched, now - sample.since)

    def _renew(self, watched: Watched, samples: dict[Watched, _Probe], now: float) -> None:
        """Takes a new sample. A call that ends meanwhile is in it, or calls `watch` again."""
        self._outstanding.discard(watched)
        samples.pop(watched, None)
        is_done = watched.sample()
        if is_done is not None:
            samples[watched] = _Probe(is_done, now)
            self._outstanding.add(watched)

    def _report(self, watched: Watched, seconds: float) -> None:
        LOGGER.critical("%s has waited for another rank for %.1f s: aborting.", watched, seconds)
        hung = threading.Timer(_REPORT_SECONDS, self._end)  # if even the flags cannot be read
        hung.daemon = True
        hung.start()
        LOGGER.critical("%s", watched.timeout_error(seconds))
        for stream in (sys.stderr, sys.stdout):
            stream.flush()
        hung.cancel()
        self._end()


# Without `prepare` its driver calls would break the capture of a CUDA graph in another thread.
WATCHDOG = Watchdog(os.abort, allow_capture_elsewhere)
