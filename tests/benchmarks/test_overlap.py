# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks overlap` without a GPU: small results, predictions, ranks that fail."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.overlap.points import GATHER, SCATTER, SHAPES, Point, bounds, points
from benchmarks.overlap.run import _Rank, _wait


def test_small_results_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap", "--target", "cpu", "--ranks", "2", "--seconds", "60"]) == 0
    shown = capsys.readouterr().out
    assert "matmul_reduce_scatter 240 x 40 x 16 float32, 2 ranks" in shown


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap"]) == 1
    assert "overlap: expected a machine with CUDA devices, got none" in capsys.readouterr().err


def test_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap", "--model"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{m}, {k}, {n} " in shown for m, k, n in SHAPES)


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
