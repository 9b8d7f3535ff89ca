# SPDX-License-Identifier: Apache-2.0
"""The loss of a head whose words are divided over two processes; see gloo_sharded_head.py."""

from __future__ import annotations

from helpers.meshes import run_gloo


def test_ranks() -> None:
    run_gloo("gloo_sharded_head.py", 2)
