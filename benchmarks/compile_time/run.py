# SPDX-License-Identifier: Apache-2.0
"""The first training step of models of growing depth.

Beside Thunder's own time, on the CPU. Each runs in fresh processes, with caches that are empty
(cold) and with kernels on disk (warm). Fails if a result differs from eager torch's; a missed bound
is a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.bounds import Bound
from benchmarks.compile_time.measure import ALONE, OURS, Measured, Seconds
from benchmarks.options import add_layers, at_least_one
from benchmarks.report import Report
from thunder_fuser.base.stages import STAGES
from thunder_fuser.errors import InputError
from thunder_fuser.explain.shown import table
from thunder_fuser.options import OPTIONS

LAYERS = (1, 2, 4, 8, 16, 32, 64, 128)
POLICIES = ("time", "memory", "none")

COLD, WARM = "cold", "warm"
DEEP, LIMITS = 128, {COLD: 1.35, WARM: 1.15}
DOUBLING_FROM, DOUBLING_LIMIT = 32, 2.2
KERNELS_FROM = 16
ERROR_LIMIT = 1e-5


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


def add_options(parser: argparse.ArgumentParser) -> None:
    add_layers(parser, LAYERS)
    add = parser.add_argument
    add("--policies", nargs="+", choices=POLICIES, default=POLICIES, help="of rematerialization")
    add("--repeats", type=at_least_one, default=3, metavar="N",
        help="processes a depth and state, of which the shortest times count")  # fmt: skip


def run(given: argparse.Namespace, report: Report) -> None:
    rows: list[Row] = []
    for policy in given.policies:
        before = rows
        for found in _rounds(given.layers, policy, given.repeats):
            rows = [*before, *found]
            report.figures = {
                "rows": [
                    {**asdict(row), "ratio": row.ratio, "cpu_ratio": row.cpu_ratio} for row in rows
                ],
                "bounds": [one.content() for one in bounds(rows)],
            }
            report.write()
    for row in rows:
        name = f"{row.policy}, {row.state}, {row.layers} layers"
        report.check(name, row.counts.error <= ERROR_LIMIT, f"error {row.counts.error:.2g}")
    report.lines += [_times(rows), "", _stages(rows), "", *map(str, bounds(rows))]


def _rounds(layers: Sequence[int], policy: str, repeats: int) -> Iterator[list[Row]]:
    """After each round the rows of all depths, in both states: what a first process compiled, a
    second one loads.

    All depths are measured before any is measured again: times of one depth are divided by those of
    another, and a machine is slower for minutes when others use it.
    """
    runs: dict[tuple[int, str], list[Measured]] = {
        (depth, state): [] for depth in layers for state in (COLD, WARM)
    }
    for number in range(repeats):
        first = (ALONE, OURS)[number % 2]
        for depth in layers:
            with tempfile.TemporaryDirectory(prefix="thunder_fuser-") as folder:
                for state in (COLD, WARM):
                    one = _in_a_process(depth, policy, state, folder, first)
                    runs[depth, state].append(one)
        yield [_row(policy, state, found) for (_, state), found in runs.items()]


def _in_a_process(layers: int, policy: str, state: str, folder: str, first: str) -> Measured:
    """One measurement in a fresh process; InputError with its last error if it fails."""
    # A kernel that the first process left must not be compiled by the second.
    options = {"rematerialization": policy, "assert_cache_hit": state == WARM}
    wanted = {"layers": layers, "first": first, "options": options}
    store = {OPTIONS["cache_dir"].env: folder, OPTIONS["cache"].env: "rw"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.compile_time.measure",
         json.dumps(wanted)],
        capture_output=True, text=True, check=False, env={**os.environ, **store},
    )  # fmt: skip
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        told = [line for line in lines if re.match(r"[\w.]+Error: ", line)] or lines
        last = told[-1] if told else f"exit code {done.returncode}"
        raise InputError(f"a step of {layers} layers", expected="figures", got=last)
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


def bounds(rows: Sequence[Row]) -> list[Bound]:
    """The bounds that the measured depths can say something about, on times by both clocks."""
    found = []
    for policy, state in dict.fromkeys((row.policy, row.state) for row in rows):
        own = {row.layers: row for row in rows if (row.policy, row.state) == (policy, state)}
        for clock in ("wall", "cpu"):
            timed = [*_over_thunder(own, LIMITS[state], clock), *_over_half(own, clock)]
            found += [replace(one, name=f"{policy}, {state}: {one.name}") for one in timed]
        if KERNELS_FROM in own:
            name = f"{policy}, {state}: kernels of {max(own)} layers"
            limit, deepest = (own[at].counts.kernels for at in (KERNELS_FROM, max(own)))
            found.append(Bound(name, limit, deepest))
    return found


def _over_thunder(own: Mapping[int, Row], limit: float, clock: str) -> Iterator[Bound]:
    if DEEP in own:
        ratio = getattr(own[DEEP].ours, clock) / getattr(own[DEEP].alone, clock)
        yield Bound(f"{clock} time over Thunder's own, {DEEP} layers", limit, ratio)


def _over_half(own: Mapping[int, Row], clock: str) -> Iterator[Bound]:
    growths = [
        getattr(own[2 * n].ours, clock) / getattr(own[n].ours, clock)
        for n in own if n >= DOUBLING_FROM and 2 * n in own
    ]
    if growths:
        name = f"{clock} time over that of half the layers, from {DOUBLING_FROM} on"
        yield Bound(name, DOUBLING_LIMIT, max(growths))


# ------------------------------------------------------------------------------------------ text


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
