# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks overlap` without a GPU: small results, predictions, ranks that fail."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.forked import Job, fork_all

from benchmarks.__main__ import main
from benchmarks.overlap import run
from benchmarks.overlap.model import RESULTS
from benchmarks.overlap.points import (
    GATHER,
    HEADLINE,
    SCATTER,
    SHAPES,
    Point,
    bounds,
    points,
    shapes,
)
from benchmarks.overlap.run import _judge, _judge_steps, _Rank, _wait
from benchmarks.report import Report


def test_small_results_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap", "--target", "cpu", "--ranks", "2", "--seconds", "60"]) == 0
    shown = capsys.readouterr().out
    assert "matmul_reduce_scatter 240 x 40 x 16 float32, 2 ranks" in shown


def test_steps_on_the_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A layer in tensor parallel and a model in FSDP: results and gradients beside torch's."""
    def forked(target: str, ranks: int, more: list[str], *, seconds: float) -> dict[str, Any]:
        out, log = tmp_path / "figures", tmp_path / "log"
        words = ["--device", target, "--out", str(out), "--seconds", str(seconds), *more]
        command = [str(run.ROOT / "benchmarks/overlap/rank.py"), *words]
        common = run._environment(ranks)
        jobs = [Job(command, str(log), str(log), {**common, "RANK": str(rank)}, int(seconds))
                for rank in range(ranks)]  # fmt: skip
        assert not any(fork_all(jobs)), log.read_text()
        return {**json.loads(out.read_text()), "failed": ""}

    monkeypatch.setattr(run, "_figures", forked)
    monkeypatch.setenv("THUNDER_FUSER_FUEL", "0")  # no kernel is compiled
    arguments = ["overlap", "--step", "--target", "cpu", "--ranks", "2", "--seconds", "80"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert [shown.count(f"\n  {way} ") for way in ("eager", "pipelines", "fuser")] == [2, 2, 2]


def test_wrong_and_slow_steps_are_failed_checks() -> None:
    one = {
        "errors": {"eager": 0.0, "pipelines": 0.5}, "first_s": {"eager": 1.0, "pipelines": 1.0},
        "ms": {"eager": 3.0, "pipelines": 4.0}, "wrong": ["pipelines"],
        "failed": {"compile": "no luck"},
    }  # fmt: skip
    report = Report({}, None)
    _judge_steps({"failed": "", "no pipelines": "", "steps": {"layer": one}}, report)
    assert report.failed == ["layer", "layer, compile", "layer, over the fastest"]
    right = {**one, "wrong": [], "failed": {}, "ms": {"eager": 4.0, "pipelines": 3.0}}
    report = Report({}, None)
    _judge_steps({"failed": "", "no pipelines": "", "steps": {"layer": right}}, report)
    assert not report.failed
    assert any("eager" in line and "1.33" in line for line in report.lines)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap"]) == 1
    assert "overlap: expected a machine with CUDA devices, got none" in capsys.readouterr().err


def test_predictions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The committed predictions are those that the command makes from the measured rates."""
    made = tmp_path / "model.json"
    assert main(["overlap", "--model", "--json", str(made)]) == 0
    shown = capsys.readouterr().out
    assert all(f"{m}, {k}, {n} " in shown for m, k, n in shapes(8))
    figures = json.loads(made.read_text())["figures"]
    assert figures == json.loads((RESULTS / "overlap_model.json").read_text())["figures"]
    ratios = [one["ratio"] for one in figures["ratios"]]
    assert len(ratios) == 5 * len(list(points(SHAPES)))
    assert all(0.9 < one < 1.1 for one in ratios)
    for one in figures["predictions"]:
        nothing = one["ranks"] != 2 or one["m"] == HEADLINE[0]
        assert (set(one["measured_ms"].values()) == {None}) == nothing


@pytest.mark.parametrize("dies", [True, False])
def test_a_rank_that_fails_or_stands_still(
    tmp_path: Path, dies: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ranks are killed, and the logs are shown."""
    wait = "print('waiting', flush=True); import time; time.sleep(60)"
    ranks = []
    for number, code in enumerate([wait, "raise SystemExit('no luck')" if dies else wait]):
        log = tmp_path / f"{number}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdout=stream, stderr=subprocess.STDOUT
            )
        ranks.append(_Rank(process, log))
    start = time.monotonic()
    problem = _wait(ranks, 20.0 if dies else 1.0)
    assert problem == ("rank 1 ended with status 1" if dies else "not done after 1 seconds")
    assert time.monotonic() - start < 15
    assert all(one.process.poll() is not None for one in ranks)
    assert ("no luck" in capsys.readouterr().out) == dies


def test_bounds() -> None:
    """A scatter has the bounds of the gather that it stands beside."""
    made = list(points(SHAPES))
    assert [one.held for one in made[:5]] == [one.held for one in made[5:]]
    assert made[6] == Point(SCATTER, 16384, 4096, 8192)
    ms = {"NCCL": 1.35, "torch": 1.2, "decided": 1.0}
    assert [one.met for one in bounds(made[6], ms)] == [True, True]
    assert [one.met for one in bounds(made[6], {**ms, "decided": 1.02})] == [False, True]
    small = Point(GATHER, 4096, 8192, 1024)
    assert [one.limit for one in bounds(small, ms)] == [1.0, 1 / 1.15]


def test_four_ranks_and_more() -> None:
    """They take the headline's shape too, and its bounds alone are checked."""
    assert [HEADLINE in shapes(ranks) for ranks in (2, 3, 4, 8)] == [False, False, True, True]
    ms = {"NCCL": 1.22, "alone": 0.94, "decided": 1.0}
    found = list(bounds(Point(GATHER, *HEADLINE), ms, ranks=8))
    assert [one.met for one in found] == [True, False]
    assert not list(bounds(Point(GATHER, *SHAPES[0]), ms, ranks=8))


def test_the_speed_of_a_gpu() -> None:
    """Operations of a rank's product over time; a way that failed has an empty cell."""
    ms = {
        "alone": 8.0, "part": 1.0, "copy": 1.0, "NCCL": 16.0, "torch": 11.0, "decided": 10.0,
        "in 1": 10.0, "in 2": 10.0, "in 4": 10.0,
    }  # fmt: skip
    one = {
        "kind": GATHER, "m": 1000, "k": 1000, "n": 4000, "ms": ms, "host_us": {"decided": 5.0},
        "errors": {}, "wrong": [], "failed": {"async TP": "no luck"}, "decision": "",
    }  # fmt: skip
    report = Report({}, None)
    _judge({"failed": "", "points": [one], "no pipelines": "", "ranks": 8}, report)
    assert report.failed == ["all_gather_matmul 1000 x 1000 x 4000, async TP"]
    speeds = next(line for line in report.lines if "decided / alone" in line)
    cells = ["1000,", "1000,", "4000", "1", "0", "1", "1", "0.800"]
    assert speeds.splitlines()[-1].split() == cells


@pytest.mark.parametrize("option", ["--check", "--step"])
def test_what_ranks_that_share_a_gpu_cannot_do(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if option == "--step":
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr("benchmarks.overlap.run.facts", lambda _: {})
    more = ["--ranks", "8"] if option == "--step" else ["--target", "cpu"]
    assert main(["overlap", option, *more]) == 1
    assert f"overlap {option}: expected" in capsys.readouterr().err
