# SPDX-License-Identifier: Apache-2.0
"""The parameters of programs on several devices, as one frozen object.

>>> params = MultiDeviceParams()
>>> print(params)  # doctest: +ELLIPSIS
executor.seconds=300.0, executor.early=True, executor.streams=4, lower.overlap=auto, ...
>>> params.with_(executor=dict(early=False), lower=dict(overlap="never")).lower.overlap
'never'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from thunder_fuser.errors import OptionError, unknown_name

OVERLAPS = ("auto", "never", "always")
BACKENDS = ("auto", "process_group")


@dataclass(frozen=True, slots=True)
class ExecutorParams:
    """How a program runs.

    seconds: after these, a device that does not take part in a collective counts as dead. early:
    whether a collective's wait stands before its first reader, or else directly behind it.
    streams: the number of streams for an axis that the definition splits over streams.
    """

    seconds: float = 300.0
    early: bool = True
    streams: int = 4

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, self.seconds > 0, "a positive number")
        _check("streams", self.streams, self.streams >= 1, "1 or more")


@dataclass(frozen=True, slots=True)
class LowerParams:
    """How communication is lowered.

    overlap: whether products and communication become pipelines; auto: the cost model decides.
    chunks: of each device's part; 0: the cost model decides. backend: auto for pipelines through
    memory that devices share, process_group for torch.distributed's collectives.
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
        """The same with some fields replaced. OptionError for an unknown field."""
        return MultiDeviceParams(
            _replaced(self.executor, executor or {}), _replaced(self.lower, lower or {})
        )

    def __str__(self) -> str:
        return ", ".join(f"{room}.{name}={value}" for room, name, value in self._fields())

    def _fields(self) -> Iterator[tuple[str, str, Any]]:
        for room in ("executor", "lower"):
            params = getattr(self, room)
            yield from ((room, field.name, getattr(params, field.name)) for field in fields(params))

    @staticmethod
    def parse(text: str) -> MultiDeviceParams:
        """The params from a text. Missing fields have their defaults. OptionError if it is wrong.

        >>> MultiDeviceParams.parse("lower.overlap=never, executor.seconds=60").lower.overlap
        'never'
        """
        params = MultiDeviceParams()
        types = {f"{room}.{name}": type(value) for room, name, value in params._fields()}
        for part in filter(None, text.replace(" ", "").split(",")):
            name, _, value = part.partition("=")
            if name not in types:
                raise unknown_name("MultiDeviceParams", name, types, part)
            room, _, field_name = name.partition(".")
            known = {field_name: _read(name, types[name], value)}
            params = params.with_(**{room: known})  # type: ignore[arg-type]
        return params


def _read(name: str, kind: type, text: str) -> Any:
    """A field's value from its text."""
    if kind is bool:
        words = {"true": True, "1": True, "false": False, "0": False}
        _check(name, text, text.lower() in words, "true or false")
        return words[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise OptionError(name, expected=kind.__name__, got=repr(text)) from None


def _replaced(params: Any, values: Mapping[str, Any]) -> Any:
    known = [field.name for field in fields(params)]
    for name in values:
        if name not in known:
            raise unknown_name(f"{type(params).__name__}.{name}", name, known)
    return replace(params, **values)


def _check(name: str, value: object, is_right: bool, expected: str) -> None:
    if not is_right:
        raise OptionError(f"MultiDeviceParams: {name}", expected=expected, got=repr(value))
