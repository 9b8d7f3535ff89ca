# SPDX-License-Identifier: Apache-2.0
"""Jobs on threads: results in order, the first error, and an end where nobody waits any more."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest

from thunder_fuser.base.threads import AbandonedError, check_abandoned, run_jobs


def test_results_come_in_order() -> None:
    assert run_jobs([partial(pow, 2, n) for n in range(20)], threads=3) == [2**n for n in range(20)]
    assert run_jobs([], threads=3) == []
    check_abandoned()  # nothing on a thread that runs no job


def until_abandoned(began: threading.Event, ended: list[str]) -> None:
    began.set()
    try:
        while True:
            check_abandoned()
            time.sleep(0.001)
    except AbandonedError:
        ended.append("abandoned")
        raise


def test_an_error_ends_the_other_jobs() -> None:
    began, ended = threading.Event(), list[str]()

    def fail() -> None:
        began.wait()
        raise ValueError("first")

    jobs = [fail, partial(until_abandoned, began, ended)]
    with pytest.raises(ValueError, match="first"):
        run_jobs(jobs, threads=2)
    assert "abandoned" in ended


def test_an_interrupt_passes_when_all_jobs_have_ended(interruptible: None) -> None:
    """Also one that comes just before the wait begins, which Python sees only when it ends."""
    for turn in range(200):
        began, ended = threading.Event(), list[str]()

        def interrupt(turn: int = turn, began: threading.Event = began) -> None:
            began.wait()
            time.sleep(turn % 8 * 0.0005)
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            run_jobs([partial(until_abandoned, began, ended), interrupt], threads=2)
        assert ended == ["abandoned"]


def test_one_job_of_a_job_runs_in_its_thread() -> None:
    """Outside of jobs it has a thread, so that the wait for it can be interrupted."""
    here = threading.get_ident

    def both() -> tuple[int, list[int], list[int]]:
        return here(), run_jobs([here], threads=4), run_jobs([here, here], threads=4)

    (outer, one, two), _ = run_jobs([both, here], threads=2)
    assert one == [outer] and outer not in two
    assert run_jobs([here], threads=4) != [here()]
