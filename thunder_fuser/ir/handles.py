# SPDX-License-Identifier: Apache-2.0
"""What the calls of a definition hand out and take back: names of values, and known numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from thunder_fuser.ir.record import Number


@dataclass(frozen=True, slots=True)
class Value:
    """What an op returns and takes: the name of a tensor or of a scalar, and whose it is."""

    name: str
    owner: Any = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, repr=False)
class Scalar(Value):
    """A scalar of a definition, given at the call or computed."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A scalar known when the fusion is defined."""

    value: Number
