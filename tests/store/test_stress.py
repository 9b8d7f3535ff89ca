# SPDX-License-Identifier: Apache-2.0
"""A small part of `python -m benchmarks cache_stress`."""

from __future__ import annotations

import pytest

from benchmarks.cache_stress import many_definitions, private_store, threads_for, walk_cost


def test_definitions_through_a_small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # watch.py keeps all that a test makes
    with private_store():
        found = many_definitions(200, capacity=8)
    assert found.evictions > 50 and found.hits > 0
    assert found.most_nodes <= found.bound
    assert found.compiled <= 8 * 3  # ops, ranks and widths: whatever the definitions
    assert found.is_flat, found.kib


def test_threads_that_evict() -> None:
    with private_store():
        found = threads_for(4.0, count=8, capacity=4)
    assert found.calls > 0 and found.evictions > 0
    assert found.compiled == found.kernels > 0


def test_a_walk_is_short() -> None:
    """Under 1 us an op on a quiet machine; the bound is for busy ones."""
    assert walk_cost(rounds=20) < 5
