# SPDX-License-Identifier: Apache-2.0
"""What each pass over a trace and over its regions does to some twenty traces, as golden texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from helpers.meshes import as_rank
from helpers.plan_texts import recorded_plans
from helpers.plan_traces import TRACES, GatedMlp, Traced, sequence_parallel
from thunder.distributed import ddp, fsdp

from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.ir.build import define
from thunder_fuser.multi_device import MultiDeviceParams
from thunder_fuser.runtime.evaluate import evaluate

Transformed = Callable[..., Any]


def plan_text(
    monkeypatch: pytest.MonkeyPatch, traced: Traced, transform: Transformed = lambda module: module
) -> str:
    """The plans of a call: of the forward and the backward together."""

    def evaluated(definition: Any, name: str, args: Any) -> Callable[..., list[torch.Tensor]]:
        fusion = define(definition)
        return lambda *args: evaluate(fusion, args)

    executor = ThunderFuser("plans", evaluated)
    with recorded_plans(monkeypatch) as plans:
        function = transform(thunder.jit(traced.function, executors=[executor], **traced.options))
        function(*traced.args)
    assert plans, "nothing was compiled"
    return "\n".join(map(str, plans))


@pytest.mark.parametrize("name", TRACES)
def test_plan(
    name: str, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str], None]
) -> None:
    torch.manual_seed(1)
    golden(plan_text(monkeypatch, TRACES[name]()))


def sharded(module: Any) -> Any:
    return fsdp(module, device=torch.device("cpu"))


@pytest.mark.parametrize("transform", [ddp, sharded], ids=["ddp", "fsdp"])
def test_plan_of_parallel_data(
    transform: Transformed, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str], None]
) -> None:
    torch.manual_seed(1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with as_rank(0, 2):
        golden(plan_text(monkeypatch, Traced(GatedMlp(), (torch.randn(4, 16),)), transform))


@pytest.mark.parametrize("overlap", ["never", "always"])
def test_plan_of_products_with_collectives(
    overlap: str, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str], None]
) -> None:
    torch.manual_seed(1)
    params = MultiDeviceParams().with_(lower={"overlap": overlap})
    shapes = ((4, 16), (16, 16), (16, 16))
    args = tuple(torch.randn(shape, requires_grad=True) for shape in shapes)
    with as_rank(0, 2):
        traced = Traced(sequence_parallel, args, {"fuser_multi_device": params})
        golden(plan_text(monkeypatch, traced))
