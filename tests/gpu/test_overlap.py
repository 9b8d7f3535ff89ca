# SPDX-License-Identifier: Apache-2.0
"""Pipelines behind matrix products, of two and four ranks that share one CUDA device."""

from __future__ import annotations

import pytest
import torch
from helpers.meshes import run_gloo

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_on_one_device(size: int) -> None:
    run_gloo("pipeline_ranks.py", size, "cuda", seconds=80)
