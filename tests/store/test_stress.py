# SPDX-License-Identifier: Apache-2.0
"""A small part of `python -m benchmarks cache_stress`."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable

import pytest
from helpers.forked import python
from helpers.steps import LINEAR, growth, steps

from benchmarks.cache_stress import (
    Definitions,
    one_definition,
    private_store,
    recorded,
    threads_for,
)
from thunder_fuser import FusionCache

IN_PRIVATE = """
import json
from benchmarks.cache_stress import many_definitions, private_store
with private_store():
    print(json.dumps(vars(many_definitions(200, 8))))
"""


def test_definitions_through_a_small_cache() -> None:
    """In a process of its own: here the memory of earlier tests is freed or grows meanwhile."""
    found = Definitions(**json.loads(python(IN_PRIVATE)))
    assert found.evictions > 50 and found.hits > 0
    assert found.most_nodes <= found.bound
    assert found.compiled <= 8 * 3  # ops, ranks and widths: whatever the definitions
    assert found.is_flat, found.kib


def test_a_definition_makes_no_name_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's table of interned names never shrinks, also where the names are forgotten: it grew
    by megabytes as pathlib put every part of the compiler's path there, for each definition."""
    rng, names = random.Random(0), list[str]()
    with private_store(), FusionCache(max_fusions=4) as cache:
        for _ in range(20):
            one_definition(rng)
        monkeypatch.setattr(sys, "intern", lambda name: names.append(name) or name)
        for _ in range(20):
            one_definition(rng)
        assert cache.stats().evictions > 20
    assert names == []


def test_threads_that_evict() -> None:
    with private_store():
        found = threads_for(4.0, count=8, capacity=4)
    assert found.calls > 0 and found.evictions > 0
    assert found.compiled == found.kernels > 0


def test_a_walk_takes_as_many_steps_as_ops() -> None:
    """The benchmark times it: under 1 us an op."""
    assert growth(walk, 100) < LINEAR
    assert steps(walk(100)) < 100 * 100


def walk(ops: int) -> Callable[[], object]:
    """A hit in a trie, by a definition that was recorded anew."""
    cache = FusionCache()
    cache.look_up(recorded(ops))
    definition = recorded(ops)
    return lambda: cache.look_up(definition)
