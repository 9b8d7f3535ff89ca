# SPDX-License-Identifier: Apache-2.0
"""Jobs that nobody waits for: their order, failures, exit and fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from thunder_fuser.base.threads import (
    AbandonedError,
    Background,
    ForkGate,
    check_abandoned,
    run_jobs,
)
from thunder_fuser.options import option, options, with_options_as_now

PATIENCE = 60.0  # seconds; nothing here takes as long


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_jobs_run_in_their_order_and_threads_end() -> None:
    background, seen = Background(1), list[int]()
    background.add([lambda at=at: seen.append(at) for at in range(5)])  # type: ignore[misc]
    background.add([lambda: seen.append(5)])
    until(background.is_idle)
    assert seen == [0, 1, 2, 3, 4, 5]
    background.add([lambda: seen.append(6)])
    until(background.is_idle)
    assert seen[-1] == 6


def test_jobs_run_beside_each_other() -> None:
    background, both = Background(2), threading.Barrier(2)
    found: list[int] = []

    def meet() -> None:
        found.append(both.wait(PATIENCE))

    background.add([meet, meet])
    until(background.is_idle)
    assert sorted(found) == [0, 1]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_failure_ends_its_group_alone(error: type[BaseException]) -> None:
    background, seen = Background(1), list[str]()
    begin = threading.Event()

    def fail() -> None:
        begin.wait(PATIENCE)
        raise error

    background.add([fail, lambda: seen.append("the same group")])
    background.add([lambda: seen.append("another")])
    begin.set()
    until(background.is_idle)
    assert seen == ["another"]


def test_what_runs_and_what_waits_is_abandoned() -> None:
    background, seen, begun = Background(1), list[str](), threading.Event()

    def waiting() -> None:
        begun.set()
        while True:
            check_abandoned()
            time.sleep(0.002)

    def job() -> None:
        try:
            run_jobs([waiting, waiting], threads=2)  # as a compilation, which has jobs of its own
        except AbandonedError:
            seen.append("abandoned")
            raise

    background.add([job, lambda: seen.append("never")])
    begun.wait(PATIENCE)
    background.abandon()
    assert background.is_idle() and seen == ["abandoned"]
    background.add([lambda: seen.append("later")])
    until(background.is_idle)
    assert seen == ["abandoned", "later"]
    background._end()  # at the interpreter's exit
    background.add([lambda: seen.append("too late")])
    assert seen == ["abandoned", "later"] and background.is_idle()


def test_a_job_has_the_options_of_where_it_was_made() -> None:
    found: list[object] = []

    def job() -> None:
        found.append(option("strict"))
        found.extend(run_jobs([lambda: option("strict")], threads=1))

    with options(strict=True):
        later = with_options_as_now(job)
    thread = threading.Thread(target=later)
    with options(strict=False):
        thread.start()
        thread.join()
    assert found == [True, True]
    later()
    assert found[2:] == [True, True] and not option("strict")


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="no fork")
def test_a_fork_waits_at_the_gate() -> None:
    """In a process of its own: one with many threads had better not be forked."""
    program = """
import os, threading, time
from thunder_fuser.base.threads import ForkGate
gate, inside, left = ForkGate(), threading.Event(), []

def work():
    with gate.passed():
        inside.set()
        time.sleep(0.3)
        left.append(True)

threading.Thread(target=work).start()
inside.wait()
child = os.fork()
if child == 0:
    with gate.passed():  # it is open in the child
        os._exit(0 if left else 1)
_, status = os.waitpid(child, 0)
with gate.passed():
    print(os.waitstatus_to_exitcode(status))
"""
    assert _output(program) == "0"


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="no fork")
def test_a_child_waits_for_no_thread_of_its_parent() -> None:
    """A thread holds locks and computes a cached property while the process forks."""
    program = """
import os, signal, threading
from thunder_fuser.base.threads import cached_property, make_lock, make_reentrant_lock
inside, leave = threading.Event(), threading.Event()
once, again = make_lock(), make_reentrant_lock()

class Slow:
    @cached_property
    def value(self):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            leave.wait()
        return 7

def work():
    with once, again:
        assert Slow().value == 7

threading.Thread(target=work).start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    with once, again, again:
        os._exit(Slow().value)
leave.set()
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""
    assert _output(program) == "7"


def test_the_interpreter_exits_while_jobs_run() -> None:
    """Those that check are abandoned, and what was waiting never begins."""
    program = """
import threading, time
from thunder_fuser.base.threads import BACKGROUND, check_abandoned
begun = threading.Event()

def job():
    begun.set()
    while True:
        check_abandoned()
        time.sleep(0.01)

BACKGROUND.add([job] * 20)
begun.wait()
print("ended")
"""
    assert _output(program) == "ended"


def _output(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True,
        check=True, timeout=PATIENCE,
    )  # fmt: skip
    assert not done.stderr
    return done.stdout.strip()


def test_passing_a_gate_twice_is_fine() -> None:
    gate = ForkGate()
    with gate.passed(), gate.passed():
        pass
    if hasattr(os, "fork"):
        gate._close()  # what a fork does first: it would wait here for who is inside
        gate._open()
