# SPDX-License-Identifier: Apache-2.0
"""A scheduler: it matches a part, or refuses it with a reason; a match makes the schedule.

    Reduction.match(part, target, options)  ->  Reject("reduction: there is no reduction")
                                            or  Reduction(part, ..., kept=(i0,), reduced=(i1,))
    found.schedule(alignment)               ->  ScheduledFusion
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from thunder_fuser.analysis.demand import axis_symbols, result_index
from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import Transform
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.schedule.scheduled import HeuristicParams, ScheduledFusion, Tile
from thunder_fuser.target import Target

# What a scheduler decides: the parameters, and the transforms of the kernel's axes.
Made = tuple[HeuristicParams, tuple[Transform, ...]]


@dataclass(frozen=True, slots=True)
class Reject:
    """Why a scheduler does not take a part."""

    scheduler: str
    reason: str

    def __str__(self) -> str:
        return f"{self.scheduler}: {self.reason}"


@dataclass(frozen=True)
class Match(ABC):
    """A part that a scheduler takes. The subclass is the scheduler; it adds what it found."""

    part: Part
    target: Target
    options: CompileOptions

    name: ClassVar[str]
    makes_kernel: ClassVar[bool] = True  # else torch runs the part

    @classmethod
    @abstractmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> Match | Reject:
        """The part as this scheduler would schedule it, or why it does not take it."""

    @abstractmethod
    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion | None:
        """The schedule for arguments whose addresses these numbers of bytes divide.

        None where torch runs the part.
        """

    def scheduled(
        self,
        made: Made,
        alignment: dict[str, int],
        *,
        kept: tuple[str, ...],
        reduced: tuple[str, ...] = (),
        tile: Tile | None = None,
        rows: tuple[str, ...] = (),
    ) -> ScheduledFusion:
        """The part with these transforms of its kept and reduced axes."""
        params, transforms = made
        return ScheduledFusion(
            self.part,
            self.target,
            self.options,
            params,
            kept,
            reduced,
            transforms,
            alignment=tuple(sorted(alignment.items())),
            tile=tile,
            rows=rows,
        )


def read_elsewhere(part: Part, exprs: Iterable[OpRecord], scheduler: str) -> Reject | None:
    """Refuses the result of a reduction or scan that is read elsewhere than it is made for."""
    symbols = axis_symbols(part)
    for expr in exprs:
        name = expr.outputs[0]
        expected = result_index(part, name, symbols)
        if any(p.index != expected or not p.condition.is_const for p in part.demand.points(name)):
            return Reject(scheduler, f"{name} is read at other places than it is made for")
    return None
