# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> the programs its fusions run, their kernels, and the text of every stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compiler import schedule, texts, write
from thunder_fuser.executors.callables import RegionCallable
from thunder_fuser.executors.traces import Jitted, fusions_of
from thunder_fuser.host.program import HostProgram
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.presegment.specialise import InputKey
from thunder_fuser.segment.plan import Segment


@dataclass(frozen=True, slots=True)
class Kernel:
    """A generated kernel: of which fusion, what it computes, its text and how it is launched."""

    name: str
    fusion: str
    scheduler: str
    ops: tuple[str, ...]
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int


@dataclass(frozen=True)
class Compiled:
    """A program of a fusion, and the keys of the arguments it was compiled for."""

    name: str
    fusion: Fusion
    keys: tuple[InputKey, ...]
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

    def texts(self) -> dict[str, str]:
        """File name -> text of a stage. The schedules are computed again."""
        segmented = self.program.segmented
        inputs = zip(segmented.fusion.inputs, self.keys, strict=True)
        alignment = {name: key.alignment for name, key in inputs}
        schedules = [schedule(one, alignment) for one in self.segments]
        return texts(self.fusion, segmented, schedules, self.program)


def kernels(jitted: Jitted) -> list[Kernel]:
    """The kernels of every fusion of a jitted function, in the order they run."""
    return [
        Kernel(
            source.name, one.name, segment.scheduler.name,
            tuple(expr.op for expr in segment.part.exprs),
            source.text, source.grid, source.block, source.smem_bytes,
        )
        for one in _programs(jitted)
        for segment, source in one.kernels
    ]  # fmt: skip


def dump(jitted: Jitted, folder: str | Path) -> list[Path]:
    """Writes what the option `dump` writes, of a function compiled before: FOLDER/NAME/fusion_N."""
    return [write(Path(folder) / one.name, one.texts()) for one in _programs(jitted)]


def compiled(one: RegionCallable) -> list[Compiled]:
    """The programs that a fusion has run, one for each layout, shape and target of its calls.

    Others may have had the same definition compiled for arguments that this one never saw. There
    are none where views were enough.
    """
    ran = set(map(id, one.runners))
    found = []
    for definition in dict.fromkeys(one.definitions):
        entry = FusionCache.get().look_up(definition)
        for (_, _, keys, _), program in entry.held_programs():
            if id(program.run) in ran:
                found.append(Compiled(one.name, entry.fusion, keys, program))
    return found


def _programs(jitted: Jitted) -> Iterator[Compiled]:
    for one in fusions_of(jitted):
        yield from compiled(one)
