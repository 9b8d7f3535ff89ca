# SPDX-License-Identifier: Apache-2.0
"""A topological order of groups, kept up to date while they merge: would a merge close a cycle?

    0 -> 1 -> 2, 0 -> 2     0 and 2 may not merge: 1 would have to run after and before them

Every group has a rank above those of the groups it reads. A path from a to b runs through ranks
between theirs, so a search looks at nothing else (Pearce and Kelly, 2006). When two groups merge,
the ancestors of the later one move before both, and the descendants of the earlier one behind both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from thunder_fuser.base.union_find import UnionFind

MOST_STEPS = 512  # of a search; beyond it a path is assumed


class GroupOrder:
    """Ranks and edges of groups. `find` maps a merged group to the one that it is now part of."""

    def __init__(self, before: Sequence[Iterable[int]]) -> None:
        """before: the groups that each one reads from. The groups are in topological order."""
        self._rank = list(range(len(before)))
        self._merged: UnionFind[int] = UnionFind()
        self._before = [list(groups) for groups in before]
        self._after: list[list[int]] = [[] for _ in before]
        for at, groups in enumerate(self._before):
            for group in groups:
                self._after[group].append(at)

    def find(self, group: int) -> int:
        """The group that this one is now part of."""
        return self._merged.find(group)

    def groups(self) -> list[int]:
        """All groups, each after those it reads."""
        roots = [g for g in range(len(self._rank)) if self.find(g) == g]
        return sorted(roots, key=self._rank.__getitem__)

    def _neighbours(self, edges: list[list[int]], group: int) -> list[int]:
        """The groups at the other ends of a group's edges, each once. Drops edges that merges have
        made equal or inner."""
        ends = dict.fromkeys(map(self.find, edges[group]))
        ends.pop(group, None)
        edges[group] = list(ends)
        return edges[group]

    def merge(self, a: int, b: int) -> bool:
        """Merges two groups under the smaller number; False if that would close a cycle."""
        a, b = sorted((a, b), key=self._rank.__getitem__)
        ancestors = self._between(self._before, b, a)
        descendants = self._between(self._after, a, b) if ancestors else []
        if ancestors is None or descendants is None:
            return False
        self._shift([*ancestors, a, *descendants])
        keep, gone = min(a, b), max(a, b)
        self._rank[keep] = self._rank[a]
        self._merged.join(keep, gone)
        for edges in (self._after, self._before):
            less, more = sorted((edges[keep], edges[gone]), key=len)
            more += less
            edges[keep], edges[gone] = more, []
        return True

    def _between(self, edges: list[list[int]], start: int, end: int) -> list[int] | None:
        """The groups that edges reach from `start`, with ranks between `start` and `end`.

        None if they reach `end` through a third group, or the search exceeds MOST_STEPS.
        """
        low, high = sorted((self._rank[start], self._rank[end]))
        seen = {g for g in self._neighbours(edges, start) if low < self._rank[g] < high}
        stack, steps = list(seen), 0
        while stack:
            near = self._neighbours(edges, stack.pop())
            steps += len(near)
            if end in near or steps > MOST_STEPS:
                return None
            new = [g for g in near if low < self._rank[g] < high and g not in seen]
            seen.update(new)
            stack += new
        return sorted(seen, key=self._rank.__getitem__)

    def _shift(self, line: list[int]) -> None:
        """Sorts the ranks of these groups into this order."""
        ranks = sorted(self._rank[g] for g in line)
        for group, rank in zip(line, ranks, strict=True):
            self._rank[group] = rank
