# SPDX-License-Identifier: Apache-2.0
"""Finds or makes the binary of a recipe: from memory, from the store, or with a compiler.

Each is compiled once, even if several threads and processes ask for it. At most one compiler runs
for each core. Counters show what a process has compiled.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from nvtx import annotate

from thunder_fuser.base.logs import log
from thunder_fuser.base.threads import Recent, SingleFlight, make_lock
from thunder_fuser.errors import CacheMissError
from thunder_fuser.options import option
from thunder_fuser.store.entry import Binary, Recipe
from thunder_fuser.store.inspection import why_missed
from thunder_fuser.store.store import current_store

# Binaries cached in memory, for threads that ask together, for several devices, and for kernels
# compiled ahead of their first call.
NEWEST_KEPT = 256


class Binaries(NamedTuple):
    """Counts of this process. seconds: in compilers and in the store, summed over threads."""

    compiled: int
    from_store: int
    seconds: float


def binary(recipe: Recipe, compile_it: Callable[[], bytes]) -> Binary:
    """The binary of a recipe, or of a recipe that differs only in the name.

    CacheMissError on a miss with the option assert_cache_hit.
    """
    result = _NEWEST.get(recipe.key, lambda: _stored_or_compiled(recipe, compile_it))
    if _ORIGIN.get():  # inside a block of `origin`
        with _counting:
            ahead = _ORIGINS_AHEAD.pop(recipe.key, "")
        _ORIGIN.set(ahead or _ORIGIN.get())
    return result


def binaries() -> Binaries:
    """The counts of this process so far."""
    return Binaries(_COUNTS["compiled"], _COUNTS["from_store"], _COUNTS["nanoseconds"] / 1e9)


@contextmanager
def origin() -> Iterator[Callable[[], str]]:
    """Yields a function that says where the binary came from that this thread gets inside."""
    token = _ORIGIN.set("in use already")
    try:
        yield _ORIGIN.get
    finally:
        _ORIGIN.reset(token)


def forget() -> None:
    """Clears the binaries in memory. The store and loaded kernels stay."""
    _NEWEST.values.clear()


def _stored_or_compiled(recipe: Recipe, compile_it: Callable[[], bytes]) -> Binary:
    start = time.perf_counter_ns()
    try:
        store = current_store()
        if store is None:
            return _compiled(recipe, compile_it)
        stored = store.get(recipe)
        if stored is None:
            with store.turn(recipe):
                stored = store.get(recipe)  # another process may have compiled it
                if stored is None:
                    log("cache", lambda: f"store: miss {recipe.key[:12]} {recipe.name}")
                    compiled = _compiled(recipe, compile_it)
                    store.put(recipe, compiled.code)
                    return compiled
        _count(from_store=1)
        log("cache", lambda: f"store: hit {recipe.key[:12]} {recipe.name}")
        _note_origin("found in the store", recipe)
        return stored
    finally:
        _count(nanoseconds=time.perf_counter_ns() - start)


def _compiled(recipe: Recipe, compile_it: Callable[[], bytes]) -> Binary:
    if option("assert_cache_hit"):
        raise CacheMissError(
            f"kernel {recipe.name}",
            expected="a stored binary (option assert_cache_hit)",
            got=why_missed(recipe.fields, recipe.text, current_store()),
        )
    with _slots, annotate(f"thunder_fuser.compile {recipe.name}"):
        compiled = Binary(recipe.name, compile_it())
    _count(compiled=1)
    _note_origin("compiled", recipe)
    return compiled


def _note_origin(where: str, recipe: Recipe) -> None:
    """Notes the origin of a binary. If it is made ahead, the first call that gets it reads it."""
    if _ORIGIN.get():
        _ORIGIN.set(where)
        return
    with _counting:
        _ORIGINS_AHEAD[recipe.key] = where


def _count(**more: int) -> None:
    with _counting:
        _COUNTS.update(more)


def _after_fork() -> None:
    global _slots  # noqa: PLW0603  a semaphore that other threads hold cannot be released
    _slots = threading.BoundedSemaphore(os.cpu_count() or 1)


_ORIGIN: ContextVar[str] = ContextVar("origin", default="")
_NEWEST: SingleFlight[Binary] = SingleFlight(Recent(lambda: NEWEST_KEPT))
_ORIGINS_AHEAD: Recent[str] = Recent(lambda: NEWEST_KEPT)  # of kernels compiled ahead
_COUNTS: Counter[str] = Counter()
_counting = make_lock()
_slots = threading.BoundedSemaphore(os.cpu_count() or 1)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
