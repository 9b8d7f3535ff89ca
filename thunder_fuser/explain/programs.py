# SPDX-License-Identifier: Apache-2.0
"""A fusion of a trace -> its compiled programs, with the key each was compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compiler import schedule
from thunder_fuser.executors.callables import RegionCallable
from thunder_fuser.host.program import HostProgram
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.presegment.specialise import InputKey
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.segment.plan import Segment
from thunder_fuser.target import Target


@dataclass(frozen=True)
class Compiled:
    """A program of a fusion, and what it was compiled for."""

    name: str
    fusion: Fusion
    keys: tuple[InputKey, ...]
    target: Target
    program: HostProgram

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.program.segmented.segments

    @property
    def kernels(self) -> list[tuple[Segment, KernelSource]]:
        """The segments that have a kernel, with it; torch runs the others."""
        own = [one for one in self.segments if one.scheduler.makes_kernel]
        return list(zip(own, self.program.sources, strict=True))

    @property
    def bytes_in(self) -> int:
        """What its segments read from memory."""
        return sum(one.part.bytes_of(n) for one in self.segments for n in one.part.inputs)

    @property
    def bytes_out(self) -> int:
        """What its segments write to memory."""
        return sum(one.part.bytes_of(n) for one in self.segments for n in one.part.outputs)

    def schedules(self) -> list[ScheduledFusion | None]:
        """The schedule of each segment, computed again; None where torch runs it."""
        alignment = {
            name: key.alignment
            for name, key in zip(self.program.segmented.fusion.inputs, self.keys, strict=True)
        }
        return [schedule(one, alignment) for one in self.segments]


def compiled(one: RegionCallable) -> list[Compiled]:
    """The programs that a fusion has run, one for each layout, shape and target of its calls.

    Others may have had the same definition compiled for arguments that this one never saw. There
    are none where views were enough.
    """
    ran = set(map(id, one.runners))
    found = []
    for definition in dict.fromkeys(one.definitions):
        entry = FusionCache.get().look_up(definition)
        for (target, _, keys, _), program in entry.held_programs():
            if id(program.run) in ran:
                found.append(Compiled(one.name, entry.fusion, keys, target, program))
    return found
