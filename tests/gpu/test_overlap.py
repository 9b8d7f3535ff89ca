# SPDX-License-Identifier: Apache-2.0
"""Pipelines behind matrix products, of two to eight ranks that share CUDA devices."""

from __future__ import annotations

import signal

import pytest
import torch
from helpers.meshes import gloo, run_gloo

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_on_one_device(size: int) -> None:
    run_gloo("pipeline_ranks.py", size, "cuda", seconds=80)


@pytest.mark.parametrize("size", [3, 8])
def test_many_ranks_on_few_devices(size: int) -> None:
    run_gloo("many_ranks.py", size, "cuda", seconds=80)


def test_a_rank_that_dies() -> None:
    """The watchdog ends the one that waits for it, and says why."""
    (code, text), (died, _) = gloo("dead_peer_rank.py", 2, "cuda", seconds=60)
    assert died == 3
    assert code == -signal.SIGABRT, text[-2000:]
    assert "rank 0, all_gather [1, 4, 8] float32: expected flags raised to 1 within" in text
