# SPDX-License-Identifier: Apache-2.0
"""Locks that survive a fork, tables shared by threads, and jobs that can be interrupted."""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock, RLock
from time import sleep
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from thunder_fuser.base.warn import called_from_here

V = TypeVar("V")

POLL_SECONDS = 0.1


def make_lock() -> Lock:
    """A lock that is released in a forked child, whichever thread of the parent held it."""
    lock = Lock()
    _LOCKS.add(lock)
    return lock


def make_reentrant_lock() -> RLock:
    """A reentrant lock with the same property."""
    lock = RLock()
    _LOCKS.add(lock)
    return lock


class cached_property(functools.cached_property[V]):
    """functools.cached_property without the lock that it has in Python 3.10 and 3.11.

    That lock is shared by all instances, so threads wait for each other. And it stays taken in a
    child that is forked while another thread computes. Here two threads may compute a value twice.
    """

    def __init__(self, func: Callable[[Any], V]) -> None:
        super().__init__(func)
        self.lock = nullcontext()


def _free_all() -> None:
    """Releases all locks in a forked child, as threading does with its own."""
    for lock in list(_LOCKS):
        lock._at_fork_reinit()


_LOCKS: WeakSet[Any] = WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)


@dataclass(slots=True)
class _Turn:
    """The lock of a value that is being made, and the number of threads that hold or await it.

    Waiting threads share the lock even if the table drops the value at once.
    """

    lock: Lock = field(default_factory=make_lock)
    users: int = 0


@contextmanager
def _taken(lock: Lock) -> Iterator[None]:
    """Holds the lock. In a job that was abandoned, the wait for it raises AbandonedError."""
    while not lock.acquire(timeout=POLL_SECONDS):
        check_abandoned()
    try:
        yield
    finally:
        lock.release()


class SingleFlight(Generic[V]):
    """A table in which one thread makes a missing value while others wait for it.

    Values of different keys are made concurrently. values: the mapping that stores them. If it is
    weak or bounded, values that it dropped are recomputed.
    """

    def __init__(self, values: MutableMapping[Hashable, V]) -> None:
        self.values = values
        self._turns: dict[Hashable, _Turn] = {}
        self._guard = make_lock()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of `key`, made if it is missing. A failure is not stored."""
        with self._guard:
            held = self.values.get(key)
            if held is not None:
                return held
            turn = self._turns.setdefault(key, _Turn())
            turn.users += 1
        try:
            with _taken(turn.lock):
                return self._get_or_make(key, make)
        finally:
            with self._guard:
                turn.users -= 1
                if not turn.users:
                    self._turns.pop(key, None)

    def wait_for(self, key: Hashable) -> V | None:
        """The value of `key` if there is one, or if another thread is making it; else None."""
        with self._guard:
            turn = self._turns.get(key)
        if turn is not None:
            with _taken(turn.lock):
                pass
        with self._guard:
            return self.values.get(key)

    def keys(self) -> list[Hashable]:
        """The keys of the values, and of those that are being made."""
        with self._guard:
            return [*self.values, *self._turns]

    def drop(self, key: Hashable) -> None:
        """Forgets the value of `key`, if there is one."""
        with self._guard:
            self.values.pop(key, None)

    def _get_or_make(self, key: Hashable, make: Callable[[], V]) -> V:
        with self._guard:
            held = self.values.get(key)
        if held is not None:  # another thread made it meanwhile
            return held
        value = make()
        with self._guard:
            self.values[key] = value
        return value


class Recent(OrderedDict[Hashable, V]):
    """An LRU table of at most `most()` values, the least recently used first."""

    def __init__(self, most: Callable[[], object]) -> None:
        super().__init__()
        self._most = most

    def get(self, key: Hashable, default: Any = None) -> Any:
        value = super().get(key, default)
        if value is not None:
            self.move_to_end(key)
        return value

    def __setitem__(self, key: Hashable, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > int(self._most()):  # type: ignore[call-overload]
            del self[next(iter(self))]


def first_time(cause: Hashable) -> bool:
    """True at the first call for this cause, so that a warning is given once.

    Python's own filters compare messages, which may contain the name of a kernel or a file.
    """
    mine = object()
    return WARNED.keep(cause, mine) is mine


class Bounded(Generic[V]):
    """A thread-safe table of at most `most` values. A new value replaces the oldest."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: dict[Hashable, V] = {}
        self._guard = make_lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> V | None:
        """The value of `key`; None if the table has none."""
        return self._values.get(key)

    def keep(self, key: Hashable, value: V) -> V:
        """Stores a value unless the key has one; returns the stored value."""
        with self._guard:
            value = self._values.setdefault(key, value)
            if len(self._values) > self.most:
                del self._values[next(iter(self._values))]
        return value

    def get_or_make(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of `key`, made if it is missing. Several threads may make it at once."""
        value = self._values.get(key)
        return self.keep(key, make()) if value is None else value


WARNED: Bounded[object] = Bounded(4096)


# ---- jobs


class AbandonedError(Exception):
    """Ends a job whose result is no longer needed. Never leaves `run_jobs`."""


# In a thread that runs a job: the event that says its result is no longer needed.
_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)
# The number of a job, its value if it has one, and its error.
_JobResult = tuple[int, list[V], BaseException | None]


def run_jobs(jobs: Sequence[Callable[[], V]], threads: int) -> list[V]:
    """Runs jobs in threads, and returns their results in order.

    If a job fails or the wait is interrupted, raises that error after all jobs have ended. A thread
    cannot be interrupted from outside, so a job that waits must check repeatedly:

        while not done():
            check_abandoned()

    If a job itself runs a single job, that one runs in the same thread.
    """
    if len(jobs) == 1 and _abandoned.get() is not None:
        return [copy_context().run(jobs[0])]
    abandoned = threading.Event()
    context = copy_context()  # a new thread has an empty one
    ended: SimpleQueue[_JobResult[V]] = SimpleQueue()
    early: dict[int, _JobResult[V]] = {}

    def begin(number: int, job: Callable[[], V]) -> None:
        try:
            ended.put((number, [context.copy().run(do, job)], None))
        except BaseException as error:
            ended.put((number, [], error))

    def do(job: Callable[[], V]) -> V:
        _abandoned.set(abandoned)
        check_abandoned()
        return job()

    def result(number: int) -> V:
        while number not in early:
            end = _next(ended)
            early[end[0]] = end
        _, values, error = early.pop(number)
        try:
            if error is not None:
                raise error
            return values[0]
        finally:
            del error  # its traceback holds this frame

    with ThreadPoolExecutor(max_workers=threads) as pool:
        try:
            for number, job in enumerate(jobs):
                pool.submit(begin, number, called_from_here(job))
            return [result(number) for number in range(len(jobs))]
        except BaseException:
            abandoned.set()
            raise
        finally:
            early.clear()


def _next(ended: SimpleQueue[_JobResult[V]]) -> _JobResult[V]:
    """Waits in short steps, because Python misses a signal that arrives just before a wait, and
    handles it only when the wait ends.

    The queue is SimpleQueue, in C: an interrupt inside a Future's methods may leave its lock taken
    for ever.
    """
    while True:
        with suppress(Empty):
            return ended.get(timeout=POLL_SECONDS)
        check_abandoned()


def check_abandoned() -> None:
    """Raises AbandonedError in a job whose result is no longer needed."""
    abandoned = _abandoned.get()
    if abandoned is not None and abandoned.is_set():
        raise AbandonedError


# ---- background jobs


class Background:
    """Jobs whose results may be needed soon. Threads take them in their order.

    If a job raises, the rest of its group is dropped. A call that needs the result does the same
    work, and raises the error to its caller. At the interpreter's exit all jobs are abandoned.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._guard = make_lock()
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)  # the threads are only in the parent
        # This runs before the interpreter waits for its threads; `atexit` would run after that.
        threading._register_atexit(self._end)  # type: ignore[attr-defined]

    def _reset(self) -> None:
        self._groups: deque[deque[Callable[[], object]]] = deque()
        self._threads = 0
        self._abandoned = threading.Event()
        self._is_over = False

    def add(self, jobs: Sequence[Callable[[], object]]) -> None:
        """Adds a group of jobs, and starts threads for them."""
        with self._guard:
            if not jobs or self._is_over:
                return
            self._groups.append(deque(map(called_from_here, jobs)))
            wanted = min(self._most, self._threads + len(jobs))
            new, self._threads = wanted - self._threads, wanted
        for _ in range(new):
            threading.Thread(target=self._run, name="thunder_fuser background").start()

    def abandon(self) -> None:
        """Abandons all jobs, and returns when those that ran have ended."""
        with self._guard:
            self._groups.clear()
            abandoned, self._abandoned = self._abandoned, threading.Event()
        abandoned.set()
        while not self.is_idle():
            sleep(POLL_SECONDS / 10)

    def _end(self) -> None:
        self._is_over = True
        self._groups.clear()
        self._abandoned.set()

    def is_idle(self) -> bool:
        """True if no job runs."""
        return not self._threads

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            group, job = taken
            try:
                job()
            except BaseException:  # whatever it is, the call that needs the result raises it again
                group.clear()

    def _next(self) -> tuple[deque[Callable[[], object]], Callable[[], object]] | None:
        with self._guard:
            while self._groups and not self._groups[0]:
                self._groups.popleft()
            if self._groups:
                _abandoned.set(self._abandoned)  # that of this moment, as `abandon` replaces it
                return self._groups[0], self._groups[0].popleft()
            self._threads -= 1
            return None


class ForkGate:
    """Delays a fork while other threads are in code that has its own locks.

    The child has none of those threads, so such a lock would stay taken in it.
    """

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._close, after_in_parent=self._open, after_in_child=self._reset
            )

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Makes a fork wait until the block ends."""
        with self._changed:
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def _reset(self) -> None:
        self._changed, self._inside = threading.Condition(Lock()), 0

    def _close(self) -> None:
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._inside)

    def _open(self) -> None:
        self._changed.release()


MOST_BACKGROUND = 8  # threads; only one compiler runs for each core at a time
# One thread more than cores: while one plans in Python, each core has a compiler.
BACKGROUND = Background(min((os.cpu_count() or 1) + 1, MOST_BACKGROUND))
