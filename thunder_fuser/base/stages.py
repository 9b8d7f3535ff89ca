# SPDX-License-Identifier: Apache-2.0
"""Times the stages of a compilation. A stage's time excludes the stages inside it.

    with timed() as found:
        model(x)
    found    {"claim": Spent(0.012, 1), "record": Spent(0.003, 24), "compile": Spent(0.9, 2), ...}

Outside of `timed` a stage costs one comparison. Each thread has its own clock, so stages that run
on two threads at once count twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter

STAGES = (
    "claim", "record", "look up", "define", "specialise", "segment", "schedule", "lower", "emit",
    "compile", "plan",
)  # fmt: skip


@dataclass
class Spent:
    """Seconds in a stage, and the number of calls."""

    seconds: float = 0.0
    calls: int = 0


_watchers: list[dict[str, Spent]] = []
# The times that `collected` collects in this thread.
_collecting: ContextVar[dict[str, Spent] | None] = ContextVar("collecting", default=None)
# The seconds of the stages inside this thread's current stage.
_inside: ContextVar[list[float] | None] = ContextVar("inside", default=None)


@contextmanager
def timed() -> Iterator[Mapping[str, Spent]]:
    """Collects the time of each stage until the block ends."""
    times: dict[str, Spent] = {}
    _watchers.append(times)
    try:
        yield times
    finally:
        del _watchers[next(at for at, watcher in enumerate(_watchers) if watcher is times)]


def spent() -> dict[str, float]:
    """{stage: seconds} of the innermost `timed` block; empty outside of one."""
    return {name: time.seconds for name, time in _watchers[-1].items()} if _watchers else {}


@contextmanager
def collected() -> Iterator[Mapping[str, Spent]]:
    """Collects the time of each stage in this thread until the block ends."""
    times: dict[str, Spent] = {}
    token = _collecting.set(times)
    try:
        yield times
    finally:
        _collecting.reset(token)


def is_collected() -> bool:
    """True inside `collected`, in this thread."""
    return _collecting.get() is not None


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Adds the block's time to the stage's. It is also a decorator."""
    collector = _collecting.get()
    if not _watchers and collector is None:
        yield
        return
    outer, inner = _inside.get(), [0.0]
    token = _inside.set(inner)
    start = perf_counter()
    try:
        yield
    finally:
        whole = perf_counter() - start
        _inside.reset(token)
        if outer is not None:
            outer[0] += whole
        for times in [*_watchers] if collector is None else [*_watchers, collector]:
            spent = times.setdefault(name, Spent())
            spent.seconds += whole - inner[0]
            spent.calls += 1
