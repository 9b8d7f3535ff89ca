# SPDX-License-Identifier: Apache-2.0
"""A point -> its Figure: every contender's results checked, then those that are right timed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.allocator import can_keep, kept
from benchmarks.clock import cpu_times, cuda_times, sets_for
from benchmarks.kernels.check import (
    EXACT,
    Reference,
    fault,
    limit_for,
    limit_of_eager,
    poisoned,
)
from benchmarks.kernels.contenders import CONTENDERS, Call, Run, yardsticks
from benchmarks.kernels.figure import CLONE, COPY, EAGER, OURS, Error, Figure
from benchmarks.kernels.operation import (
    as_list,
    bytes_of,
    make_definition,
    make_inputs,
)
from benchmarks.kernels.points import Point
from thunder_fuser.errors import DefinitionError, ScheduleError


@dataclass(frozen=True, slots=True)
class Settings:
    """Where, against whom besides eager, and how many seconds of running a point takes."""

    device: torch.device
    contenders: tuple[str, ...] = (EAGER, OURS)
    seconds: float = 1.0


def measure(point: Point, settings: Settings) -> Figure:
    """One line of the table. What the fuser does not do yet is `skipped`, with the reason."""
    figure = Figure(point.op.name, point.op.group, point.dtype, point.shape)
    inputs = make_inputs(point.op, point.shape, point.torch_dtype, settings.device)
    try:
        figure = _compiled(figure, point, inputs)
    except (DefinitionError, ScheduleError) as error:
        return replace(figure, state="skipped", note=" ".join(str(error).split()))
    figure, runs = _checked(figure, point, inputs, settings)
    return _timed(figure, point, inputs, runs, settings) if figure.state == "measured" else figure


def _compiled(figure: Figure, point: Point, inputs: Sequence[torch.Tensor]) -> Figure:
    """Compiles ours: how long that took, and which schedulers it came to."""
    start = time.perf_counter()
    program = make_definition(point.op, point.shape, inputs).program(inputs)
    return replace(
        figure,
        first_call_ms={OURS: (time.perf_counter() - start) * 1e3},
        schedulers=tuple(segment.scheduler.name for segment in program.segmented.segments),
    )


@dataclass(frozen=True, slots=True)
class _Check:
    """What came of a contender's first call."""

    run: Run | None = None
    error: Error = EXACT
    wrong: str = ""
    broken: str = ""
    first_call_ms: float = 0.0
    written: int = 0


def _checked(
    figure: Figure, point: Point, inputs: Sequence[torch.Tensor], settings: Settings
) -> tuple[Figure, dict[str, Run]]:
    """The errors and the bytes of the figure, and the contenders whose results are right."""
    reference = Reference(point.op, inputs)
    found: dict[str, _Check] = {}
    for name in settings.contenders:
        found[name] = _check(name, point, inputs, reference, found.get(EAGER, _Check()))
    ours = found[OURS]
    moved = bytes_of(inputs) + ours.written
    compile_ms = dict(figure.first_call_ms)
    ran = {name: one for name, one in found.items() if not one.broken}
    return replace(
        figure, state="wrong" if ours.wrong else "measured", note=ours.wrong,
        reference=reference.name, bytes=moved, bytes_written=ours.written,
        bytes_all_passes=moved + (point.op.passes - 1) * bytes_of(inputs[:1]),
        first_call_ms={n: one.first_call_ms for n, one in ran.items()} | compile_ms,
        errors={name: one.error for name, one in ran.items()},
        wrong={name: one.wrong for name, one in ran.items() if one.wrong},
        broken={name: one.broken for name, one in found.items() if one.broken},
    ), {name: one.run for name, one in ran.items() if one.run and not one.wrong}


def _check(
    name: str, point: Point, inputs: Sequence[torch.Tensor], reference: Reference, eager: _Check
) -> _Check:
    """Makes a contender, calls it once and compares. What ours raises is raised."""
    start = time.perf_counter()
    try:
        run = CONTENDERS[name](point.op, point.shape, inputs)
        with poisoned() if name == OURS else nullcontext():
            results = as_list(run(*inputs))
    except Exception as error:
        if name == OURS:
            raise
        # A baseline that fails is a fact to report, not our failure.
        return _Check(broken=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    seconds = time.perf_counter() - start
    usual = EXACT if eager.wrong else eager.error
    off, wrong = _judged(name, point, reference, results, usual)
    return _Check(run, off, wrong, "", seconds * 1e3, bytes_of(results))


def _judged(
    name: str, point: Point, reference: Reference, results: Sequence[torch.Tensor], usual: Error
) -> tuple[Error, str]:
    """A contender's error, and what is wrong with it, if anything."""
    op, dtype = point.op, point.torch_dtype
    try:
        error = reference.error(results)
    except AssertionError as unlike:
        return Error(math.nan, math.nan), str(unlike)
    limit = limit_of_eager(op, dtype) if name == EAGER else limit_for(op, dtype, usual)
    return error, fault(error, limit)


def _timed(
    figure: Figure, point: Point, inputs: list[torch.Tensor], runs: dict[str, Run],
    settings: Settings,
) -> Figure:
    """The times of `runs` and of the yardsticks."""
    calls = _calls(figure, point, inputs, runs)
    if settings.device.type == "cuda":
        us, method = cuda_times(calls, settings.seconds, graphs=not point.op.is_random)
        us[CLONE] = min(us[CLONE], us.pop(COPY), key=lambda spread: spread.us)
        return replace(figure, us=us, method=method)
    fresh = cpu_times(calls, settings.seconds / 2, keep=False)
    if not can_keep():
        return replace(figure, us=fresh, us_fresh=fresh, method="new memory")
    with kept():
        us = cpu_times(calls, settings.seconds / 2, keep=True)
    return replace(figure, us=us, us_fresh=fresh, method="kept memory")


def _calls(
    figure: Figure, point: Point, inputs: list[torch.Tensor], runs: dict[str, Run]
) -> dict[str, list[Call]]:
    """For each contender and yardstick, a call for each set of buffers."""
    device = inputs[0].device
    sets = [inputs]
    for _ in range(sets_for(figure.bytes, device) - 1):
        sets.append(make_inputs(point.op, point.shape, point.torch_dtype, device))
    calls: dict[str, list[Call]] = {
        name: [partial(run, *one) for one in sets] for name, run in runs.items()
    }
    for _ in sets:
        for name, call in yardsticks(figure.bytes, figure.bytes_written, device).items():
            calls.setdefault(name, []).append(call)
    return calls
