# SPDX-License-Identifier: Apache-2.0
"""Whole models: errors are checked, and one that cannot run is a row with its reason."""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from benchmarks.__main__ import main
from benchmarks.report import Report
from benchmarks.whole_models import run as whole_models
from benchmarks.whole_models import turns
from benchmarks.whole_models.measure import Subject, where_time_goes
from benchmarks.whole_models.turns import Turn
from benchmarks.whole_models.zoo import Entry, Sizes

SIZES = Sizes(2, 4)


class Doubled(nn.Module):
    """The mean of x * w and y, w two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * self.w).exp().mean() + y.mean()


def entry(model: nn.Module) -> Entry:
    return Entry(
        lambda sizes: (model, lambda: (torch.randn(2, 4), torch.randn(2, 4))), SIZES, SIZES
    )


def measured(model: nn.Module, tmp_path: Path) -> tuple[dict[str, Any], Report]:
    given = argparse.Namespace(
        device=torch.device("cpu"), dtype=None, compile=False, graphs=False, seconds=1, model=None
    )
    report = Report({}, str(tmp_path / "found.json"))
    found = whole_models.measure(entry(model), given, Turn(-1))
    whole_models.judge(report, "doubled", found)
    return found, report


def test_a_model_is_measured_beside_eager(tmp_path: Path) -> None:
    found, report = measured(Doubled(), tmp_path)
    for contender in ("eager", "ours"):
        one = found["steps"][contender]
        assert one["gradient_error"] < 1e-6 and one["train_ms"] > 0 and one["infer_ms"] > 0
    assert report.failed == []
    assert "doubled" in whole_models.line("doubled", found)


def test_experts_run_one_by_one_in_float64() -> None:
    """There torch has no product of groups, which the model itself keeps."""
    model = Doubled()
    model.config = SimpleNamespace(_experts_implementation="grouped_mm")
    inputs = (torch.randn(2, 4), torch.randn(2, 4))
    seen = []
    with register_module_forward_pre_hook(
        lambda one, _: seen.append((one.w.dtype, one.config._experts_implementation))
    ):
        subject = Subject.make(model, inputs, torch.float32, torch.device("cpu"))
        subject.model(*inputs)
    assert seen == [(torch.float64, "eager"), (torch.float32, "grouped_mm")]


def test_wrong_gradients_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def contenders(*given: Any) -> dict[str, Any]:
        found = real(*given)

        def wrong(*inputs: torch.Tensor) -> torch.Tensor:
            return found["eager"](*inputs) * 1.5

        return found | {"ours": wrong}

    real = whole_models.contenders
    monkeypatch.setattr(whole_models, "contenders", contenders)
    _, report = measured(Doubled(), tmp_path)
    assert report.failed == ["doubled", "doubled"]  # the loss, and the gradients


def test_a_model_that_ours_refuses_is_a_row(tmp_path: Path, monkeypatch: Any) -> None:
    def refused(*given: Any) -> dict[str, Any]:
        def raises(*inputs: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError("no rule for a part")

        return real(*given) | {"ours": raises}

    real = whole_models.contenders
    monkeypatch.setattr(whole_models, "contenders", refused)
    found, _ = measured(Doubled(), tmp_path)
    assert found["steps"]["ours"] == {"why": "NotImplementedError: no rule for a part"}


def test_a_missing_extra_is_a_row_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "litgpt", None)  # as if it were not installed
    place = tmp_path / "models.json"
    code = main(
        ["models", "--device", "cpu", "--model", "llama", "--no-compile", "--json", str(place)]
    )
    assert code == 0
    assert "llama        not run: " in capsys.readouterr().out
    assert "install the extra models" in json.loads(place.read_text())["figures"]["llama"]["why"]


def test_time_is_told_apart_by_kind() -> None:
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    found = where_time_goes(lambda: torch.relu(x @ w).copy_(x), torch.device("cpu")).figures()
    assert found["products"] > 0 and found["copies and fills"] > 0 and found["launches"] >= 3
    assert found["kernels"]["aten::mm"][1] == 1


def test_a_process_measures_when_no_other_compiles(tmp_path: Path) -> None:
    """Each has a descriptor of the file, with the others' lock."""
    first, second = ((tmp_path / "turns").open("a") for _ in range(2))
    for one in (first, second):
        fcntl.flock(one, fcntl.LOCK_SH)
    with pytest.raises(BlockingIOError):
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(first, fcntl.LOCK_SH)
    second.close()
    third = (tmp_path / "turns").open("a")
    turn = Turn(first.fileno())
    with turn.memory(), turn.alone(), pytest.raises(BlockingIOError):
        fcntl.flock(third, fcntl.LOCK_SH | fcntl.LOCK_NB)
    first.close()
    third.close()


def test_a_process_that_fails_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "gpt2.log").write_text("out of memory")
    assert turns._figures(tmp_path, "gpt2")["why"] == "its process failed:\nout of memory"
