# SPDX-License-Identifier: Apache-2.0
"""The first training step of whole models, beside Thunder alone and torch.compile.

Each in a process of its own: a cold one, whose caches are empty, then a warm one, which finds what
the first has compiled. Fails if a loss differs from Thunder's; a missed bound is a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.bounds import Bound
from benchmarks.first_step.measure import ALONE, COMPILE, OURS, Measured, Wanted
from benchmarks.options import add_compile, add_device, at_least_one
from benchmarks.report import Report
from benchmarks.whole_models.zoo import ENTRIES
from thunder_fuser.errors import InputError
from thunder_fuser.explain.shown import table
from thunder_fuser.options import OPTIONS

COLD, WARM = "cold", "warm"
MODELS = ("gpt2", "llama", "resnet50")
OF_THUNDER = 0.5
LOSS_LIMIT = 0.02  # of Thunder's
_CACHES = (OPTIONS["cache_dir"].env, "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@dataclass(frozen=True)
class Row:
    """A model compiled by one of the contenders: of several processes the fastest."""

    model: str
    contender: str
    state: str
    found: Measured


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_compile(parser, default=True)
    add = parser.add_argument
    usual = " ".join(MODELS)
    add("--models", nargs="+", choices=ENTRIES, default=MODELS, help=f"default: {usual}")
    add("--repeats", type=at_least_one, default=1, metavar="N", help="processes of each kind")
    add("--counts", action="store_true", help="count calls of Python functions, which takes time")


def run(given: argparse.Namespace, report: Report) -> None:
    rows: list[Row] = []
    contenders = (ALONE, OURS, COMPILE) if given.compile else (ALONE, OURS)
    for model in given.models:
        for contender in contenders:
            with report.section(f"{model}, {contender}"):
                wanted = Wanted(model, contender, str(given.device), given.counts)
                rows += _rows(wanted, given.repeats)
                report.figures = {
                    "rows": [asdict(row) for row in rows],
                    "bounds": [one.content() for one in bounds(rows)],
                }
    _check_losses(rows, report)
    report.lines += [_text(rows), "", *map(str, bounds(rows))]


def _rows(wanted: Wanted, repeats: int) -> Iterator[Row]:
    """Cold and warm; of Thunder, which keeps nothing on disk, cold alone."""
    runs: dict[str, list[Measured]] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="thunder_fuser-") as folder:
            for state in (COLD,) if wanted.contender == ALONE else (COLD, WARM):
                runs.setdefault(state, []).append(_in_a_process(wanted, folder))
    for state, found in runs.items():
        best = min(found, key=lambda one: one.seconds)
        yield Row(wanted.model, wanted.contender, state, best)


def _in_a_process(wanted: Wanted, folder: str) -> Measured:
    caches = {name: str(Path(folder) / name) for name in _CACHES}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.first_step.measure",
         json.dumps(asdict(wanted))],
        capture_output=True, text=True, check=False,
        env={**os.environ, **caches, OPTIONS["cache"].env: "rw"},
    )  # fmt: skip
    if done.returncode != 0:
        last = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InputError(f"{wanted.model}, {wanted.contender}", expected="figures", got=last)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def _check_losses(rows: Sequence[Row], report: Report) -> None:
    expected = {row.model: row.found.loss for row in rows if row.contender == ALONE}
    for row in rows:
        name = f"{row.model}, {row.contender}, {row.state}"
        if row.model in expected:
            off = abs(row.found.loss / expected[row.model] - 1)
            report.check(name, off <= LOSS_LIMIT, f"the loss is {off:.2g} off Thunder's")


def bounds(rows: Sequence[Row]) -> list[Bound]:
    """What the measured models can say something about."""
    by_key = {(row.model, row.contender, row.state): row.found.seconds for row in rows}
    found = []
    for model in dict.fromkeys(row.model for row in rows):
        for name, limit, state, other in (
            ("time over Thunder's own", OF_THUNDER, COLD, (ALONE, COLD)),
            ("cold time over torch.compile's", 1.0, COLD, (COMPILE, COLD)),
            ("warm time over torch.compile's", 1.0, WARM, (COMPILE, WARM)),
        ):
            ours, theirs = by_key.get((model, OURS, state)), by_key.get((model, *other))
            if ours and theirs:
                found.append(Bound(f"{model}: {name}", limit, ours / theirs))
    return found


def _text(rows: Sequence[Row]) -> str:
    head = ("model", "by", "caches", "s", "processor s", "calls", "kernels", "found", "plans")
    lines = [_line(row, row.found, row.found.stages) for row in rows]
    return "The first training step\n\n" + table(head, lines)


def _line(row: Row, found: Measured, stages: Mapping[str, int]) -> Sequence[str]:
    counts = (found.calls or "", found.kernels, found.found, stages.get("segment", 0))
    return (
        row.model, row.contender, row.state, f"{found.seconds:.2f}", f"{found.cpu_seconds:.2f}",
        *map(str, counts),
    )  # fmt: skip
