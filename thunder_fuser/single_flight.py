# SPDX-License-Identifier: Apache-2.0
"""Locks that a forked child gets free; a table that makes each value once, and a bounded one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakSet

V = TypeVar("V")


def make_lock() -> threading.Lock:
    """A lock that is free in a forked child, whatever thread of the parent held it."""
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def _free_all() -> None:
    """As threading's own locks do it."""
    for lock in list(_LOCKS):
        lock._at_fork_reinit()  # type: ignore[attr-defined]


_LOCKS: WeakSet[threading.Lock] = WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)


@dataclass(slots=True)
class _Turn:
    """Who makes a value now, and how many wait to see it: they stay in one line, also where the
    value is forgotten at once."""

    lock: threading.Lock = field(default_factory=make_lock)
    users: int = 0


class SingleFlight(Generic[V]):
    """A table that makes each missing value once, whoever asks; different keys at the same time.

    values: where they are kept. One that forgets (weak, or bounded) has forgotten values made anew.
    """

    def __init__(self, values: MutableMapping[Hashable, V]) -> None:
        self.values = values
        self._turns: dict[Hashable, _Turn] = {}
        self._guard = make_lock()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of `key`; made now if it is missing. A failure is not remembered."""
        with self._guard:
            found = self.values.get(key)
            if found is not None:
                return found
            turn = self._turns.setdefault(key, _Turn())
            turn.users += 1
        try:
            with turn.lock:
                return self._get_or_make(key, make)
        finally:
            with self._guard:
                turn.users -= 1
                if not turn.users:
                    self._turns.pop(key, None)

    def _get_or_make(self, key: Hashable, make: Callable[[], V]) -> V:
        with self._guard:
            found = self.values.get(key)
        if found is not None:  # another thread made it meanwhile
            return found
        value = make()
        with self._guard:
            self.values[key] = value
        return value


def first_time(cause: Hashable) -> bool:
    """Whether nobody has asked for this cause yet: a warning is given once for each.

    Python's own filters tell warnings apart by their text, which may name the kernel or a file.
    """
    mine = object()
    return WARNED.keep(cause, mine) is mine


class Bounded(Generic[V]):
    """A table of at most `most` values, from which the oldest goes. Safe under threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: dict[Hashable, V] = {}
        self._guard = make_lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> V | None:
        """The value of `key`, if it is there."""
        return self._values.get(key)

    def keep(self, key: Hashable, value: V) -> V:
        """The table's own value for the key: this one if it had none."""
        with self._guard:
            value = self._values.setdefault(key, value)
            if len(self._values) > self.most:
                del self._values[next(iter(self._values))]
        return value


WARNED: Bounded[object] = Bounded(4096)
