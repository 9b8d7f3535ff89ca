# SPDX-License-Identifier: Apache-2.0
"""The schedulers, in the order they are asked. The first that accepts a part gets it."""

from __future__ import annotations

from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.schedule import (
    inner_outer,
    nested,
    pointwise,
    reduction,
    scan,
    torch_calls,
    transpose,
)
from thunder_fuser.schedule.scheduler import Reject, Scheduler
from thunder_fuser.target import Target

SCHEDULERS: tuple[Scheduler, ...] = (
    Scheduler("no_op", torch_calls.accepts_no_op, None),
    Scheduler("expr_eval", torch_calls.accepts_expr_eval, None),
    Scheduler("reduction", reduction.accepts_reduction, reduction.schedule_reduction),
    Scheduler("persistent", reduction.accepts_persistent, reduction.schedule_persistent),
    Scheduler(inner_outer.NAME, inner_outer.accepts, inner_outer.schedule),
    Scheduler(nested.NAME, nested.accepts, nested.schedule),
    Scheduler(scan.NAME, scan.accepts, scan.schedule),
    Scheduler(transpose.NAME, transpose.accepts, transpose.schedule),
    Scheduler(pointwise.NAME, pointwise.accepts, pointwise.schedule),
)


def find_scheduler(
    part: Part, target: Target, options: CompileOptions
) -> Scheduler | tuple[Reject, ...]:
    """The scheduler that takes the part, or every refusal."""
    refusals: list[Reject] = []
    for scheduler in SCHEDULERS:
        refusal = scheduler.accepts(part, target, options)
        if refusal is None:
            return scheduler
        refusals.append(refusal)
    return tuple(refusals)
