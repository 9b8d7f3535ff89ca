# SPDX-License-Identifier: Apache-2.0
"""Runs jobs on threads, and stops them when the thread that waits for them is interrupted.

A thread cannot be interrupted from outside, so a job that waits checks repeatedly:

    while not done():
        check_abandoned()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from typing import TypeVar

V = TypeVar("V")

POLL_SECONDS = 0.1


class AbandonedError(Exception):
    """Ends a job whose result is no longer needed. Never leaves `run_jobs`."""


# In a thread that runs a job: the event that says its result is no longer needed.
_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


def run_jobs(jobs: Sequence[Callable[[], V]], threads: int) -> list[V]:
    """The results, in order.

    Raises the first job's error, or what interrupted the wait, after all jobs have ended.
    """
    abandoned = threading.Event()

    def begin(job: Callable[[], V]) -> V:
        _abandoned.set(abandoned)
        check_abandoned()
        return job()

    with ThreadPoolExecutor(max_workers=threads) as pool:
        try:
            return [_result(one) for one in [pool.submit(begin, job) for job in jobs]]
        except BaseException:
            abandoned.set()
            raise


def _result(future: Future[V]) -> V:
    """Waits in short steps.

    Python misses a signal that arrives just before a wait, and handles it when the wait ends.
    """
    while not future.done():
        wait([future], timeout=POLL_SECONDS)
    return future.result()


def check_abandoned() -> None:
    """Raises AbandonedError in a job whose result is no longer needed."""
    abandoned = _abandoned.get()
    if abandoned is not None and abandoned.is_set():
        raise AbandonedError
