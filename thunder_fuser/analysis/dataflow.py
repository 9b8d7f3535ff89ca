# SPDX-License-Identifier: Apache-2.0
"""Expressions with their inputs and outputs, and the axes that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from thunder_fuser.analysis.domain_map import DomainMap, is_one
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.ir.scalar import Scalar


@dataclass(frozen=True)
class Dataflow:
    """Expressions in order; names read from outside; names made here and wanted outside."""

    exprs: tuple[OpRecord, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, TensorView] = field(compare=False, repr=False)
    domain_map: DomainMap = field(compare=False, repr=False)

    @cached_property
    def producer(self) -> Mapping[str, OpRecord]:
        """The expression that makes each value."""
        return {name: expr for expr in self.exprs for name in expr.outputs}

    @cached_property
    def extents(self) -> Mapping[str, Scalar]:
        """The extent of every axis class."""
        found: dict[str, Scalar] = {}
        for name in dict.fromkeys([*self.inputs, *self.producer]):
            for axis in self.tensors[name].domain.logical:
                if not is_one(axis):
                    found[self.domain_map.axis(axis)] = axis.extent
        return found
