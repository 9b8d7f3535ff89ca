# SPDX-License-Identifier: Apache-2.0
"""What calls of a definition take and return: names of values, and constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import Definition, Number, Operand, OpRecord


class Owner(Protocol):
    """The definition that a value belongs to: `language.Recorder`, as its values see it."""

    @property
    def records(self) -> Definition:
        """The calls so far."""

    def record(self, record: OpRecord) -> None:
        """Appends one call."""

    def view_of(self, name: str) -> TensorView:
        """The type and the axes of a value."""

    def operand(self, value: Any, call: str, name: str) -> Operand:
        """The name or Literal of an argument."""


@dataclass(frozen=True, slots=True)
class Value:
    """What an op returns and takes: the name of a tensor or of a scalar, and its definition."""

    name: str
    owner: Owner | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, repr=False)
class Scalar(Value):
    """A scalar of a definition, given at the call or computed."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A scalar known when the fusion is defined."""

    value: Number
