# SPDX-License-Identifier: Apache-2.0
"""What programs on several devices do, as one frozen object.

>>> params = MultiDeviceParams()
>>> params.executor.seconds
300.0
>>> params.with_(executor=dict(early=False), lower=dict(overlap="never")).lower.overlap
'never'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from thunder_fuser.errors import OptionError, nearest

OVERLAPS = ("auto", "never", "always")
BACKENDS = ("auto", "process_group")


@dataclass(frozen=True, slots=True)
class ExecutorParams:
    """How a program runs.

    seconds: after which a device that has not come to a collective counts as dead. early:
    collectives are posted early, and awaited by what reads them; else each is awaited at once.
    """

    seconds: float = 300.0
    early: bool = True

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, self.seconds > 0, "a positive number")


@dataclass(frozen=True, slots=True)
class LowerParams:
    """What communication becomes.

    overlap: whether products and communication become pipelines: auto asks the cost model. chunks:
    of each device's part; 0: as the cost model says. backend: process_group for collectives of
    torch.distributed in place of pipelines.
    """

    overlap: str = "auto"
    chunks: int = 0
    backend: str = "auto"

    def __post_init__(self) -> None:
        for name, known in (("overlap", OVERLAPS), ("backend", BACKENDS)):
            value = getattr(self, name)
            _check(name, value, value in known, f"one of {', '.join(known)}")
        _check("chunks", self.chunks, self.chunks >= 0, "0 or more")


@dataclass(frozen=True, slots=True)
class MultiDeviceParams:
    """executor: how programs run. lower: what communication becomes."""

    executor: ExecutorParams = field(default_factory=ExecutorParams)
    lower: LowerParams = field(default_factory=LowerParams)

    def with_(
        self, *, executor: Mapping[str, Any] | None = None, lower: Mapping[str, Any] | None = None
    ) -> MultiDeviceParams:
        """The same with some fields replaced. OptionError for a field that is not there."""
        return MultiDeviceParams(
            _replaced(self.executor, executor or {}), _replaced(self.lower, lower or {})
        )


def _replaced(params: Any, values: Mapping[str, Any]) -> Any:
    known = [one.name for one in fields(params)]
    for name in values:
        if name not in known:
            what, near = f"{type(params).__name__}.{name}", nearest(name, known)
            expected, do = f"one of {', '.join(known)}", f"write {near}" * bool(near)
            raise OptionError(what, expected=expected, got=name, do=do)
    return replace(params, **values)


def _check(name: str, value: object, is_right: bool, expected: str) -> None:
    if not is_right:
        raise OptionError(f"MultiDeviceParams: {name}", expected=expected, got=repr(value))
