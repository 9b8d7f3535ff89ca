# SPDX-License-Identifier: Apache-2.0
"""What Thunder notes on a jitted function while it traces -> each thread has its own.

    thread 1: jitted(x)                          thread 2: with torch.no_grad(): jitted(x)

    data.is_grad_enabled = True
                                                 data.is_grad_enabled = False
    traces; all results are tagged: no gradient       before: one value for both threads

A call writes torch's grad mode and autocast to the function's CompileData, tracing reads it there,
and the call's end sets torch's grad mode from it. With several threads, a program without gradients
was stored under the key with them, and a thread's grad mode was another's. Replaced: the attributes
`is_grad_enabled` and `autocast_stack` of CompileData, by descriptors; and `disable_autocast` and
`is_autocast_enabled`, a global: while one thread cast a product's operands, no other thread did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import local
from typing import Any

from thunder.common import CompileData
from thunder.core.utils import AutocastStack
from thunder.transforms import autocast

from thunder_fuser.thunder_patches.patch import Hooks


def keep_state_by_thread(_: Hooks) -> None:
    """From now on, threads that trace one jitted function do not see each other's state."""
    CompileData.is_grad_enabled = _OfThread("is_grad_enabled", lambda: True)
    CompileData.autocast_stack = _OfThread("autocast_stack", AutocastStack)
    autocast.is_autocast_enabled, autocast.disable_autocast = _casts.get, _without_casts


_casts: ContextVar[bool] = ContextVar("casts", default=True)


@contextmanager
def _without_casts() -> Iterator[None]:
    token = _casts.set(False)
    try:
        yield
    finally:
        _casts.reset(token)


class _PerThread(local):
    """A value for each thread, made at its first use."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.value = make()


class _OfThread:
    """An attribute with one value a thread and object. make: the value of a new thread."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._key, self._make = f"{name} of threads", make

    def __get__(self, data: Any, owner: type | None = None) -> Any:
        if data is None:
            return self
        try:  # tracing reads it for each operation: no call if it is there
            return data.__dict__[self._key].value
        except KeyError:
            return data.__dict__.setdefault(self._key, _PerThread(self._make)).value

    def __set__(self, data: Any, value: Any) -> None:
        known = data.__dict__
        (known.get(self._key) or known.setdefault(self._key, _PerThread(self._make))).value = value
