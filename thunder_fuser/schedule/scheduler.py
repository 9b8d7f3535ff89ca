# SPDX-License-Identifier: Apache-2.0
"""A scheduler, and its refusal, which is a value with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thunder_fuser.analysis.part import Part
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
    """accepts(part, target) -> Reject or None; schedule(part, target, alignment); None: torch."""

    name: str
    accepts: Callable[[Part, Target], Reject | None]
    schedule: Callable[[Part, Target, dict[str, int]], ScheduledFusion] | None
