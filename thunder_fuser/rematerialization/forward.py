# SPDX-License-Identifier: Apache-2.0
"""The forward of a trace, as the choice of what its backward keeps needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunder_fuser.base.threads import cached_property
from thunder_fuser.rematerialization.policy import Tags


@dataclass(frozen=True, slots=True)
class ForwardValue:
    """A result of the forward; needed: the backward reads it."""

    name: str
    bytes: int
    needed: bool = False
    tags: Tags = frozenset()


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the forward. refusal: why no kernel recomputes it, or empty; region: the
    number of its region, None if torch runs it; repeated: the arithmetic of computing its results
    more than once, where the backward broadcasts them; product: the arithmetic of a matrix product
    that torch can run again, as if of 16-bit floats."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[ForwardValue, ...]
    operations: int = 0
    refusal: str = ""
    region: int | None = None
    repeated: int = 0
    product: int = 0


@dataclass(frozen=True)
class Forward:
    """A forward, in an order in which it can run; arguments: {name: its bytes}."""

    operations: tuple[Operation, ...]
    arguments: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def values(self) -> dict[str, ForwardValue]:
        return {value.name: value for op in self.operations for value in op.outputs}

    @cached_property
    def maker(self) -> dict[str, int]:
        numbered = enumerate(self.operations)
        return {value.name: at for at, op in numbered for value in op.outputs}
