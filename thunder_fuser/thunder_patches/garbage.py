# SPDX-License-Identifier: Apache-2.0
"""Full garbage collections wait while Thunder compiles a function.

Python collects all generations whenever the number of a process's objects has grown by a quarter. A
trace is many objects that stay, so several full collections would visit all objects of torch and
Thunder and free next to nothing. Young generations are collected as usual, and the next full
collection runs after the trace is made.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import thunder
from thunder.core.compile_data import reset_compile_data_and_stats, set_compile_data_and_stats

from thunder_fuser.base.threads import make_lock
from thunder_fuser.thunder_patches.patch import Hooks

_LATER = 1000  # the factor on the collections of the middle generation before a full one

_NOTHING = nullcontext()
_guard = make_lock()
_waiting: list[tuple[int, int, int]] = []  # the thresholds to restore, one for each compilation


def collect_later(hooks: Hooks) -> None:
    """From now on, full collections wait while functions jitted with this executor compile."""
    of_thunder = thunder.compile_data_and_stats

    def compile_data_and_stats(data: Any, stats: Any, /) -> AbstractContextManager[None]:
        # A call counts as a miss before it compiles, and adds to the cache when it has.
        is_compiled = stats.cache_misses <= len(stats.interpreter_cache)
        if is_compiled or hooks.executor not in data.executors_list:
            return _Reset(set_compile_data_and_stats(data, stats))
        return full_collections_wait(of_thunder(data, stats))

    thunder.compile_data_and_stats = compile_data_and_stats


class _Reset(nullcontext[Any]):  # ends a block as Thunder's does, without a generator
    def __exit__(self, *_: Any) -> None:
        reset_compile_data_and_stats(self.enter_result)


@contextmanager
def full_collections_wait(inside: AbstractContextManager[Any] = _NOTHING) -> Iterator[None]:
    """Full collections wait until no thread is in such a block. The block also enters `inside`."""
    with _guard:
        _waiting.append(gc.get_threshold())
        young, middle, old = _waiting[0]
        gc.set_threshold(young, middle, old * _LATER)
    try:
        with inside:
            yield
    finally:
        with _guard:
            before, _ = _waiting[0], _waiting.pop()
            if not _waiting:
                gc.set_threshold(*before)
