# SPDX-License-Identifier: Apache-2.0
"""A fuser whose regions are evaluated op by op in torch: it tests claims and translation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch

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
