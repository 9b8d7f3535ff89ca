# SPDX-License-Identifier: Apache-2.0
"""Pipelines in processes on the CPU; see helpers/pipeline_ranks.py and many_ranks.py."""

from __future__ import annotations

import pytest
from helpers.meshes import run_gloo


@pytest.mark.parametrize("size", [2, 4])
def test_ranks(size: int) -> None:
    run_gloo("pipeline_ranks.py", size, seconds=120)


@pytest.mark.parametrize("size", [3, 8])
def test_many_ranks(size: int) -> None:
    """Tiny tensors: as many ranks as a host has GPUs, and a number that is no power of two."""
    run_gloo("many_ranks.py", size)
