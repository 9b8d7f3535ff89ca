# SPDX-License-Identifier: Apache-2.0
"""The kernels of the matrix as their schedulers make them, autotuned, and by torch.compile.

Each result is checked first; then all are timed in turns. At the end a second process asks for the
same kernels: it must find every choice in the store. A run goes in parts: --part 1/4 measures every
fourth point, and --read adds the figures of earlier parts to the summary.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.clock import cpu_times, cuda_times, sets_for
from benchmarks.kernels.check import EXACT, Reference, fault, limit_for
from benchmarks.kernels.contenders import CONTENDERS, Call, Run
from benchmarks.kernels.figure import COMPILE, EAGER, TUNED
from benchmarks.kernels.operation import as_list, bytes_of, make_definition, make_inputs
from benchmarks.kernels.points import DTYPES, SIZES, Point, points
from benchmarks.options import add_compile, add_device
from benchmarks.report import Report
from thunder_fuser.errors import InputError
from thunder_fuser.explain.shown import table
from thunder_fuser.options import options

AUTOTUNED, OWN = "autotuned", "own schedule"
_POINT_SECONDS = {"small": 0.02, "gate": 0.6, "full": 1.0}
_UNLIMITED = 1e9  # the part's own budget ends a run
_SECOND_SECONDS = 300


@dataclass(frozen=True)
class Gain:
    """One point. us: median microseconds of each contender. choices: what was chosen for each
    kernel, and its schedule, if it is not its scheduler's own; changed: whether one is not, else
    the kernels are the same and are timed once. search: seconds of all searches."""

    title: str
    us: Mapping[str, float] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    changed: bool = False
    search: float = 0.0
    wrong: tuple[str, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)

    def over(self, other: str) -> float | None:
        """How many times faster the autotuned kernels are."""
        if other not in self.us or AUTOTUNED not in self.us:
            return None
        return self.us[other] / self.us[AUTOTUNED]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add = parser.add_argument
    add("--ops", default="", metavar="REGEX", help="operations whose name it finds; default: all")
    add("--dtypes", nargs="+", default=(), choices=tuple(DTYPES))
    add("--sizes", choices=SIZES, default="gate")
    add("--seconds", type=float, default=2.0, help="the option autotune: for each kernel")
    add("--part", default="1/1", metavar="K/N", help="every N-th point, from the K-th on")
    add("--budget", type=float, metavar="SECONDS", help="begin no new point after this time")
    add("--read", nargs="+", default=(), metavar="JSON", help="figures of earlier parts")
    add_compile(parser, default=True)
    add("--most", type=int, metavar="N", help="at most so many points")
    add("--second", action="store_true", help="measure nothing: are all choices in the store?")


def run(given: argparse.Namespace, report: Report) -> None:
    torch.manual_seed(0)
    chosen = _part(given)[: given.most]
    with options(autotune_total=_UNLIMITED):
        if given.second:
            _find(chosen, given, report)
            return
        start, gains, count = time.perf_counter(), list(_earlier(given.read)), 0
        for point in chosen:
            if given.budget is not None and time.perf_counter() - start >= given.budget:
                break
            count += 1
            with report.section(str(point)):
                gains.append(_measured(point, given))
                report.check(str(point), not gains[-1].wrong, "; ".join(gains[-1].wrong))
                report.figures = _content(gains)
    report.figures["left"] = [str(one) for one in chosen[count:]]
    report.figures["second"] = second = _second_process(given, count)
    report.check("second process", second.get("searched") == 0, str(second))
    report.lines += _lines(gains, report.figures)


def _part(given: argparse.Namespace) -> list[Point]:
    """The points of this part."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", given.part)
    if not found or int(found[1]) > int(found[2]):
        raise InputError("--part", expected="K/N, such as 1/4", got=repr(given.part))
    every = points(given.ops, given.dtypes, given.sizes, given.device)
    return every[int(found[1]) - 1 :: int(found[2])]


def _earlier(files: Sequence[str]) -> Iterator[Gain]:
    for name in files:
        try:
            content = json.loads(Path(name).read_text(encoding="utf-8"))
            for one in content["figures"]["points"]:
                lists = {name: tuple(one[name]) for name in ("choices", "wrong")}
                yield Gain(**{**one, **lists})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError("--read", expected="figures of autotune", got=str(error)) from error


# ---- a point


def _measured(point: Point, given: argparse.Namespace) -> Gain:
    """Its contenders, checked and timed."""
    inputs = make_inputs(point.op, point.shape, point.torch_dtype, given.device)
    gain, runs = _autotuned(point, inputs, given.seconds)
    if given.compile:
        for name in (COMPILE, TUNED):
            try:
                runs[name] = CONTENDERS[name](point.op, point.shape, inputs)
                runs[name](*inputs)
            except Exception as error:  # a baseline that fails is a fact to report
                told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                gain = replace(gain, broken={**gain.broken, name: told})
                runs.pop(name, None)
    wrong = _wrong(point, inputs, runs)
    if wrong:
        return replace(gain, wrong=wrong)
    timed = {name: run for name, run in runs.items() if gain.changed or name != AUTOTUNED}
    us = _times(point, inputs, timed, given)
    return replace(gain, us={**us, AUTOTUNED: us.get(AUTOTUNED, us[OWN])})


def _autotuned(
    point: Point, inputs: Sequence[torch.Tensor], seconds: float
) -> tuple[Gain, dict[str, Run]]:
    """The kernels with their schedulers' schedules and with the chosen ones."""
    fd = make_definition(point.op, point.shape, inputs)
    with options(autotune="off"):
        own = fd.entry.prepare().callable()
    with options(autotune=seconds):
        chosen = fd.entry.prepare().callable()
        found = [one for one in fd.program(inputs).choices if one is not None]
    told = tuple(f"{one}\n{one.schedule}".strip() for one in found)
    search = sum(one.spent for one in found if not one.from_store)
    changed = any(one.schedule for one in found)
    return Gain(str(point), {}, told, changed, search), {OWN: own, AUTOTUNED: chosen}


def _wrong(
    point: Point, inputs: Sequence[torch.Tensor], runs: Mapping[str, Run]
) -> tuple[str, ...]:
    """What is wrong with results of ours."""
    reference, op = Reference(point.op, inputs), point.op
    usual = EXACT  # eager torch's own results are no measure where an operation has a reference
    if op.reference is None:
        usual = reference.error(as_list(CONTENDERS[EAGER](op, point.shape, inputs)(*inputs)))
    limit = limit_for(op, point.torch_dtype, usual)
    found = []
    for name in (OWN, AUTOTUNED):
        try:
            why = fault(reference.error(as_list(runs[name](*inputs))), limit)
        except AssertionError as unlike:
            why = str(unlike)
        found += [f"{name}: {why}"] * bool(why)
    return tuple(found)


def _times(
    point: Point,
    inputs: list[torch.Tensor],
    runs: Mapping[str, Run],
    given: argparse.Namespace,
) -> dict[str, float]:
    moved = bytes_of(inputs) + bytes_of(as_list(runs[OWN](*inputs)))
    sets = [inputs]
    for _ in range(sets_for(moved, given.device) - 1):
        sets.append(make_inputs(point.op, point.shape, point.torch_dtype, given.device))
    calls: dict[str, list[Call]] = {
        name: [partial(run, *one) for one in sets] for name, run in runs.items()
    }
    seconds = _POINT_SECONDS[given.sizes]
    if given.device.type == "cuda":
        spreads, _ = cuda_times(calls, seconds, graphs=not point.op.is_random)
        torch.cuda.empty_cache()
    else:
        spreads = cpu_times(calls, seconds, keep=False)
    return {name: spread.us for name, spread in spreads.items()}


# ---- the second process


def _second_process(given: argparse.Namespace, count: int) -> dict[str, Any]:
    """What a new process finds of the choices of the points that were measured here."""
    if not count:
        return {"found": 0, "searched": 0, "seconds": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "second.json"
        command = [
            sys.executable, "-m", "benchmarks", "autotune", "--second", "--json", str(path),
            "--device", str(given.device), "--sizes", given.sizes, "--part", given.part,
            "--ops", given.ops, "--seconds", str(given.seconds), "--most", str(count),
            *(["--dtypes", *given.dtypes] if given.dtypes else []),
        ]  # fmt: skip
        try:
            subprocess.run(command, stdout=subprocess.DEVNULL, timeout=_SECOND_SECONDS, check=False)
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return dict(found["figures"])


def _find(chosen: Sequence[Point], given: argparse.Namespace, report: Report) -> None:
    """Asks for the kernels of the points, and counts whose choice had to be searched for."""
    start, found, searched = time.perf_counter(), 0, list[str]()
    for point in chosen:
        inputs = make_inputs(point.op, point.shape, point.torch_dtype, given.device)
        with options(autotune=given.seconds):
            program = make_definition(point.op, point.shape, inputs).program(inputs)
        choices = [one for one in program.choices if one is not None]
        found += sum(one.from_store for one in choices)
        searched += [str(point)] * sum(not one.from_store for one in choices)
    seconds = time.perf_counter() - start
    report.figures = {"found": found, "searched": len(searched), "seconds": seconds}
    report.check("choices in the store", not searched, ", ".join(searched))


# ---- figures


def _content(gains: Sequence[Gain]) -> dict[str, Any]:
    return {
        "points": [asdict(one) for one in gains],
        "geometric_means": {other: _mean(gains, other) for other in (OWN, COMPILE, TUNED)},
        "worst": {other: _ranked(gains, other)[:5] for other in (OWN, COMPILE, TUNED)},
        "best": _ranked(gains, OWN)[::-1][:5],
        "changed": sum(one.changed for one in gains),
        "search_seconds": sum(one.search for one in gains),
    }


def _mean(gains: Sequence[Gain], other: str) -> dict[str, Any]:
    shares = [share for one in gains if (share := one.over(other)) is not None]
    mean = math.exp(sum(map(math.log, shares)) / len(shares)) if shares else None
    return {"times_faster": mean, "points": len(shares)}


def _ranked(gains: Sequence[Gain], other: str) -> list[tuple[str, float]]:
    found = [(one.title, share) for one in gains if (share := one.over(other)) is not None]
    return sorted(found, key=lambda one: one[1])


def _lines(gains: Sequence[Gain], figures: Mapping[str, Any]) -> list[str]:
    names = (OWN, AUTOTUNED, COMPILE, TUNED)
    rows = [
        (one.title, *(f"{one.us[n]:.1f}" if n in one.us else "" for n in names),
         f"{one.over(OWN) or 0:.3f}", "; ".join(c.partition("\n")[0] for c in one.choices))
        for one in gains
    ]  # fmt: skip
    lines = [table(("point", *(f"us {name}" for name in names), "gain", "chosen"), rows), ""]
    for other, mean in figures.get("geometric_means", {}).items():
        if mean["times_faster"] is not None:
            worst = ", ".join(f"{title} {share:.3f}" for title, share in figures["worst"][other])
            lines.append(
                f"{mean['times_faster']:.3f} times as fast as {other} over {mean['points']} points;"
                f" worst: {worst}"
            )
    search = figures.get("search_seconds", 0.0)
    lines.append(f"{figures.get('changed', 0)} of {len(gains)} changed, {search:.0f} s of search")
    lines.append(f"second process: {figures['second']}")
    left = figures["left"]
    return [*lines, f"Not measured, for the budget was spent: {', '.join(left)}"] if left else lines
