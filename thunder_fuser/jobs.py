# SPDX-License-Identifier: Apache-2.0
"""Jobs on threads of their own, which end early when the thread that waits for them does.

A thread cannot be interrupted from outside. So whatever waits long inside a job asks now and then:

    while not done():
        check_abandoned()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

V = TypeVar("V")

POLL_SECONDS = 0.1


class AbandonedError(Exception):
    """Ends a job whose result nobody waits for any more; never seen outside of `run_jobs`."""


class _Own(threading.local):
    """Of a thread that runs a job: set when nobody waits for it any more."""

    abandoned: threading.Event | None = None


_own = _Own()


def run_jobs(jobs: Sequence[Callable[[], V]], threads: int) -> list[V]:
    """The results, in order. Raises the first job's error, or what interrupted the wait, after
    all jobs have ended."""
    abandoned = threading.Event()

    def begin(job: Callable[[], V]) -> V:
        _own.abandoned = abandoned
        check_abandoned()
        return job()

    with ThreadPoolExecutor(max_workers=threads) as pool:
        try:
            return [_result(one) for one in [pool.submit(begin, job) for job in jobs]]
        except BaseException:
            abandoned.set()
            raise


def _result(future: Future[V]) -> V:
    """Waits in short steps: Python misses a signal that comes just before it begins to wait, and
    sees it when that wait ends."""
    while not future.done():
        wait([future], timeout=POLL_SECONDS)
    return future.result()


def check_abandoned() -> None:
    """Raises AbandonedError in a job that nobody waits for any more."""
    if _own.abandoned is not None and _own.abandoned.is_set():
        raise AbandonedError
