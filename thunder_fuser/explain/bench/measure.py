# SPDX-License-Identifier: Apache-2.0
"""A point -> its Figure: every contender's results checked, then those that are right timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from thunder_fuser.errors import DefinitionError, ScheduleError
from thunder_fuser.explain.bench.check import (
    EXACT,
    Reference,
    fault,
    limit_for,
    limit_of_eager,
    poisoned,
)
from thunder_fuser.explain.bench.clock import cpu_times, cuda_times, sets_for
from thunder_fuser.explain.bench.contenders import CONTENDERS, Call, Run, yardsticks
from thunder_fuser.explain.bench.figure import EAGER, OURS, Figure
from thunder_fuser.explain.bench.memory import can_keep, kept
from thunder_fuser.explain.bench.operation import (
    as_list,
    bytes_of,
    make_definition,
    make_inputs,
)
from thunder_fuser.explain.bench.points import Point


@dataclass(frozen=True, slots=True)
class Settings:
    """Where, against whom besides eager, and how many seconds of running a point takes."""

    device: torch.device
    contenders: tuple[str, ...] = (EAGER, OURS)
    seconds: float = 1.0


def measure(point: Point, settings: Settings) -> Figure:
    """One line of the table. What the fuser does not do yet is `skipped`, with the reason."""
    op = point.op
    figure = Figure(op.name, op.group, point.dtype, point.shape)
    inputs = make_inputs(op, point.shape, point.torch_dtype, settings.device)
    try:
        _describe(figure, point, inputs)
    except (DefinitionError, ScheduleError) as error:
        figure.state, figure.note = "skipped", " ".join(str(error).split())
        return figure
    runs = _check(figure, point, inputs, settings)
    if figure.state == "measured":
        _time(figure, point, inputs, runs, settings)
    return figure


def _describe(figure: Figure, point: Point, inputs: Sequence[torch.Tensor]) -> None:
    """Compiles ours: how long that took, and which schedulers it came to."""
    start = time.perf_counter()
    program = make_definition(point.op, point.shape, inputs).program(inputs)
    figure.first_call_ms = (time.perf_counter() - start) * 1e3
    figure.schedulers = [segment.scheduler.name for segment in program.segmented.segments]


def _check(
    figure: Figure, point: Point, inputs: Sequence[torch.Tensor], settings: Settings
) -> dict[str, Run]:
    """The contenders whose results are right; the figure's bytes."""
    reference = Reference(point.op, inputs)
    figure.reference = reference.name
    runs: dict[str, Run] = {}
    for name in settings.contenders:
        try:
            run = CONTENDERS[name](point.op, point.shape, inputs)
            with poisoned() if name == OURS else nullcontext():
                results = as_list(run(*inputs))
        except Exception as error:
            if name == OURS:
                raise
            # A baseline that fails is a fact to report, not our failure.
            figure.broken[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        if _is_right(figure, point, name, reference, results):
            runs[name] = run
        if name == OURS:
            figure.bytes_written = bytes_of(results)
    if OURS in figure.wrong:
        figure.state, figure.note = "wrong", figure.wrong[OURS]
    figure.bytes = bytes_of(inputs) + figure.bytes_written
    figure.bytes_all_passes = figure.bytes + (point.op.passes - 1) * bytes_of(inputs[:1])
    return runs


def _is_right(
    figure: Figure, point: Point, name: str, reference: Reference, results: Sequence[Any]
) -> bool:
    """Records the contender's error, and what is wrong with it."""
    op, dtype = point.op, point.torch_dtype
    try:
        error = figure.errors[name] = reference.error(results)
    except AssertionError as unlike:
        figure.wrong[name] = str(unlike)
        return False
    usual = EXACT if EAGER in figure.wrong else figure.errors.get(EAGER, EXACT)
    limit = limit_of_eager(op, dtype) if name == EAGER else limit_for(op, dtype, usual)
    found = fault(error, limit)
    if found:
        figure.wrong[name] = found
    return not found


def _time(
    figure: Figure, point: Point, inputs: list[torch.Tensor], runs: dict[str, Run],
    settings: Settings,
) -> None:
    """Fills in the times of `runs` and of the yardsticks."""
    device, op = settings.device, point.op
    sets = [inputs]
    for _ in range(sets_for(figure.bytes, device) - 1):
        sets.append(make_inputs(op, point.shape, point.torch_dtype, device))
    calls: dict[str, list[Call]] = {
        name: [partial(run, *one) for one in sets] for name, run in runs.items()
    }
    for _ in sets:
        for name, call in yardsticks(figure.bytes, figure.bytes_written, device).items():
            calls.setdefault(name, []).append(call)
    if device.type == "cuda":
        found = cuda_times(calls, settings.seconds, graphs=not op.is_random)
        figure.us, figure.method = found
        return
    figure.us_fresh = cpu_times(calls, settings.seconds / 2, keep=False)
    figure.us, figure.method = figure.us_fresh, "fresh memory only"
    if can_keep():
        with kept():
            figure.us = cpu_times(calls, settings.seconds / 2, keep=True)
        figure.method = "memory kept"
