# SPDX-License-Identifier: Apache-2.0
"""A thread that ends the process when a stream waits for ever for the flag of a dead peer.

The host of such a process may sleep in a synchronisation that never returns, so no error can be
raised in it. As torch's watchdog of NCCL does: after the group's time-out a PeerError that names
rank, statement, memory and flags is logged, and the process is aborted, so that a launcher sees it
and ends the other ranks. The option `peer_timeout` gives other seconds; 0 turns it off.

The thread sleeps while nothing is outstanding. A call of an exchange adds it to a set, no more.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from thunder_fuser.errors import PeerError
from thunder_fuser.logs import LOGGER
from thunder_fuser.runtime.stream_values import allow_capture_elsewhere

_POLL_SECONDS = 1.0
_REPORT_SECONDS = 10.0


class Watched(Protocol):
    """What may wait for ever. Its text names the rank, the statement and the memory."""

    @property
    def patience(self) -> float:
        """Seconds for which it may wait."""

    def sample(self) -> Callable[[], bool] | None:
        """Says later whether all that it was told until now is done; None if the last sample, if
        there was one, has all of it."""

    def late(self, seconds: float) -> PeerError:
        """What it has waited for, for so long."""


@dataclass(slots=True)
class _Sample:
    is_done: Callable[[], bool]
    since: float


class Watchdog:
    """end: what becomes of the process after a report. prepare: runs first in the thread."""

    def __init__(
        self, end: Callable[[], None], prepare: Callable[[], None], poll: float = _POLL_SECONDS
    ) -> None:
        self._end, self._prepare, self._poll = end, prepare, poll
        self._outstanding: set[Watched] = set()
        self._is_asked = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = 0

    def watch(self, one: Watched) -> None:
        """From now on, until all that it was told is done."""
        if one in self._outstanding:
            return
        self._outstanding.add(one)
        self._is_asked.set()
        if self._thread is None or self._process != os.getpid():  # threads do not survive a fork
            self._process = os.getpid()
            self._thread = threading.Thread(target=self._run, name="thunder_fuser", daemon=True)
            self._thread.start()

    def forget(self, one: Watched) -> None:
        """It is freed."""
        self._outstanding.discard(one)

    def _run(self) -> None:
        self._prepare()
        samples: dict[Watched, _Sample] = {}
        while True:
            self._is_asked.wait()
            time.sleep(self._poll)
            self.look(samples, time.monotonic())
            if not self._outstanding:
                self._is_asked.clear()
                if self._outstanding:  # added before it was cleared
                    self._is_asked.set()

    def look(self, samples: dict[Watched, _Sample], now: float) -> None:
        """One look at all that is outstanding. samples: what earlier looks left."""
        for one in samples.keys() - self._outstanding:
            del samples[one]  # it is freed
        for one in tuple(self._outstanding):
            try:
                self._look_at(one, samples, now)
            except RuntimeError:  # of the device: the caller gets the same error at its next call
                self.forget(one)

    def _look_at(self, one: Watched, samples: dict[Watched, _Sample], now: float) -> None:
        sample = samples.get(one)
        if sample is None or sample.is_done():
            self._renew(one, samples, now)
        elif now - sample.since > one.patience:
            self._report(one, now - sample.since)

    def _renew(self, one: Watched, samples: dict[Watched, _Sample], now: float) -> None:
        """A call that ends here is either part of the new sample, or adds it to the set again."""
        self._outstanding.discard(one)
        samples.pop(one, None)
        is_done = one.sample()
        if is_done is not None:
            samples[one] = _Sample(is_done, now)
            self._outstanding.add(one)

    def _report(self, one: Watched, seconds: float) -> None:
        LOGGER.critical("%s has waited for another rank for %.1f s: aborting.", one, seconds)
        late = threading.Timer(_REPORT_SECONDS, self._end)  # if the device does not even tell flags
        late.daemon = True
        late.start()
        LOGGER.critical("%s", one.late(seconds))
        for stream in (sys.stderr, sys.stdout):
            stream.flush()
        late.cancel()
        self._end()


# What a thread asks of the driver would break a capture of a CUDA graph in another one.
WATCHDOG = Watchdog(os.abort, allow_capture_elsewhere)
