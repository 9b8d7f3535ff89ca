# SPDX-License-Identifier: Apache-2.0
"""The compiler from a Fusion to a HostProgram, one stage a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import nvtx
import torch

from thunder_fuser.analysis.names import kernel_name
from thunder_fuser.codegen.cpu import emit_cpu
from thunder_fuser.codegen.cuda import emit_cuda
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.dump import (
    FUSION,
    KERNEL,
    LOG,
    PROGRAM,
    SCHEDULE,
    SEGMENTS,
    SPECIALISED,
    Dump,
    new_folder,
    not_writable,
    write_texts,
)
from thunder_fuser.errors import CompileError
from thunder_fuser.failures import explaining
from thunder_fuser.host.program import HostProgram, Launcher, launcher_for, plan
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.logs import log
from thunder_fuser.lower.lower import lower
from thunder_fuser.presegment import run_passes, run_target_passes
from thunder_fuser.presegment.specialise import InputKey, specialise
from thunder_fuser.runtime.binaries import origin
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.schedule.scheduler import Match
from thunder_fuser.segment.canonical import canonical
from thunder_fuser.segment.donate import with_donations
from thunder_fuser.segment.plan import Segment, SegmentedFusion, with_params
from thunder_fuser.segment.segmenter import segment
from thunder_fuser.stages import stage
from thunder_fuser.target import Target
from thunder_fuser.threads import run_jobs


@nvtx.annotate("thunder_fuser.compile")
def compile_fusion(
    fusion: Fusion,
    keys: tuple[InputKey, ...],
    target: Target,
    options: CompileOptions,
    device: torch.device,
) -> HostProgram:
    """Compiles a fusion for arguments with these keys, on a device."""
    dump = Dump(options.dump)
    with explaining(dump):
        segmented = plan_segments(fusion, keys, target, options, dump)
        alignment = alignments(segmented, keys)
        jobs = []
        for number, one in enumerate(segmented.segments):
            scheduled = dump.add(SCHEDULE.format(number), schedule(one, alignment))
            source = emit(scheduled)
            dump.add(_kernel_file(number, source), source, _text)
            jobs.append(partial(_launcher, number, one, source, target, device))
        with stage("compile"):
            launchers = run_jobs(jobs, threads=4)
        with stage("plan"):
            made = plan(segmented, launchers, device, options.multi_device)
            return dump.add(PROGRAM, made)


def _launcher(
    number: int, one: Segment, source: KernelSource | None, target: Target, device: torch.device
) -> Launcher:
    """The segment's launcher; logs its kernel."""
    start = perf_counter()
    try:
        with origin() as where:
            made = launcher_for(one.part, source, target, device)
            if source is not None:
                seconds, found = perf_counter() - start, where()
                log("kernels", lambda: _kernel_text(one, source, seconds, found))
        return made
    except CompileError as error:
        error.files = (_kernel_file(number, source), LOG.format(number))
        raise


def _kernel_text(one: Segment, source: KernelSource, seconds: float, found: str) -> str:
    """name: scheduler, what it reads and writes, where it is from."""
    part = one.part
    bytes_in, bytes_out = (sum(map(part.bytes_of, names)) for names in (part.inputs, part.outputs))
    return (
        f"{source.name}: {one.scheduler.name}, reads {bytes_in / 1024:.1f} KiB,"
        f" writes {bytes_out / 1024:.1f} KiB, {found} in {1e3 * seconds:.1f} ms"
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
    """{file name in the dump: the result of a stage as text}, of a program compiled before."""
    found = {
        FUSION: str(fusion),
        SPECIALISED: str(segmented.fusion),
        SEGMENTS: str(with_params(segmented)),
    }
    sources = iter(program.sources)
    for number, one in enumerate(scheduled):
        if one is not None:
            source = next(sources)
            found[SCHEDULE.format(number)] = str(one)
            found[_kernel_file(number, source)] = source.text
    return {**found, PROGRAM: str(program)}


def _kernel_file(number: int, source: KernelSource | None) -> str:
    is_cuda = source is not None and source.dialect == "cuda"
    return KERNEL.format(number, "cu" if is_cuda else "cpp")


def _text(source: KernelSource | None) -> str:
    return "" if source is None else source.text


def plan_segments(
    fusion: Fusion,
    keys: tuple[InputKey, ...],
    target: Target,
    options: CompileOptions,
    dump: Dump | None = None,
) -> SegmentedFusion:
    """The segments of a fusion for arguments with these keys. Compiles nothing."""
    dump = dump or Dump("")
    dump.add(FUSION, fusion)
    with stage("specialise"):
        known = run_passes(specialise(fusion, keys), options)
        known = dump.add(SPECIALISED, run_target_passes(known, target, options))
    with stage("segment"):
        segmented = with_donations(segment(known, target, options))
    return dump.add(SEGMENTS, segmented, with_params)


def kernel_sources(
    fusion: Fusion, keys: tuple[InputKey, ...], target: Target, options: CompileOptions
) -> tuple[KernelSource, ...]:
    """The kernels of a fusion for arguments with these keys, as text. Compiles nothing."""
    emitted = map(emit, schedules(plan_segments(fusion, keys, target, options), keys))
    return tuple(source for source in emitted if source is not None)


def schedules(
    segmented: SegmentedFusion, keys: tuple[InputKey, ...]
) -> list[ScheduledFusion | None]:
    """The schedule of each segment; None where torch runs it."""
    alignment = alignments(segmented, keys)
    return [schedule(one, alignment) for one in segmented.segments]


def alignments(segmented: SegmentedFusion, keys: tuple[InputKey, ...]) -> dict[str, int]:
    """The alignment of each argument.

    By the specialised fusion's names, which differ if a pass removed an op before an input.
    """
    inputs = segmented.fusion.inputs
    return {name: key.alignment for name, key in zip(inputs, keys, strict=True)}


@stage("schedule")
def schedule(one: Segment, alignment: dict[str, int]) -> ScheduledFusion | None:
    """The segment's schedule, with canonical names; None if torch runs the segment."""
    if not one.scheduler.makes_kernel:
        return None
    part, names = canonical(one.part)
    taken = dict(one.part.overwrites)
    known = {
        names[name]: alignment[where]
        for name in (*one.part.inputs, *taken) if (where := taken.get(name, name)) in alignment
    }
    renamed = one.scheduler.match(part, one.match.target, one.match.options)
    assert isinstance(renamed, Match)  # a match does not depend on names or on the order of axes
    return renamed.schedule(known)


def emit(scheduled: ScheduledFusion | None) -> KernelSource | None:
    """The kernel's source; None if torch runs the segment."""
    if scheduled is None:
        return None
    with stage("lower"):
        kernel = lower(scheduled, kernel_name(scheduled.part, scheduled.params.scheduler))
    with stage("emit"):
        return emit_cpu(kernel) if scheduled.target.is_cpu else emit_cuda(kernel)
