# SPDX-License-Identifier: Apache-2.0
"""Merges of groups: none makes a cycle, and none is refused that would not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.segment import acyclic
from thunder_fuser.segment.acyclic import GroupOrder

Edges = set[tuple[int, int]]


def indirect(edges: Edges, a: int, b: int) -> bool:
    """True if a path leads from one of two nodes to the other through a third."""
    for start, end in ((a, b), (b, a)):
        stack = [y for x, y in edges if x == start and y != end]
        seen = set(stack)
        while stack:
            at = stack.pop()
            if at == end:
                return True
            new = {y for x, y in edges if x == at} - seen
            seen |= new
            stack += new
    return False


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 1 << 30), st.integers(2, 14), st.floats(0.1, 0.6))
def test_merges_are_refused_only_for_cycles(seed: int, count: int, density: float) -> None:
    chance = random.Random(seed)
    edges: Edges = {
        (a, b) for b in range(count) for a in range(b) if chance.random() < density
    }
    order = GroupOrder([[x for x, y in sorted(edges) if y == b] for b in range(count)])
    for _ in range(3 * count):
        a, b = (order.find(chance.randrange(count)) for _ in range(2))
        if a == b:
            continue
        forbidden = indirect(edges, a, b)
        assert order.merge(a, b) != forbidden
        edges = {(order.find(x), order.find(y)) for x, y in edges}
        edges = {(x, y) for x, y in edges if x != y}
        place = {group: at for at, group in enumerate(order.groups())}
        assert all(place[x] < place[y] for x, y in edges)


def test_a_search_that_goes_too_far_supposes_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acyclic, "MOST_STEPS", 3)
    order = GroupOrder([[], [], *([at] for at in range(1, 8)), [0, 8]])
    assert not order.merge(0, 9)
    assert order.merge(4, 5)
