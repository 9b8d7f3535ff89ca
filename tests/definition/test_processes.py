# SPDX-License-Identifier: Apache-2.0
"""Sharded fusions in four processes that talk through gloo; see helpers/gloo_ranks.py."""

from __future__ import annotations

import pytest
from helpers.meshes import run_gloo


@pytest.mark.parametrize("size", [4])
def test_ranks(size: int) -> None:
    run_gloo("gloo_ranks.py", size)
