# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> the programs its fusions run, their kernels, and the text of every stage."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compiler import alignments, schedule, texts, write
from thunder_fuser.errors import InputError
from thunder_fuser.executors.run.region_callable import RegionCallable
from thunder_fuser.explain.jitted import Jitted, fusions_of, graphs_of, name_of, prefixed
from thunder_fuser.explain.shown import Shown, kib, table
from thunder_fuser.host.programs.overlap import with_decisions
from thunder_fuser.host.programs.program import HostProgram
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.presegment.specialise import InputKey
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.segment.plan import Segment, with_params
from thunder_fuser.target import Target


@dataclass(frozen=True, slots=True, repr=False)
class Kernel(Shown):
    """A generated kernel.

    fusion: its fusion's name; ops: what it computes; source: its text without the device functions
    that it calls; full_source: with them; grid, block, smem_bytes: its launch; bytes_in, bytes_out:
    read from and written to memory; estimated_us: the microseconds that memory takes for these
    bytes; measured_us: those of a call, in the result of `profile`.
    """

    name: str
    fusion: str
    scheduler: str
    ops: tuple[str, ...]
    full_source: str
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int
    bytes_in: int
    bytes_out: int
    estimated_us: float
    measured_us: float | None = None

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self.fusion}: {self.scheduler}, {len(self.ops)} ops>"

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True, slots=True, repr=False)
class Kernels(Shown):
    """The kernels of every fusion, in the order they run, as a sequence."""

    name: str
    kernels: tuple[Kernel, ...]

    def __getitem__(self, at: int) -> Kernel:
        return self.kernels[at]

    def __len__(self) -> int:
        return len(self.kernels)

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self.kernels)

    def __repr__(self) -> str:
        return f"<kernels of {self.name}: {len(self)}>"

    def __str__(self) -> str:
        head = ("kernel", "fusion", "scheduler", "ops", "grid", "block", "KiB in", "KiB out")
        return table(head, [
            (row.name, row.fusion, row.scheduler, str(len(row.ops)), _sizes(row.grid),
             _sizes(row.block), kib(row.bytes_in), kib(row.bytes_out))
            for row in self
        ])  # fmt: skip


def _sizes(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


@dataclass(frozen=True)
class Compiled:
    """A program of a fusion, with the argument keys and the target that it was compiled for."""

    name: str
    fusion: Fusion
    keys: tuple[InputKey, ...]
    program: HostProgram
    target: Target

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.program.segmented.segments

    @property
    def kernels(self) -> list[tuple[Segment, KernelSource]]:
        """The segments that have a kernel, each with its source; torch runs the others."""
        kept = [segment for segment in self.segments if segment.scheduler.makes_kernel]
        return list(zip(kept, self.program.sources, strict=True))

    def plan(self) -> str:
        """The text of its plan."""
        return str(with_decisions(with_params(self.program.segmented), self.target))

    @property
    def bytes_in(self) -> int:
        """The bytes that its segments read from memory."""
        return sum(segment.part.moved[0] for segment in self.segments)

    @property
    def bytes_out(self) -> int:
        """The bytes that its segments write to memory."""
        return sum(segment.part.moved[1] for segment in self.segments)

    def described(self) -> tuple[Kernel, ...]:
        """Its kernels for a report."""
        return tuple(self._kernel(*kernel) for kernel in self.kernels)

    def _kernel(self, segment: Segment, source: KernelSource) -> Kernel:
        moved = segment.part.moved
        rate = self.target.bandwidth_bytes_per_s / 1e6
        return Kernel(
            source.name, self.name, segment.scheduler.name,
            tuple(expr.op for expr in segment.part.exprs), source.text, source.body,
            source.grid, source.block, source.smem_bytes, *moved, sum(moved) / rate,
        )  # fmt: skip

    def schedules(self) -> list[ScheduledFusion | None]:
        """The schedule of each segment, computed again; None if torch runs it."""
        alignment = alignments(self.program.segmented, self.keys)
        return [schedule(segment, alignment) for segment in self.segments]

    def texts(self) -> dict[str, str]:
        """File name -> text of a stage."""
        return texts(self.fusion, self.program.segmented, self.schedules(), self.program)


def kernels(jitted: Any) -> Kernels:
    """The kernels of every fusion of a jitted function, in the order they run.

    Raises InputError for a function that is not jitted, or was not called.
    """
    return Kernels(name_of(jitted), tuple(k for p in _programs(jitted) for k in p.described()))


def dump(jitted: Any, folder: str | Path) -> list[Path]:
    """Writes the files of the option `dump` for a function compiled before: FOLDER/NAME/fusion_N.

    Returns the folders. Raises InputError as `kernels`, OptionError if it cannot write.
    """
    if not isinstance(folder, str | Path):
        raise InputError("dump", expected="a folder, as a str or a Path", got=f"{folder!r}")
    return [write(Path(folder) / program.name, program.texts()) for program in _programs(jitted)]


def compiled(fusion: RegionCallable) -> list[Compiled]:
    """The programs that a fusion has run, one for each layout, shape and target of its calls.

    Programs that only other fusions with the same definition have run are left out. A fusion whose
    results were views of its arguments has none.
    """
    ran = {id(inspect.unwrap(run)) for run in fusion.runners}
    programs = []
    for definition in dict.fromkeys(fusion.definitions):
        entry = FusionCache.get().look_up(definition)
        for (target, _, keys, _), program in entry.held_programs():
            if id(program.run) in ran:
                programs.append(Compiled(fusion.name, entry.fusion, keys, program, target))
    return programs


class NamedFusion(NamedTuple):
    """A fusion of a graph. If torch.compile has made several graphs, the name says which one:
    graph1.thunderFusion0."""

    graph: Jitted
    name: str
    fusion: RegionCallable


def named_fusions(jitted: Any) -> list[NamedFusion]:
    """Every fusion of the function's graphs."""
    return [
        NamedFusion(graph, f"{prefix}{fusion.name}", fusion)
        for prefix, graph in prefixed(graphs_of(jitted)) for fusion in fusions_of(graph)
    ]  # fmt: skip


def _programs(jitted: Any) -> Iterator[Compiled]:
    for _, name, fusion in named_fusions(jitted):
        yield from (replace(program, name=name) for program in compiled(fusion))
