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
_own: ContextVar[dict[str, Spent] | None] = ContextVar("own", default=None)
# The seconds of the stages inside this thread's current stage.
_inside: ContextVar[list[float] | None] = ContextVar("inside", default=None)


@contextmanager
def timed() -> Iterator[Mapping[str, Spent]]:
    """Collects the time of each stage until the block ends."""
    found: dict[str, Spent] = {}
    _watchers.append(found)
    try:
        yield found
    finally:
        del _watchers[next(at for at, one in enumerate(_watchers) if one is found)]


def spent() -> dict[str, float]:
    """{stage: seconds} of the innermost `timed` block; empty outside of one."""
    return {name: one.seconds for name, one in _watchers[-1].items()} if _watchers else {}


@contextmanager
def collected() -> Iterator[Mapping[str, Spent]]:
    """Collects the time of each stage in this thread until the block ends."""
    found: dict[str, Spent] = {}
    token = _own.set(found)
    try:
        yield found
    finally:
        _own.reset(token)


def is_collected() -> bool:
    """True inside `collected`, in this thread."""
    return _own.get() is not None


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Adds the block's time to the stage's. It is also a decorator."""
    own = _own.get()
    if not _watchers and own is None:
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
        for found in [*_watchers] if own is None else [*_watchers, own]:
            spent = found.setdefault(name, Spent())
            spent.seconds += whole - inner[0]
            spent.calls += 1
