# SPDX-License-Identifier: Apache-2.0
"""Times the calls of a host program's functions.

    clock = Clock(on_cuda=False)
    with watched(program.run.__globals__, {"kernel_0": "the sum"}, clock):
        program.run(x)
    clock.microseconds()                     {"the sum": [12.5]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch


class Clock:
    """The start and end of each call, by the name given to its function."""

    def __init__(self, on_cuda: bool) -> None:
        self._on_cuda = on_cuda
        self.found: dict[str, list[tuple[Any, Any]]] = {}

    def _now(self) -> Any:
        if not self._on_cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a record of each call's start and end."""
        calls = self.found.setdefault(name, [])

        def call(*args: Any, **kwargs: Any) -> Any:
            start = self._now()
            result = function(*args, **kwargs)
            calls.append((start, self._now()))
            return result

        return call

    def microseconds(self) -> dict[str, list[float]]:
        """{name: the duration of each call}. Waits for the device."""
        if self._on_cuda:
            torch.cuda.synchronize()
        return {
            name: [
                1e3 * start.elapsed_time(end) if self._on_cuda else 1e6 * (end - start)
                for start, end in calls
            ]
            for name, calls in self.found.items()
        }


@contextmanager
def watched(scope: dict[str, Any], names: dict[str, Any], clock: Clock) -> Iterator[None]:
    """Times the functions under some keys of a scope until the block ends. names: {key: the name
    for the clock}."""
    before = {key: scope[key] for key in names}
    around = {key: clock.timed(name, scope[key]) for key, name in names.items()}
    scope.update(around)
    try:
        yield
    finally:
        for key, function in before.items():
            if scope.get(key) is around[key]:
                scope[key] = function
