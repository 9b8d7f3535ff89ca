# SPDX-License-Identifier: Apache-2.0
"""A small part of `python -m benchmarks train_step`, on the CPU."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch

from benchmarks import train_step
from benchmarks.report import Report

POLICIES = ("none", "memory")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    """A run of one layer under two policies."""
    monkeypatch.setattr(train_step, "POLICIES", POLICIES)
    monkeypatch.setattr(train_step, "SECONDS", 0.1)
    found = Report({}, None)
    given = argparse.Namespace(
        small=True, layers=1, vocabulary=None, compile=False, device=torch.device("cpu")
    )
    train_step.run(given, found)
    return found


def test_steps_are_right_and_measured(report: Report) -> None:
    assert report.failed == []
    steps: dict[str, Any] = report.figures["steps"]
    assert list(steps) == ["eager", *POLICIES]
    assert steps["memory"]["saved"] < steps["eager"]["saved"] < steps["none"]["saved"]
    assert all(step["ms"] > 0 and step["gradient_error"] > 0 for step in steps.values())
    assert len(report.lines) == 1 + len(steps)
    steps["memory"]["gradient_error"] = 1.0
    train_step.check(report, "memory", steps)
    assert report.failed == ["memory"]
