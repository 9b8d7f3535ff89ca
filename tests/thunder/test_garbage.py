# SPDX-License-Identifier: Apache-2.0
"""Full collections wait while a function compiles, and for nothing else."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import thunder
import torch
from thunder.core.interpreter import make_opaque

from thunder_fuser.executors.fuser import fuser
from thunder_fuser.thunder_patches.garbage import full_collections_wait

Thresholds = tuple[int, int, int]


@pytest.fixture
def before() -> Thresholds:
    return gc.get_threshold()


def thresholds_of(seen: list[Thresholds], **given: Any) -> Any:
    """A jitted function that notes Python's thresholds while it is traced."""

    @make_opaque
    def note() -> None:
        seen.append(gc.get_threshold())

    def function(x: torch.Tensor) -> torch.Tensor:
        note()
        if x.ndim == 3:
            raise ValueError
        return torch.sin(x) * 2

    return thunder.jit(function, **given)


def test_a_full_collection_waits_for_the_trace(before: Thresholds) -> None:
    seen: list[Thresholds] = []
    jitted = thresholds_of(seen, executors=[fuser])
    jitted(torch.randn(3))
    young, middle, old = before
    assert seen[0][:2] == (young, middle) and seen[0][2] > 100 * old
    assert gc.get_threshold() == before
    with pytest.raises(ValueError):
        jitted(torch.randn(3, 3, 3))
    assert len(seen) == 2 and gc.get_threshold() == before


def test_not_for_thunder_alone(before: Thresholds) -> None:
    seen: list[Thresholds] = []
    thresholds_of(seen)(torch.randn(3))
    assert seen == [before]


def test_the_last_of_several_compilations_restores_the_thresholds(before: Thresholds) -> None:
    one, other = full_collections_wait(), full_collections_wait()
    with one:
        other.__enter__()
    assert gc.get_threshold() != before
    other.__exit__(None, None, None)
    assert gc.get_threshold() == before
