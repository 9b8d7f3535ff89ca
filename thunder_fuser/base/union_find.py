# SPDX-License-Identifier: Apache-2.0
"""Disjoint classes of things, each named by one member.

>>> same: UnionFind[str] = UnionFind()
>>> same.join("a", "b"); same.join("a", "c")
>>> same.find("c"), same.find("d")
('a', 'd')
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class UnionFind(Generic[Item]):
    """Disjoint sets. An item that was never joined is its own class."""

    def __init__(self) -> None:
        self._parent: dict[Item, Item] = {}

    def find(self, item: Item) -> Item:
        """The member that names the class."""
        parent = self._parent
        while item in parent:
            above = parent[item]
            parent[item] = parent.get(above, above)  # path compression
            item = above
        return item

    def join(self, first: Item, second: Item) -> None:
        """Makes two classes one, under the name of the first."""
        ours, theirs = self.find(first), self.find(second)
        if ours != theirs:
            self._parent[theirs] = ours
