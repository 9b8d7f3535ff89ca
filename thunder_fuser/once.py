# SPDX-License-Identifier: Apache-2.0
"""Locks that a forked child gets free, and a table that makes each missing value once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, MutableMapping
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


class Once(Generic[V]):
    """A table that makes each missing value once, whoever asks; different keys at the same time.

    values: where they are kept. One that forgets (weak, or bounded) has forgotten values made anew.
    """

    def __init__(self, values: MutableMapping[Hashable, V]) -> None:
        self.values = values
        self._makers: dict[Hashable, threading.Lock] = {}
        self._guard = make_lock()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of `key`; made now if it is missing. A failure is not remembered."""
        with self._guard:
            found = self.values.get(key)
            if found is not None:
                return found
            maker = self._makers.setdefault(key, make_lock())
        with maker:
            return self._get_or_make(key, make)

    def _get_or_make(self, key: Hashable, make: Callable[[], V]) -> V:
        with self._guard:
            found = self.values.get(key)
        if found is not None:  # another thread made it meanwhile
            return found
        try:
            value = make()
            with self._guard:
                self.values[key] = value
            return value
        finally:
            with self._guard:
                self._makers.pop(key, None)
