# SPDX-License-Identifier: Apache-2.0
"""A scheduler, and its refusal, which is a value with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from thunder_fuser.analysis.demand import axis_symbols, result_index
from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.target import Target


@dataclass(frozen=True, slots=True)
class Reject:
    """Why a scheduler does not take a part."""

    scheduler: str
    reason: str

    def __str__(self) -> str:
        return f"{self.scheduler}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Scheduler:
    """accepts: why it does not take a part, or None; schedule: None where torch runs the part."""

    name: str
    accepts: Callable[[Part, Target, CompileOptions], Reject | None]
    schedule: Callable[[Part, Target, CompileOptions, dict[str, int]], ScheduledFusion] | None


def read_elsewhere(part: Part, exprs: Iterable[OpRecord], scheduler: str) -> Reject | None:
    """Refuses the result of a reduction or scan that is read elsewhere than it is made for."""
    symbols = axis_symbols(part)
    for expr in exprs:
        name = expr.outputs[0]
        expected = result_index(part, name, symbols)
        if any(p.index != expected or not p.condition.is_const for p in part.facts.points(name)):
            return Reject(scheduler, f"{name} is read at other places than it is made for")
    return None
