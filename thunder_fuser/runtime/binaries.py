# SPDX-License-Identifier: Apache-2.0
"""A recipe -> its binary: from memory, from the store, or from a compiler.

Each is compiled once, even if several threads and processes ask for it. At most as many compile
at a time as there are cores. Counters show what a process has compiled.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import NamedTuple

from nvtx import annotate

from thunder_fuser.errors import CacheMissError
from thunder_fuser.options import option
from thunder_fuser.single_flight import SingleFlight
from thunder_fuser.store.entry import Recipe
from thunder_fuser.store.explain import why_missed
from thunder_fuser.store.store import current_store

STATS_KEPT = 4096
NEWEST_KEPT = 64  # binaries cached in memory, for threads that ask together and for several devices


class CompileStat(NamedTuple):
    """One run of a compiler."""

    name: str
    arch: str
    milliseconds: float


class Binaries(NamedTuple):
    """Counts of this process. seconds: in compilers and in the store, summed over threads."""

    compiled: int
    from_store: int
    seconds: float


class _Newest(OrderedDict[Hashable, bytes]):
    def __setitem__(self, key: Hashable, value: bytes) -> None:
        super().__setitem__(key, value)
        while len(self) > NEWEST_KEPT:
            del self[next(iter(self))]


def binary(recipe: Recipe, compile_it: Callable[[], bytes]) -> bytes:
    """The binary of a recipe. CacheMissError on a miss with the option assert_cache_hit."""
    return _NEWEST.get(recipe.key, lambda: _found_or_made(recipe, compile_it))


def compile_stats() -> list[CompileStat]:
    """The latest compilations of this process, oldest first."""
    return list(_STATS)


def binaries() -> Binaries:
    """What this process has compiled and found so far."""
    return Binaries(_COUNTS["compiled"], _COUNTS["from_store"], _COUNTS["nanoseconds"] / 1e9)


def forget() -> None:
    """Clears the binaries in memory. The store and loaded kernels stay."""
    _NEWEST.values.clear()


def _found_or_made(recipe: Recipe, compile_it: Callable[[], bytes]) -> bytes:
    start = time.perf_counter_ns()
    try:
        store = current_store()
        found = None if store is None else store.get(recipe)
        if found is not None or store is None:
            return _counted(found) if found is not None else _compiled(recipe, compile_it)
        with store.turn(recipe):
            found = store.get(recipe)  # another process may have compiled it
            if found is not None:
                return _counted(found)
            made = _compiled(recipe, compile_it)
            store.put(recipe, made)
            return made
    finally:
        _count("nanoseconds", time.perf_counter_ns() - start)


def _counted(found: bytes) -> bytes:
    _count("from_store", 1)
    return found


def _compiled(recipe: Recipe, compile_it: Callable[[], bytes]) -> bytes:
    if option("assert_cache_hit"):
        raise CacheMissError(
            f"kernel {recipe.name}",
            expected="a stored binary (option assert_cache_hit)",
            got=why_missed(recipe.fields, recipe.text, current_store()),
        )
    with _slots, annotate(f"thunder_fuser.compile {recipe.name}"):
        start = time.perf_counter()
        made = compile_it()
        milliseconds = (time.perf_counter() - start) * 1e3
    _STATS.append(CompileStat(recipe.name, recipe.arch, milliseconds))
    _count("compiled", 1)
    return made


def _count(name: str, amount: int) -> None:
    with _counting:
        _COUNTS[name] += amount


def _after_fork() -> None:
    global _slots, _counting
    _slots, _counting = threading.BoundedSemaphore(os.cpu_count() or 1), threading.Lock()


_STATS: deque[CompileStat] = deque(maxlen=STATS_KEPT)
_COUNTS: Counter[str] = Counter()
_NEWEST: SingleFlight[bytes] = SingleFlight(_Newest())
_slots = threading.BoundedSemaphore(os.cpu_count() or 1)
_counting = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
