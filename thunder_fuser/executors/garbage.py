# SPDX-License-Identifier: Apache-2.0
"""Full collections of garbage wait while Thunder compiles a function.

Python collects all generations whenever the objects of a process have grown by a quarter. A trace
is many objects that stay, so each of several collections visits what torch and Thunder have loaded
and finds next to nothing. Young garbage is collected as always. What has waited is collected once,
when the trace is made.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import thunder

from thunder_fuser.threads import make_lock

_LATER = 1000  # times as many collections of the middle generation come before a full one

_NOTHING = nullcontext()
_guard = make_lock()
_waiting: list[tuple[int, int, int]] = []  # the thresholds to restore, one for each compilation


def collect_later(executor: str) -> None:
    """From now on full collections wait for functions that are jitted with this executor."""
    of_thunder = thunder.compile_data_and_stats

    def compile_data_and_stats(data: Any, stats: Any, /) -> AbstractContextManager[None]:
        # A call counts as a miss before it compiles; what it has compiled is in the cache then.
        is_compiled = stats.cache_misses <= len(stats.interpreter_cache)
        if is_compiled or all(one.name != executor for one in data.executors_list):
            return of_thunder(data, stats)  # type: ignore[no-any-return]
        return full_collections_wait(of_thunder(data, stats))

    thunder.compile_data_and_stats = compile_data_and_stats


@contextmanager
def full_collections_wait(inside: AbstractContextManager[Any] = _NOTHING) -> Iterator[None]:
    """Until the block ends, of all threads that are in one; the block is also in `inside`."""
    with _guard:
        _waiting.append(gc.get_threshold())
        young, middle, old = _waiting[0]
        gc.set_threshold(young, middle, old * _LATER)
    try:
        with inside:
            yield
    finally:
        with _guard:
            before = _waiting[0]
            _waiting.pop()
            if not _waiting:
                gc.set_threshold(*before)
