# SPDX-License-Identifier: Apache-2.0
"""A small part of `python -m benchmarks loss`, on the CPU."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmarks import loss, train_step
from benchmarks.report import Report


def given(cases: str) -> argparse.Namespace:
    return argparse.Namespace(
        small=True, cases=cases, rows="8", policies="memory", compile=False,
        device=torch.device("cpu"),
    )  # fmt: skip


@pytest.mark.parametrize("case", ["gemma-head", "llama-4"])
def test_steps_are_right_and_measured(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_step, "SECONDS", 0.1)
    report = Report({}, None)
    loss.run(given(case), report)
    assert report.failed == []
    steps: dict[str, Any] = report.figures[case]["steps"]
    assert list(steps) == ["eager", "memory", "time, 8"]
    assert all(step["ms"] > 0 and step["gradient_error"] < 0.05 for step in steps.values())
    assert steps["time, 8"]["saved"] < steps["eager"]["saved"]
    assert len(report.lines) == 1 + len(steps)


def test_liger_is_no_contender_without_a_gpu() -> None:
    model = loss.Head(loss.small(loss.LLAMA))
    assert "liger" not in dict(loss.contenders(model, given("llama-head")))


def test_float64_in_parts_is_float64() -> None:
    torch.manual_seed(0)
    head = loss.Head(loss.small(loss.GEMMA)).double()
    targets = torch.randint(0, 201, (2, 16))
    logits = loss.capped(F.linear(head.hidden_state, head.weight), head.case.cap)
    value = F.cross_entropy(logits, targets.flatten())
    right = [value.detach(), *torch.autograd.grad(value, [*head.parameters()])]
    torch.testing.assert_close(head.exact(targets, rows=7), right)
