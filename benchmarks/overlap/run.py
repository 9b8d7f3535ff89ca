# SPDX-License-Identifier: Apache-2.0
"""Matrix products with communication on several GPUs, beside NCCL's and torch's fused operations.

Starts a process for each GPU. All-gather + matmul and matmul + reduce-scatter at five shapes: the
product alone, NCCL and the product one after the other, torch's fused operation, torch.compile with
async tensor parallel, and ours: as the cost model decides and in 1, 2 and 4 chunks. Four ranks and
more also take the shape of NVIDIA/Fuser#5259. Each time is the median over rounds of the slowest
rank's; a barrier of the devices comes before each call, the host is ahead, and ways take turns.
Memory is filled with NaN before results are checked, in the same run. On H200 the bounds of
docs/benchmarks.md are checked.

--ranks more than there are GPUs: ranks share them, and small results are checked, not timed.
--check: nothing is timed, and results at the large shapes are checked too.
--step: training steps of Llama in place of products. --target cpu: the same on the CPU.
--model: only what the cost model predicts.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.bounds import Bound
from benchmarks.facts import facts
from benchmarks.options import at_least_one
from benchmarks.overlap.model import model_lines
from benchmarks.overlap.points import Point, bounds
from benchmarks.report import Report
from thunder_fuser.errors import PeerError, TargetError
from thunder_fuser.explain.shown import table

ROOT = Path(__file__).resolve().parents[2]
_END_SECONDS = 30.0  # beyond the given time, until ranks are killed
_POLL_SECONDS = 0.2
_SHOWN = 60  # lines of the log of a rank that failed
_COLUMNS = ("alone", "part", "copy", "NCCL", "torch", "async TP", "decided", "in 1", "in 2", "in 4")
_SPEEDS = ("alone", "NCCL", "torch", "async TP", "decided")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--ranks", type=at_least_one, help="default: as many as there are GPUs")
    parser.add_argument("--seconds", type=at_least_one, default=120, help="default: 120")
    parser.add_argument("--step", action="store_true", help="training steps of Llama instead")
    parser.add_argument("--check", action="store_true", help="check large results, time nothing")
    parser.add_argument("--model", action="store_true", help="measure nothing: print predictions")


def run(given: argparse.Namespace, report: Report) -> None:
    if given.model:
        report.lines += model_lines(report.figures)
        return
    gpus = torch.cuda.device_count() if given.target == "cuda" else 0
    if given.target == "cuda" and not gpus:
        raise TargetError(
            "overlap", expected="a machine with CUDA devices", got="none",
            do="give --target cpu to check results on the CPU, or --model to print predictions",
        )  # fmt: skip
    if gpus:
        report.facts = {**report.facts, **facts(torch.device("cuda"))}
    ranks = given.ranks or gpus or 2
    _refuse(given, ranks, gpus)
    with report.section("ranks"):
        more = [f"--{name}" for name, is_so in (
            ("small", ranks > gpus), ("step", given.step), ("check", given.check)
        ) if is_so]  # fmt: skip
        figures = _figures(given.target, ranks, more, seconds=given.seconds)
        report.figures.update(figures)
        (_judge_steps if given.step else _judge)(figures, report)


def _refuse(given: argparse.Namespace, ranks: int, gpus: int) -> None:
    """What would take hours on a CPU, and what gloo cannot do with tensors on a GPU."""
    if given.check and not gpus:
        raise TargetError(
            "overlap --check", expected="CUDA devices", got=given.target,
            do="leave out --check: small results are checked",
        )  # fmt: skip
    if given.step and 0 < gpus < ranks:
        raise TargetError(
            "overlap --step", expected=f"a GPU for each of {ranks} ranks", got=str(gpus),
            do="leave out --step: products are checked with ranks that share GPUs",
        )  # fmt: skip


# --------------------------------------------------------------------------------------- processes


@dataclass(frozen=True)
class _Rank:
    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        """The end of its log."""
        lines = self.log.read_text("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_SHOWN:])


def _figures(target: str, ranks: int, more: list[str], *, seconds: float) -> dict[str, Any]:
    """What the ranks found; with `failed`, why they did not get to the end."""
    with tempfile.TemporaryDirectory(prefix="overlap-") as folder:
        out = Path(folder) / "figures.json"
        command = [
            sys.executable, "-m", "benchmarks.overlap.rank", "--device", target,
            "--out", str(out), "--seconds", str(seconds), *more,
        ]  # fmt: skip
        common = _environment(ranks)
        started = [_start(command, common, rank, Path(folder)) for rank in range(ranks)]
        problem = _wait(started, seconds + _END_SECONDS)
        if not out.exists():
            raise PeerError("the ranks of overlap", got=problem or "no figures")
        return {**json.loads(out.read_text("utf-8")), "failed": problem}


def _environment(ranks: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        **os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "PYTHONPATH": os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))
        ),
        # No multicast, neither torch's nor NCCL's: the bounds are without it.
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def _start(command: Sequence[str], common: Mapping[str, str], rank: int, folder: Path) -> _Rank:
    log = folder / f"rank_{rank}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env={**common, "RANK": str(rank)}, stdout=stream, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, cwd=ROOT,
        )
    return _Rank(process, log)


def _wait(ranks: Sequence[_Rank], seconds: float) -> str:
    """Until all have ended well, one has failed, or the time is over: then all are killed.

    Returns the problem; prints the logs that show it, or the first rank's if there is none.
    """
    limit, problem = time.monotonic() + seconds, ""
    try:
        while not problem and any(one.process.poll() is None for one in ranks):
            time.sleep(_POLL_SECONDS)
            problem = _problem(ranks)
            if time.monotonic() > limit:
                problem = problem or f"not done after {seconds:g} seconds"
        problem = problem or _problem(ranks)
    finally:
        for one in ranks:
            one.process.kill()
            one.process.wait()
    for number, one in enumerate(ranks if problem else ranks[:1]):
        print(f"---- rank {number}\n{one.text()}", flush=True)
    return problem


def _problem(ranks: Sequence[_Rank]) -> str:
    codes = ((number, one.process.poll()) for number, one in enumerate(ranks))
    return ", ".join(f"rank {number} ended with status {code}" for number, code in codes if code)


# ------------------------------------------------------------------------------------------ tables


def _judge(figures: Mapping[str, Any], report: Report) -> None:
    """The tables; wrong results, missed bounds and ranks that failed are failed checks."""
    points = figures["points"]
    report.check("ranks", not figures["failed"], figures["failed"])
    report.check("points", bool(points), "none was measured")
    for one in points:
        wrong = {name: one["errors"][name] for name in one["wrong"]}
        report.check(str(_point(one)), not wrong, f"wrong results, errors {wrong}")
        for way, why in one["failed"].items():
            report.check(f"{_point(one)}, {way}", False, why)
    if why := figures["no pipelines"]:
        report.lines.append(f"No pipelines: {why}")
    timed = [one for one in points if one["ms"]]
    if timed:
        report.lines += [*_times(timed), ""]
    report.lines += [one["decision"] for one in points]
    if "H200" in str(report.facts.get("device", "")):
        _bounds(timed, figures["ranks"], report)


def _judge_steps(figures: Mapping[str, Any], report: Report) -> None:
    """The tables of steps; wrong results, ranks that failed and slower steps are failed checks."""
    report.check("ranks", not figures["failed"], figures["failed"])
    if why := figures["no pipelines"]:
        report.lines.append(f"No pipelines: {why}")
    for name, one in figures.get("steps", {}).items():
        wrong = {way: one["errors"][way] for way in one["wrong"]}
        report.check(name, not wrong, f"wrong results, errors {wrong}")
        for way, why in one["failed"].items():
            report.check(f"{name}, {way}", False, why)
        rows = [
            (way, f"{error:.2g}", f"{one['first_s'][way]:.1f}", *_beside(one["ms"], way))
            for way, error in one["errors"].items()
        ]
        report.lines += ["", name, table(("way", "error", "first s", "ms", "over ours"), rows)]
        others = [ms for way, ms in one["ms"].items() if way != "pipelines"]
        if others:
            bound = Bound(f"{name}, over the fastest", 1.0, one["ms"]["pipelines"] / min(others))
            report.lines.append(str(bound))
            report.check(bound.name, bound.met, str(bound))


def _beside(ms: Mapping[str, float], way: str) -> tuple[str, str]:
    return (f"{ms[way]:.2f}", f"{ms[way] / ms['pipelines']:.2f}") if ms else ("", "")


def _point(one: Mapping[str, Any]) -> Point:
    return Point(*(one[name] for name in ("kind", "m", "k", "n")))


def _times(timed: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("m, k, n", *(f"{name} ms" for name in _COLUMNS), "x NCCL", "x torch", "host us")
    speeds = ("m, k, n", *_SPEEDS, "decided / alone")
    lines: list[str] = []
    for kind in dict.fromkeys(one["kind"] for one in timed):
        chosen = [one for one in timed if one["kind"] == kind]
        lines += ["", kind, table(head, [_time_row(one) for one in chosen])]
        lines += ["", f"{kind}, TFLOPS a GPU", table(speeds, [_speed_row(one) for one in chosen])]
    return lines


def _time_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    ms = one["ms"]
    return (
        _size(one), *(_cell(ms, name, 1.0, 3) for name in _COLUMNS),
        *(_cell(ms, name, 1 / ms["decided"], 2) for name in ("NCCL", "torch")),
        f"{one['host_us']['decided']:.0f}",
    )  # fmt: skip


def _speed_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    ms = one["ms"]
    speeds = {name: _point(one).flops / took / 1e9 for name, took in ms.items()}
    cells = (_cell(speeds, name, 1.0, 0) for name in _SPEEDS)
    return (_size(one), *cells, f"{ms['alone'] / ms['decided']:.3f}")


def _size(one: Mapping[str, Any]) -> str:
    return f"{one['m']}, {one['k']}, {one['n']}"


def _cell(values: Mapping[str, float], name: str, factor: float, digits: int) -> str:
    """Empty for a way that failed."""
    return f"{factor * values[name]:.{digits}f}" if name in values else ""


def _bounds(timed: Sequence[Mapping[str, Any]], ranks: int, report: Report) -> None:
    found = [bound for one in timed for bound in bounds(_point(one), one["ms"], ranks)]
    report.figures["bounds"] = [bound.content() for bound in found]
    report.lines += ["", *map(str, found)]
    for bound in found:
        report.check(bound.name, bound.met, str(bound))
