# SPDX-License-Identifier: Apache-2.0
"""Classes by union-find are those that joining sets one by one gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thunder_fuser.base.union_find import UnionFind


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=20))
def test_classes(pairs: list[tuple[int, int]]) -> None:
    same: UnionFind[int] = UnionFind()
    classes = {item: {item} for item in range(13)}
    for first, second in pairs:
        name = same.find(first)
        same.join(first, second)
        assert same.find(second) == name
        both = classes[first] | classes[second]
        classes.update(dict.fromkeys(both, both))
    for item, others in classes.items():
        assert {other for other in classes if same.find(other) == same.find(item)} == others
