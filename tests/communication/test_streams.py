# SPDX-License-Identifier: Apache-2.0
"""Axes of products over streams, in four processes; see helpers/gloo_streams.py."""

from __future__ import annotations

import pytest
from helpers.meshes import run_gloo


@pytest.mark.parametrize("size", [4])
def test_ranks(size: int) -> None:
    run_gloo("gloo_streams.py", size)
