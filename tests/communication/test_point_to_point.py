# SPDX-License-Identifier: Apache-2.0
"""Products as sends and receives, in two and four processes; see
helpers/gloo_point_to_point.py."""

from __future__ import annotations

import pytest
from helpers.meshes import run_gloo


@pytest.mark.parametrize("size", [2, 4])
def test_ranks(size: int) -> None:
    run_gloo("gloo_point_to_point.py", size)
