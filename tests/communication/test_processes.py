# SPDX-License-Identifier: Apache-2.0
"""Pipelines in two and four processes on the CPU; see helpers/pipeline_ranks.py."""

from __future__ import annotations

import pytest
from helpers.meshes import run_gloo


@pytest.mark.parametrize("size", [2, 4])
def test_ranks(size: int) -> None:
    run_gloo("pipeline_ranks.py", size, seconds=120)
