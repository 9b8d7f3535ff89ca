# SPDX-License-Identifier: Apache-2.0
"""Random programs beside eager torch; what differs is shrunk.

    python -m benchmarks fuzz --seconds 600 --target cpu --out found
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

import torch

# Thunder's import asks whether a graph is captured, after which no fork of a process can use CUDA.
ASKED = "torch.cuda.graphs.is_current_stream_capturing"
with mock.patch(ASKED, lambda: False) if torch.cuda.is_available() else nullcontext():
    from benchmarks.fuzz.findings import Finding, Outcome
    from benchmarks.fuzz.workers import Work, outcomes, shown
    from benchmarks.options import add_device
    from benchmarks.report import Report

TARGETS = ("cpu", "emulator", "cuda")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add = parser.add_argument
    add("--target", choices=TARGETS, help="what runs the programs; by default the device")
    add("--seconds", type=float, default=60, help="how long; the run ends within a minute of it")
    add("--jobs", type=int, default=os.cpu_count(), help="processes")
    add("--seed", type=int, default=0, help="the first one")
    add("--once", type=int, metavar="SEED", help="prints and runs the program of one seed")
    add("--limit", type=float, default=120, help="seconds after which a program hangs")
    add("--out", help="the folder for the scripts; by default a new one")


@dataclass
class Tally:
    """What came of all programs so far; groups are findings of one cause, each with the first."""

    programs: int = 0
    aside: Counter[str] = field(default_factory=Counter)
    groups: dict[tuple[str, tuple[str, ...]], Finding] = field(default_factory=dict)
    counts: Counter[tuple[str, tuple[str, ...]]] = field(default_factory=Counter)
    seconds: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)

    def add(self, outcome: Outcome, seconds: float) -> list[Finding]:
        """Counts it; the findings of new groups."""
        self.programs += 1
        if outcome.aside:
            self.aside[outcome.aside] += 1
        new = [one for one in outcome.findings if one.group not in self.groups]
        for one in outcome.findings:
            self.groups.setdefault(one.group, one)
            self.seconds.setdefault(one.group, seconds)
            self.counts[one.group] += 1
        return new


def run(given: argparse.Namespace, report: Report) -> None:
    target = given.target or given.device.type
    folder = Path(given.out or tempfile.mkdtemp(prefix="fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    first, count = (given.seed, None) if given.once is None else (given.once, 1)
    if given.once is not None:
        print(shown(target, given.once))
    work = Work(target, first, given.seconds, 1 if count else given.jobs, given.limit, count)
    tally, start = Tally(), time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with report.section("fuzz"):
        try:
            _collect(outcomes(work), tally, folder, report)
        except KeyboardInterrupt:
            report.check("ran to its end", False, "interrupted")
    report.lines += lines_of(tally, time.monotonic() - start, folder)
    report.check("no findings", not tally.groups, f"{len(tally.groups)} groups, in {folder}")


def _collect(found: Iterator[Outcome], tally: Tally, folder: Path, report: Report) -> None:
    """Into the tally, with what is new printed and written at once."""
    start = time.monotonic()
    for outcome in found:
        new = tally.add(outcome, time.monotonic() - start)
        for finding in new:
            number = list(tally.groups).index(finding.group) + 1
            _tell(finding, folder, number, time.monotonic() - start)
        report.figures.update(figures(tally, time.monotonic() - start))
        if new:
            report.write()


def _tell(finding: Finding, folder: Path, number: int, seconds: float) -> None:
    """Prints a finding that is the first of its group, and writes it down."""
    path = folder / f"{number:03}_{finding.kind.replace(' ', '_')}_{finding.seed}.py"
    path.write_text(finding.script, encoding="utf-8")
    print(f"---- {path} after {seconds:.0f} s\n{finding.script}", flush=True)


def figures(tally: Tally, seconds: float) -> dict[str, object]:
    """What the JSON says."""
    return {
        "programs": tally.programs,
        "per_second": tally.programs / seconds,
        "set_aside": dict(tally.aside),
        "findings": [
            {**asdict(one), "count": tally.counts[group], "found_after": tally.seconds[group]}
            for group, one in tally.groups.items()
        ],
    }


def lines_of(tally: Tally, seconds: float, folder: Path) -> list[str]:
    """The lines that end a run."""
    rate = tally.programs / seconds
    aside = sum(tally.aside.values())
    lines = [f"{tally.programs} programs in {seconds:.0f} s, {rate:.1f} a second"]
    lines.append(f"{aside} set aside")
    lines += [f"  {count:5} {why}" for why, count in tally.aside.most_common()]
    lines.append(f"{len(tally.groups)} groups of findings" + f", in {folder}" * bool(tally.groups))
    for group, count in tally.counts.most_common():
        one = tally.groups[group]
        lines.append(f"  {count:5} {one.kind}: {'; '.join(one.ops)} (seed {one.seed},"
                     f" after {tally.seconds[group]:.0f} s)")  # fmt: skip
    return lines
