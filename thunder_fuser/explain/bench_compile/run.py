# SPDX-License-Identifier: Apache-2.0
"""Depths -> first-step seconds of each, bounds met or missed, a table on the terminal, a JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from thunder_fuser.errors import InputError
from thunder_fuser.explain.bench.facts import facts
from thunder_fuser.explain.bench.run import write_json
from thunder_fuser.explain.bench_compile.measure import ALONE, OURS, Measured, Seconds
from thunder_fuser.explain.table import table
from thunder_fuser.explain.verdict import Verdict
from thunder_fuser.options import OPTIONS, Value
from thunder_fuser.stages import STAGES

LAYERS = (1, 2, 4, 8, 16, 32, 64, 128)
POLICIES: Mapping[str, dict[str, Value]] = {
    name: {"rematerialization": name} for name in ("time", "memory", "none")
}

COLD, WARM = "cold", "warm"
DEEP, LIMITS = 128, {COLD: 1.35, WARM: 1.15}
DOUBLING_FROM, DOUBLING_LIMIT = 32, 2.2
KERNELS_FROM = 16
ERROR_LIMIT = 1e-5


@dataclass(frozen=True, slots=True)
class BenchCompile:
    """What to run. repeats: processes a depth and state, of which the shortest times count."""

    layers: tuple[int, ...] = LAYERS
    policies: tuple[str, ...] = tuple(POLICIES)
    repeats: int = 3
    json: str | None = None


@dataclass(frozen=True)
class Row:
    """A depth under a policy, with the caches in one state: the shortest times, the first counts.

    ours and alone: seconds of the first training step, with the fuser and of Thunder by itself.
    runs: of how many processes.
    """

    policy: str
    state: str
    layers: int
    runs: int
    ours: Seconds
    alone: Seconds
    counts: Measured

    @property
    def ratio(self) -> float:
        return self.ours.wall / self.alone.wall

    @property
    def cpu_ratio(self) -> float:
        """The same of processor seconds, which other processes change less."""
        return self.ours.cpu / self.alone.cpu


@dataclass
class Report:
    """What a run found; written to the JSON after every round."""

    given: BenchCompile
    facts: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def content(self) -> dict[str, Any]:
        """The JSON."""
        return {
            "facts": self.facts,
            "options": asdict(self.given),
            "rows": [
                {**asdict(row), "ratio": row.ratio, "cpu_ratio": row.cpu_ratio}
                for row in self.rows
            ],
            "bounds": [{**asdict(one), "met": one.met} for one in verdicts(self.rows)],
        }


def bench_compile(given: BenchCompile) -> bool:
    """Measures, prints and writes; True if every result of the fuser was right."""
    report = Report(given, facts(torch.device("cpu")))
    for policy in given.policies:
        before = report.rows
        for rows in _rounds(given, policy):
            report.rows = [*before, *rows]
            if given.json is not None:
                write_json(given.json, report.content())
    print(_text(report))
    return all(row.counts.error <= ERROR_LIMIT for row in report.rows)


def _rounds(given: BenchCompile, policy: str) -> Iterator[list[Row]]:
    """After each round the rows of all depths, in both states: what a first process compiled, a
    second one loads.

    All depths are measured before any is measured again: times of one depth are divided by those of
    another, and a machine is slower for minutes when others use it.
    """
    runs: dict[tuple[int, str], list[Measured]] = {
        (layers, state): [] for layers in given.layers for state in (COLD, WARM)
    }
    for number in range(given.repeats):
        first = (ALONE, OURS)[number % 2]
        for layers in given.layers:
            with tempfile.TemporaryDirectory(prefix="thunder_fuser-") as folder:
                for state in (COLD, WARM):
                    run = _in_a_process(layers, policy, state, folder, first)
                    runs[layers, state].append(run)
        yield [_row(policy, state, found) for (_, state), found in runs.items()]


def _in_a_process(layers: int, policy: str, state: str, folder: str, first: str) -> Measured:
    """One measurement in a fresh process; InputError with its last words if it fails."""
    # A kernel that the first process left must not be compiled by the second.
    options = {**POLICIES[policy], "assert_cache_hit": state == WARM}
    wanted = {"layers": layers, "first": first, "options": options}
    store = {OPTIONS["cache_dir"].env: folder, OPTIONS["cache"].env: "rw"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "thunder_fuser.explain.bench_compile.measure",
         json.dumps(wanted)],
        capture_output=True, text=True, check=False, env={**os.environ, **store},
    )  # fmt: skip
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise InputError(f"bench compile of {layers} layers", expected="figures", got=last[0])
    found = json.loads(done.stdout)
    found["seconds"] = {name: Seconds(**one) for name, one in found["seconds"].items()}
    return Measured(**found)


def _row(policy: str, state: str, runs: Sequence[Measured]) -> Row:
    shortest = {
        name: min((run.seconds[name] for run in runs), key=lambda one: one.wall)
        for name in (OURS, ALONE)
    }
    best = min(runs, key=lambda run: run.seconds[OURS].wall)
    return Row(policy, state, best.layers, len(runs), shortest[OURS], shortest[ALONE], best)


# ---------------------------------------------------------------------------------------- bounds


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """The bounds that the measured depths can say something about, on times by both clocks."""
    found = []
    for policy, state in dict.fromkeys((row.policy, row.state) for row in rows):
        own = {row.layers: row for row in rows if (row.policy, row.state) == (policy, state)}
        for clock in ("wall", "cpu"):
            bounds = [*_over_thunder(own, LIMITS[state], clock), *_over_half(own, clock)]
            found += [replace(one, name=f"{policy}, {state}: {one.name}") for one in bounds]
        if KERNELS_FROM in own:
            name = f"{policy}, {state}: kernels of {max(own)} layers"
            limit, deepest = (own[at].counts.kernels for at in (KERNELS_FROM, max(own)))
            found.append(Verdict(name, limit, deepest))
    return found


def _over_thunder(own: Mapping[int, Row], limit: float, clock: str) -> Iterator[Verdict]:
    if DEEP in own:
        ratio = getattr(own[DEEP].ours, clock) / getattr(own[DEEP].alone, clock)
        yield Verdict(f"{clock} time over Thunder's own, {DEEP} layers", limit, ratio)


def _over_half(own: Mapping[int, Row], clock: str) -> Iterator[Verdict]:
    growths = [
        getattr(own[2 * n].ours, clock) / getattr(own[n].ours, clock)
        for n in own if n >= DOUBLING_FROM and 2 * n in own
    ]
    if growths:
        name = f"{clock} time over that of half the layers, from {DOUBLING_FROM} on"
        yield Verdict(name, DOUBLING_LIMIT, max(growths))


# ------------------------------------------------------------------------------------------ text


def _text(report: Report) -> str:
    lines = [f"{name:18} {value}" for name, value in report.facts.items()]
    parts = ["\n".join(lines), _times(report.rows), _stages(report.rows)]
    parts += ["\n".join(map(str, verdicts(report.rows)))]
    return "\n\n".join(part for part in parts if part)


def _times(rows: Sequence[Row]) -> str:
    head = ("policy", "caches", "layers", "s", "Thunder s", "ratio", "cpu ratio", "x half",
            "Thunder x half", "regions", "ops", "largest", "kernels")  # fmt: skip
    before = {(row.policy, row.state, row.layers): row for row in rows}
    lines = []
    for row in rows:
        half = before.get((row.policy, row.state, row.layers // 2)) if row.layers > 1 else None
        growth = ["", ""] if half is None else [
            f"{row.ours.wall / half.ours.wall:.2f}", f"{row.alone.wall / half.alone.wall:.2f}"
        ]  # fmt: skip
        counts = (row.counts.regions, row.counts.ops, row.counts.largest, row.counts.kernels)
        lines.append(
            [row.policy, row.state, str(row.layers), f"{row.ours.wall:.3f}",
             f"{row.alone.wall:.3f}", f"{row.ratio:.2f}", f"{row.cpu_ratio:.2f}", *growth,
             *map(str, counts)]
        )  # fmt: skip
    return "Seconds of the first training step\n\n" + table(head, lines)


def _stages(rows: Sequence[Row]) -> str:
    """Milliseconds of each of our own stages."""
    head = ("policy", "caches", "layers", *STAGES)
    lines = [
        [row.policy, row.state, str(row.layers),
         *(f"{1000 * row.counts.stages.get(name, (0.0, 0))[0]:.1f}" for name in STAGES)]
        for row in rows
    ]  # fmt: skip
    return "Milliseconds in our own stages\n\n" + table(head, lines)
