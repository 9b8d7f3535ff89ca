# SPDX-License-Identifier: Apache-2.0
"""A fuser whose regions are evaluated op by op in torch: it tests claims and translation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from thunder.dynamo.benchmark_utils import TorchInductorSpecification

from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.executors.run.region_callable import Compile
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.record import Definition
from thunder_fuser.ir.rules.build import define
from thunder_fuser.runtime.eager.evaluate import evaluate


def evaluated(
    definition: Definition, name: str, args: Sequence[Any]
) -> Callable[..., list[torch.Tensor]]:
    """A backend without kernels. The fusion goes through its text, as every fusion must."""
    fusion = define(definition)
    assert rebuild(str(fusion)) == fusion
    return lambda *args: evaluate(fusion, args)


@pytest.fixture
def evaluate_region() -> Compile:
    return evaluated


@cache
def _fuser() -> ThunderFuser:
    """One for all tests: it registers hundreds of functions."""
    return ThunderFuser("evaluated", evaluated)


@pytest.fixture
def fuser(monkeypatch: pytest.MonkeyPatch) -> ThunderFuser:
    monkeypatch.setattr(_fuser(), "last_claims", None)
    return _fuser()


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchcompile claims, joins and orders as ever, but torch runs what it would compile; so it
    does what thunderfx leaves to inductor."""
    compiled = torch.compile

    def compile_for_thunderfx(function: Any, **given: Any) -> Any:
        return compiled(function, **given) if "backend" in given else function

    def untouched(module: Any, inputs: Any, **given: Any) -> Any:
        return module

    monkeypatch.setattr(torch, "compile", compile_for_thunderfx)
    monkeypatch.setattr(TorchInductorSpecification, "torch_inductor", staticmethod(untouched))
    monkeypatch.setattr(torch._inductor, "compile", untouched)  # for the recipe
