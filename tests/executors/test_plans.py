# SPDX-License-Identifier: Apache-2.0
"""What each pass over a trace and over its regions does to some twenty traces, as golden texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from helpers.meshes import as_rank
from helpers.plan_traces import TRACES, GatedMlp, Traced, sequence_parallel
from thunder.distributed import ddp, fsdp

from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.ir.rules.build import define
from thunder_fuser.multi_device import MultiDeviceParams
from thunder_fuser.runtime.eager.evaluate import evaluate

Transformed = Callable[..., Any]


def plan_text(
    dump: Path, traced: Traced, transform: Transformed = lambda module: module
) -> str:
    """The plans of a call: of the forward and the backward together."""

    def evaluated(definition: Any, name: str, args: Any) -> Callable[..., list[torch.Tensor]]:
        fusion = define(definition)
        return lambda *args: evaluate(fusion, args)

    options = {**traced.options, "fuser_dump": str(dump)}
    executor = ThunderFuser("plans", evaluated)
    transform(thunder.jit(traced.function, executors=[executor], **options))(*traced.args)
    plans = sorted(dump.glob("plan_*.txt"))
    assert plans, "nothing was compiled"
    text = "\n".join(plan.read_text("utf-8") for plan in plans)
    return re.sub(r"(conv2d_[a-z]+\d?)_\d+", r"\1", text)  # numbered in the order of a process


@pytest.mark.parametrize("name", TRACES)
def test_plan(name: str, tmp_path: Path, golden: Callable[[str], None]) -> None:
    torch.manual_seed(1)
    golden(plan_text(tmp_path, TRACES[name]()))


def sharded(module: Any) -> Any:
    return fsdp(module, device=torch.device("cpu"))


@pytest.mark.parametrize("transform", [ddp, sharded], ids=["ddp", "fsdp"])
def test_plan_of_parallel_data(
    transform: Transformed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str], None],
) -> None:
    """No region writes over what it is the last to read: Thunder moves the calls after the plan,
    to overlap them with collectives."""
    torch.manual_seed(1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with as_rank(0, 2):
        text = plan_text(tmp_path, Traced(GatedMlp(), (torch.randn(4, 16),)), transform)
    assert "donated" not in text
    golden(text)


@pytest.mark.parametrize("overlap", ["never", "always"])
def test_plan_of_products_with_collectives(
    overlap: str, tmp_path: Path, golden: Callable[[str], None]
) -> None:
    torch.manual_seed(1)
    params = MultiDeviceParams().with_(lower={"overlap": overlap})
    shapes = ((4, 16), (16, 16), (16, 16))
    args = tuple(torch.randn(shape, requires_grad=True) for shape in shapes)
    with as_rank(0, 2):
        traced = Traced(sequence_parallel, args, {"fuser_multi_device": params})
        golden(plan_text(tmp_path, traced))
