# SPDX-License-Identifier: Apache-2.0
"""The schedulers, in the order they are asked. The first that matches a part gets it."""

from __future__ import annotations

from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.schedule.inner_outer import InnerOuter
from thunder_fuser.schedule.nested import Nested
from thunder_fuser.schedule.pointwise import Pointwise
from thunder_fuser.schedule.reduction import Persistent, Reduction
from thunder_fuser.schedule.scan import Scan
from thunder_fuser.schedule.scheduler import Match, Reject
from thunder_fuser.schedule.torch_calls import ExprEval, NoOp
from thunder_fuser.schedule.transpose import Transpose
from thunder_fuser.target import Target

SCHEDULERS: tuple[type[Match], ...] = (
    NoOp,
    ExprEval,
    Reduction,
    Persistent,
    InnerOuter,
    Nested,
    Scan,
    Transpose,
    Pointwise,
)


def find_match(
    part: Part, target: Target, options: CompileOptions
) -> Match | tuple[Reject, ...]:
    """The match of the first scheduler that takes the part, or every refusal."""
    refusals: list[Reject] = []
    for scheduler in SCHEDULERS:
        found = scheduler.match(part, target, options)
        if isinstance(found, Match):
            return found
        refusals.append(found)
    return tuple(refusals)
