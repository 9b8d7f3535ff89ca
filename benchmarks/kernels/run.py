# SPDX-License-Identifier: Apache-2.0
"""Single kernels beside clone, eager torch and torch.compile.

Each result is checked first. A missed gate is a figure: the exit status is 1 only for a wrong
result or a point that failed. docs/benchmarks.md says how a point is measured and what the columns
mean.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.facts import facts
from benchmarks.kernels.figure import COMPILE, EAGER, OURS, TUNED, Figure
from benchmarks.kernels.gates import geometric_mean, verdicts, worst
from benchmarks.kernels.measure import Settings, measure
from benchmarks.kernels.plot import plot
from benchmarks.kernels.points import DTYPES, SIZES, Point, points
from benchmarks.kernels.summary import OTHERS, summary
from benchmarks.options import add_compile, add_device
from benchmarks.report import Report
from thunder_fuser.explain.memory import need_matplotlib

_POINT_SECONDS = {"small": 0.02, "gate": 0.6, "full": 0.6}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add = parser.add_argument
    add("--ops", default="", metavar="REGEX", help="operations whose name it finds; default: all")
    add("--dtypes", nargs="+", default=(), choices=tuple(DTYPES))
    add("--sizes", choices=SIZES, default="gate", help="gate: a point or more for each bound")
    add_compile(parser, default=True)
    add("--tuned", action="store_true", help="torch.compile's max-autotune too: slow to compile")
    add("--budget", type=float, metavar="SECONDS", help="begin no new point after this time")
    add("--plot", metavar="FILE", help="where a picture goes (needs matplotlib)")


def run(given: argparse.Namespace, report: Report) -> None:
    chosen = points(given.ops, given.dtypes, given.sizes, given.device)
    if given.plot:
        need_matplotlib()
    torch.manual_seed(0)
    figures: list[Figure] = []
    for figure in _figures(chosen, given):
        figures.append(figure)
        report.figures = _content(figures, given.device)
        report.write()
        wrong = figure.state in ("wrong", "failed")
        report.check(figure.title, not wrong, f"{figure.state}: {figure.note}")
    report.figures["left"] = left = [str(one) for one in chosen[len(figures) :]]
    report.figures["facts_after"] = facts(given.device)
    report.lines.append(summary(figures, given.device.type))
    if left:
        spent = f"the budget of {given.budget:g} s was spent"
        report.lines += ["", f"Not measured, for {spent}: {', '.join(left)}"]
    if given.plot:
        title = ", ".join(report.facts[name] for name in ("device", "date", "commit"))
        plot(figures, title, given.plot)


def _figures(chosen: Sequence[Point], given: argparse.Namespace) -> Iterator[Figure]:
    """A figure for each point, until the budget is spent."""
    start = time.perf_counter()
    contenders = (EAGER, OURS, *([COMPILE] * given.compile), *([TUNED] * given.tuned))
    settings = Settings(given.device, contenders, _POINT_SECONDS[given.sizes])
    for at, point in enumerate(chosen):
        if given.budget is not None and time.perf_counter() - start >= given.budget:
            return
        if sys.stderr.isatty():
            print(f"[{at + 1}/{len(chosen)}] {point}", file=sys.stderr, flush=True)
        yield _measured(point, settings)
        if given.device.type == "cuda":
            torch.cuda.empty_cache()


def _measured(point: Point, settings: Settings) -> Figure:
    """The point's figure; an exception is one of state `failed`, and the run goes on."""
    try:
        return measure(point, settings)
    except Exception as error:
        traceback.print_exc()
        note = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Figure(
            point.op.name, point.op.group, point.dtype, point.shape, state="failed", note=note
        )


def _content(figures: Sequence[Figure], device: torch.device) -> dict[str, Any]:
    """What the JSON says. The gates are about GPUs."""
    means = {other: geometric_mean(figures, other) for other in OTHERS}
    return {
        "points": [asdict(figure) for figure in figures],
        "geometric_means": {
            other: {"times_faster": mean, "points": count}
            for other, (mean, count) in means.items() if mean is not None
        },
        "worst": {other: worst(figures, other) for other in OTHERS},
        "gates": [asdict(one) for one in verdicts(figures)] if device.type == "cuda" else [],
    }
