# SPDX-License-Identifier: Apache-2.0
"""The watchdog: who is reported and when, and what becomes of the process."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from thunder_fuser.communication.transport.watchdog import Watchdog
from thunder_fuser.errors import PeerError


class Stream:
    """Calls on a stream, each done or not."""

    timeout = 10.0

    def __init__(self) -> None:
        self.calls = self.done = self.sampled = 0

    def __str__(self) -> str:
        return "rank 3, all_gather"

    def call(self, dog: Watchdog) -> None:
        self.calls += 1
        dog.watch(self)

    def sample(self) -> Callable[[], bool] | None:
        if self.sampled == self.calls:
            return None
        self.sampled = wanted = self.calls
        return lambda: self.done >= wanted

    def timeout_error(self, seconds: float) -> PeerError:
        return PeerError("rank 3, all_gather", expected=f"flags within {seconds:g} seconds")


@pytest.fixture
def dog() -> Watchdog:
    """One whose thread sleeps: the tests look."""
    return Watchdog(lambda: None, lambda: None, poll=1000.0)


def looks(dog: Watchdog, times: list[float], samples: dict) -> None:
    for now in times:
        dog.check(samples, now)


def test_a_stream_that_makes_progress(
    dog: Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its calls take together."""
    stream, samples = Stream(), {}
    for now in range(0, 100, 5):
        stream.call(dog)
        dog.check(samples, now)
        stream.done = stream.calls
    assert not caplog.records
    looks(dog, [101.0, 102.0, 500.0], samples)
    assert not samples
    assert not dog._outstanding


def test_a_stream_that_waits(dog: Watchdog, caplog: pytest.LogCaptureFixture) -> None:
    """Also if the host goes on: calls behind the one that waits change nothing."""
    stream, samples = Stream(), {}
    for now in range(0, 11):
        stream.call(dog)
        dog.check(samples, float(now))
    assert not caplog.records
    with caplog.at_level(logging.CRITICAL):
        dog.check(samples, 10.5)
    assert caplog.messages == [
        "rank 3, all_gather has waited for another rank for 10.5 s: aborting.",
        "rank 3, all_gather: expected flags within 10.5 seconds",
    ]


def test_the_last_call_is_watched(dog: Watchdog, caplog: pytest.LogCaptureFixture) -> None:
    """One that came after the sample was taken, and before it was found done."""
    stream, samples = Stream(), {}
    stream.call(dog)
    dog.check(samples, 0.0)
    stream.call(dog)
    stream.done = 1
    looks(dog, [1.0, 5.0], samples)
    assert not caplog.records
    dog.check(samples, 11.5)
    assert len(caplog.records) == 2


def test_what_is_freed_or_broken_is_forgotten(
    dog: Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    freed, broken, samples = Stream(), Stream(), {}
    broken.sample = lambda: 1 / 0 if broken.sampled else raises  # type: ignore[method-assign]

    def raises() -> bool:
        raise RuntimeError("device-side assert")

    freed.call(dog)
    broken.call(dog)
    dog.check(samples, 0.0)
    dog.forget(freed)
    looks(dog, [1.0, 100.0], samples)
    assert not dog._outstanding
    assert not caplog.records


def test_the_thread() -> None:
    """It sleeps while nothing is outstanding, and wakes up again."""
    ended: list[float] = []
    dog = Watchdog(lambda: ended.append(time.monotonic()), lambda: None, poll=0.01)
    stream = Stream()
    for _ in range(2):
        stream.call(dog)
        stream.done = stream.calls
        until(lambda: not dog._outstanding and not dog._is_asked.is_set())
    assert not ended
    stream.timeout = 0.02  # type: ignore[misc]
    stream.call(dog)
    until(lambda: bool(ended))
    dog.forget(stream)


def until(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.005)


ABORTED = """
import os, sys, time
sys.path.insert(0, {folder!r})
from test_watchdog import Stream
from thunder_fuser.communication.transport.watchdog import Watchdog
stream = Stream()
stream.timeout = 0.05
stream.call(Watchdog(os.abort, lambda: None, poll=0.02))
time.sleep(60)
"""


def test_the_process_is_aborted() -> None:
    """Though its host is asleep; the log says why."""
    code = ABORTED.format(folder=__file__.rpartition("/")[0])
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == -signal.SIGABRT
    assert "rank 3, all_gather: expected flags within" in ended.stderr
