# SPDX-License-Identifier: Apache-2.0
"""A benchmark run: options -> points -> figures -> a table on the terminal, a JSON, a picture."""

from __future__ import annotations

import json
import math
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from thunder_fuser.explain.bench.facts import facts
from thunder_fuser.explain.bench.figure import COMPILE, EAGER, OURS, TUNED, Figure
from thunder_fuser.explain.bench.gates import geometric_mean, verdicts, worst
from thunder_fuser.explain.bench.measure import Settings, measure
from thunder_fuser.explain.bench.plot import need_matplotlib, plot
from thunder_fuser.explain.bench.points import Point, points
from thunder_fuser.explain.bench.summary import OTHERS, summary

_POINT_SECONDS = {"small": 0.02, "gate": 0.6, "full": 1.0}


@dataclass(frozen=True, slots=True)
class Bench:
    """What to run. budget: seconds after which no new point is begun. json, plot: paths."""

    device: torch.device
    ops: str = ""
    dtypes: tuple[str, ...] = ()
    sizes: str = "small"
    compile: bool = True
    tuned: bool = False
    budget: float | None = None
    json: str | None = None
    plot: str | None = None

    @property
    def contenders(self) -> tuple[str, ...]:
        return (EAGER, OURS, *([COMPILE] * self.compile), *([TUNED] * self.tuned))


@dataclass
class Report:
    """What a run found; written to the JSON after every point, so that a killed run leaves one."""

    given: Bench
    facts: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    facts_after: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every result of ours was right. A missed gate is a figure, not a failure."""
        return not any(figure.state in ("wrong", "failed") for figure in self.figures)

    def content(self) -> dict[str, Any]:
        """The JSON."""
        means = {other: geometric_mean(self.figures, other) for other in OTHERS}
        return {
            "facts": self.facts,
            "options": {**asdict(self.given), "device": str(self.given.device)},
            "points": [asdict(figure) for figure in self.figures],
            "left": self.left,
            "geometric_means": {
                other: {"times_faster": mean, "points": count}
                for other, (mean, count) in means.items() if mean is not None
            },
            "worst": {other: worst(self.figures, other) for other in OTHERS},
            "gates": [asdict(one) for one in verdicts(self.figures)]
            if self.given.device.type == "cuda" else [],
            "facts_after": self.facts_after,
        }


def bench(given: Bench) -> bool:
    """Measures, prints and writes; True if every result of the fuser was right."""
    chosen = points(given.ops, given.dtypes, given.sizes, given.device)
    if given.plot:
        need_matplotlib()
    report = Report(given, facts(given.device))
    torch.manual_seed(0)
    _measure_all(chosen, report)
    report.facts_after = facts(given.device)
    _write(report)
    print(_text(report))
    if given.plot:
        name = f"{report.facts['device']}, {report.facts['date']}, {report.facts['commit']}"
        plot(report.figures, name, given.plot)
    return report.passed


def _measure_all(chosen: Sequence[Point], report: Report) -> None:
    given, start = report.given, time.perf_counter()
    settings = Settings(given.device, given.contenders, _POINT_SECONDS[given.sizes])
    for at, point in enumerate(chosen):
        if given.budget is not None and time.perf_counter() - start >= given.budget:
            report.left = [str(one) for one in chosen[at:]]
            return
        _say(f"[{at + 1}/{len(chosen)}] {point}")
        report.figures.append(_measured(point, settings))
        _write(report)
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


def _say(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def _text(report: Report) -> str:
    lines = [f"{name:18} {value}" for name, value in report.facts.items()]
    parts = ["\n".join(lines), summary(report.figures, report.given.device.type)]
    if report.left:
        parts.append(
            f"Not measured, for the budget of {report.given.budget:g} s was spent: "
            f"{', '.join(report.left)}"
        )
    return "\n\n".join(parts)


def _write(report: Report) -> None:
    if report.given.json is not None:
        write_json(report.given.json, report.content())


def write_json(path: str, content: Any) -> None:
    """Writes a file, through another name, so that a reader never sees half of it."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(place.name + ".part")
    text = json.dumps(_plain(content), indent=1, allow_nan=False)
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(place)


def _plain(value: Any) -> Any:
    """The same for JSON, which has no NaN: an error that is none becomes null.

    >>> _plain({"error": [math.nan, 1.0]})
    {'error': [None, 1.0]}
    """
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
