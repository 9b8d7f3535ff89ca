# SPDX-License-Identifier: Apache-2.0
"""A small part of `python -m benchmarks train_step`, on the CPU."""

from __future__ import annotations

import argparse
import math

import pytest
import torch

from benchmarks import train_step
from benchmarks.report import Report

POLICIES = ("none", "memory")


def test_steps_are_right_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of one layer under two policies."""
    monkeypatch.setattr(train_step, "POLICIES", POLICIES)
    monkeypatch.setattr(train_step, "SECONDS", 0.1)
    report = Report({}, None)
    given = argparse.Namespace(
        small=True, layers=1, vocabulary=None, compile=False, device=torch.device("cpu")
    )
    train_step.run(given, report)
    assert report.failed == []
    steps = report.figures["steps"]
    assert list(steps) == ["eager", *POLICIES]
    assert steps["memory"]["saved"] < steps["eager"]["saved"] < steps["none"]["saved"]
    for step in steps.values():
        # Untrained weights tell nothing about the next of so many words.
        assert step["loss"] == pytest.approx(math.log(train_step.SMALL.vocabulary), rel=0.01)
        assert step["gradient_error"] < 0.05
    assert len(report.lines) == 1 + len(steps)


def test_a_wrong_gradient_fails() -> None:
    report = Report({}, None)
    right = {"loss_error": 1e-3, "gradient_error": 1e-2}
    steps = {"eager": right, "none": right, "memory": {**right, "gradient_error": 1.0}}
    for policy in POLICIES:
        train_step.check(report, policy, steps[policy], right, torch.bfloat16)
    assert report.failed == ["memory"]
