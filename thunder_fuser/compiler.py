# SPDX-License-Identifier: Apache-2.0
"""The compiler from a Fusion to a HostProgram, one stage a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from time import perf_counter

import nvtx
import torch

from thunder_fuser.analysis.names import kernel_name
from thunder_fuser.base.dump import (
    FUSION,
    KERNEL,
    LOG,
    PASSES,
    PROGRAM,
    SCHEDULE,
    SEGMENTS,
    SPECIALISED,
    Dump,
    new_folder,
    not_writable,
    write_texts,
)
from thunder_fuser.base.failures import explaining
from thunder_fuser.base.logs import log
from thunder_fuser.base.stages import stage
from thunder_fuser.base.threads import run_jobs
from thunder_fuser.cache.computed import computed
from thunder_fuser.codegen.cpu import emit_cpu
from thunder_fuser.codegen.cuda import emit_cuda
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.errors import CompileError, GivenScheduleError
from thunder_fuser.host.programs.launchers import Launcher, build, launcher_for
from thunder_fuser.host.programs.program import HostProgram, plan
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.lower.lower import lower
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import InputKey, specialise
from thunder_fuser.runtime.binaries import origin
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.schedule.scheduler import KernelMatch
from thunder_fuser.schedule.written.schedule import ScheduleSource, given_schedule
from thunder_fuser.segment.canonical import canonical
from thunder_fuser.segment.donate import with_donations
from thunder_fuser.segment.plan import Segment, SegmentedFusion, numbered, with_params
from thunder_fuser.segment.segmenter import segment
from thunder_fuser.sharding.localise import FUSION_PASSES
from thunder_fuser.target import Target


@dataclass(frozen=True)
class Planned:
    """The kernels of a fusion as text, None for a segment that torch runs. dump: of its stages."""

    segmented: SegmentedFusion
    sources: tuple[KernelSource | None, ...]
    dump: Dump


@nvtx.annotate("thunder_fuser.compile")
def compile_fusion(  # noqa: PLR0917  the five of a plan, and the plan
    fusion: Fusion,
    keys: tuple[InputKey, ...],
    target: Target,
    options: CompileOptions,
    device: torch.device,
    planned: Planned | None = None,
) -> HostProgram:
    """Compiles a fusion for arguments with these keys, on a device. planned: the result of an
    earlier `plan_kernels`, whose kernels are compiled or being compiled."""
    is_ahead, dump = planned is not None, planned.dump if planned else Dump(options.dump)
    with explaining(dump):
        planned = planned or plan_kernels(fusion, keys, target, options, dump)
        segmented = planned.segmented
        pairs = zip(segmented.segments, planned.sources, strict=True)
        jobs = [
            partial(_launcher, number, segment, source, target, device)
            for number, (segment, source) in enumerate(pairs)
        ]
        with stage("compile"):
            # Loading is faster than starting a thread while other threads run Python.
            launchers = [job() for job in jobs] if is_ahead else run_jobs(jobs, threads=4)
        with stage("plan"):
            program = plan(segmented, launchers, device, options.multi_device)
            return dump.add(PROGRAM, program)


def plan_kernels(
    fusion: Fusion,
    keys: tuple[InputKey, ...],
    target: Target,
    options: CompileOptions,
    dump: Dump,
) -> Planned:
    """The segments and kernels of a fusion for arguments with these keys. Compiles nothing.

    They are found in the store if an earlier process has planned them, unless schedules are given
    or each stage is dumped.
    """

    def plan() -> Planned:
        segmented = plan_segments(fusion, keys, target, options, dump)
        sources = []
        for number, scheduled in enumerate(schedules(segmented, keys, options)):
            sources.append(emit(dump.add(SCHEDULE.format(number), scheduled)))
            dump.add(_kernel_file(number, sources[-1]), sources[-1], attrgetter("text"))
        return Planned(segmented, tuple(sources), dump)

    if options.schedules or options.dump:
        return plan()
    return replace(computed((fusion.definition, keys, target, options), plan), dump=dump)


def build_kernels(planned: Planned, target: Target) -> None:
    """Compiles the kernels but loads none, so that `compile_fusion` finds their binaries."""
    sources = {source.text: source for source in planned.sources if source is not None}
    with stage("compile"):
        run_jobs([partial(build, source, target) for source in sources.values()], threads=4)


def _launcher(
    number: int, segment: Segment, source: KernelSource | None, target: Target, device: torch.device
) -> Launcher:
    """Makes the segment's launcher, and logs its kernel."""
    start = perf_counter()
    try:
        with origin() as where:
            launcher = launcher_for(segment.part, source, target, device)
            if source is not None:
                seconds, how = perf_counter() - start, where()
                log("kernels", lambda: _kernel_text(segment, source, seconds, how))
        return launcher
    except CompileError as error:
        error.files = (_kernel_file(number, source), LOG.format(number))
        raise


def _kernel_text(segment: Segment, source: KernelSource, seconds: float, how: str) -> str:
    """The kernel's line in the log: scheduler, bytes read and written, origin, time."""
    bytes_in, bytes_out = segment.part.moved
    return (
        f"{source.name}: {segment.scheduler.name}, reads {bytes_in / 1024:.1f} KiB,"
        f" writes {bytes_out / 1024:.1f} KiB, {how} in {1e3 * seconds:.1f} ms"
    )


def write(root: Path, texts: Mapping[str, str]) -> Path:
    """Writes a dump into a new folder of `root`: fusion_0, fusion_1, ... Returns the folder."""
    try:
        folder = new_folder(root)
        write_texts(folder, texts)
        return folder
    except OSError as error:
        raise not_writable(root, error) from error


def texts(
    fusion: Fusion,
    segmented: SegmentedFusion,
    scheduled: Sequence[ScheduledFusion | None],
    program: HostProgram,
) -> dict[str, str]:
    """{file name in a dump: the result of a stage as text} for a program that is compiled."""
    files = {
        FUSION: str(fusion),
        SPECIALISED: str(segmented.fusion),
        SEGMENTS: str(with_params(segmented)),
    }
    sources = iter(program.sources)
    for number, decided in enumerate(scheduled):
        if decided is not None:
            source = next(sources)
            files[SCHEDULE.format(number)] = str(decided)
            files[_kernel_file(number, source)] = source.text
    return {**files, PROGRAM: str(program)}


def _kernel_file(number: int, source: KernelSource | None) -> str:
    is_cuda = source is not None and source.dialect == "cuda"
    return KERNEL.format(number, "cu" if is_cuda else "cpp")


def plan_segments(
    fusion: Fusion,
    keys: tuple[InputKey, ...],
    target: Target,
    options: CompileOptions,
    dump: Dump | None = None,
) -> SegmentedFusion:
    """The segments of a fusion for arguments with these keys. Compiles nothing."""
    dump, options = dump or Dump(""), options.of_stages
    dump.add(FUSION, fusion)
    note = partial(dump.add, PASSES, text=lambda fired: "\n".join([*map(str, fired), ""]))
    with stage("specialise"):
        passed = run_passes(specialise(fusion, keys), options, target, note, FUSION_PASSES)
        known = dump.add(SPECIALISED, passed)
    with stage("segment"):
        segmented = with_donations(segment(known, target, options))
    return dump.add(SEGMENTS, segmented, with_params)


def kernel_sources(
    fusion: Fusion, keys: tuple[InputKey, ...], target: Target, options: CompileOptions
) -> tuple[KernelSource, ...]:
    """The kernels of a fusion for arguments with these keys, as text. Compiles nothing."""
    emitted = map(emit, schedules(plan_segments(fusion, keys, target, options), keys, options))
    return tuple(source for source in emitted if source is not None)


def schedules(
    segmented: SegmentedFusion, keys: tuple[InputKey, ...], options: CompileOptions
) -> list[ScheduledFusion | None]:
    """The schedule of each segment, given or the scheduler's own; None where torch runs it."""
    alignment, fixed = alignments(segmented, keys), numbered(segmented, options.schedules)
    return [schedule(s, alignment, fixed.get(n)) for n, s in enumerate(segmented.segments)]


def alignments(segmented: SegmentedFusion, keys: tuple[InputKey, ...]) -> dict[str, int]:
    """{name in the specialised fusion: alignment of the argument}. The names differ from those of
    the definition if a pass removed an op before an input.
    """
    inputs = segmented.fusion.inputs
    return {name: key.alignment for name, key in zip(inputs, keys, strict=True)}


@stage("schedule")
def schedule(
    segment: Segment, alignment: dict[str, int], source: ScheduleSource | None = None
) -> ScheduledFusion | None:
    """The segment's schedule, with canonical names; None if torch runs the segment.

    source: a text or a function that schedules it; ScheduleError if that is not legal.
    """
    if source is not None and not segment.scheduler.takes_schedules:
        expected = "a segment with a kernel and one schedule"
        raise GivenScheduleError("schedules", expected=expected, got=segment.scheduler.name)
    if not segment.scheduler.makes_kernel:
        return None
    part, names = canonical(segment.part)
    taken = dict(segment.part.overwrites)
    known = {
        names[name]: alignment[where]
        for name in (*segment.part.inputs, *taken) if (where := taken.get(name, name)) in alignment
    }
    renamed = segment.scheduler.match(part, segment.match.target, segment.match.options)
    assert isinstance(renamed, KernelMatch)  # a match does not depend on names or on axes' order
    return renamed.schedule(known) if source is None else given_schedule(renamed, source, known)


def emit(scheduled: ScheduledFusion | None) -> KernelSource | None:
    """The kernel's source; None if torch runs the segment."""
    if scheduled is None:
        return None
    with stage("lower"):
        kernel = lower(scheduled, kernel_name(scheduled.part, scheduled.params.scheduler))
    with stage("emit"):
        return emit_cpu(kernel) if scheduled.target.is_cpu else emit_cuda(kernel)
