# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks first_step`: its figures, its bounds and its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.first_step import run
from benchmarks.first_step.measure import ALONE, COMPILE, OURS, Measured, Wanted, measure
from benchmarks.first_step.run import COLD, WARM, Row, bounds


def row(contender: str, state: str, seconds: float, loss: float = 3.0) -> Row:
    return Row("gpt2", contender, state, Measured(seconds, seconds, loss, 0, 1, 0))


def test_bounds_are_met_and_missed() -> None:
    rows = [row(ALONE, COLD, 10), row(OURS, COLD, 4), row(OURS, WARM, 3),
            row(COMPILE, COLD, 5), row(COMPILE, WARM, 2)]  # fmt: skip
    found = [(one.met, one.found) for one in bounds(rows)]
    assert found == [(True, 0.4), (True, 0.8), (False, 1.5)]
    assert not bounds(rows[:1]) and len(bounds(rows[:2])) == 1


def test_a_measurement_has_times_counts_and_stages() -> None:
    found = measure(Wanted("gpt2", OURS, counts=True))
    assert found.seconds > 0 and found.cpu_seconds > 0 and found.calls > 10_000
    assert found.kernels + found.found >= 1 and found.stages["claim"] == 1


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    losses = {ALONE: 3.0, OURS: 3.0, COMPILE: 4.0}

    def in_a_process(wanted: Wanted, folder: str) -> Measured:
        return row(wanted.contender, COLD, 2.0, losses[wanted.contender]).found

    monkeypatch.setattr(run, "_in_a_process", in_a_process)
    place = tmp_path / "figures.json"
    code = main(["first_step", "--device", "cpu", "--models", "gpt2", "--json", str(place)])
    content: dict[str, Any] = json.loads(place.read_text())
    assert code == 1  # torch.compile's loss
    assert content["failed"] == ["gpt2, torch.compile, cold", "gpt2, torch.compile, warm"]
    assert len(content["figures"]["rows"]) == 5 and len(content["figures"]["bounds"]) == 3
