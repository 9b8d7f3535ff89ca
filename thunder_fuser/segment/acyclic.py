# SPDX-License-Identifier: Apache-2.0
"""The order in which groups can run, kept while groups merge: may two merge without a cycle?

    0 -> 1 -> 2, 0 -> 2     0 and 2 may not merge: 1 would have to run after and before them

Every group has a rank, and what it reads comes from lower ranks. A path from a to b runs through
ranks between theirs, so the search looks at nothing else (Pearce and Kelly, 2006). When two groups
merge, what leads to the later one moves before both, and what follows from the earlier one behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from thunder_fuser.union_find import UnionFind

MOST_STEPS = 512  # of a search; beyond it a path is supposed


class TooFar(Exception):
    """A search that has not ended after MOST_STEPS."""


class Order:
    """Ranks and edges of groups. `find` maps a group merged away to the one it is now part of."""

    def __init__(self, edges: Mapping[int, Iterable[int]], count: int) -> None:
        """edges: from each of `count` groups, which are in a valid order, to those that read it."""
        self._rank = list(range(count))
        self._merged: UnionFind[int] = UnionFind()
        self._after: list[list[int]] = [list(edges.get(at, ())) for at in range(count)]
        self._before: list[list[int]] = [[] for _ in range(count)]
        for at, readers in enumerate(self._after):
            for reader in readers:
                self._before[reader].append(at)

    def find(self, group: int) -> int:
        """The group that this one is now part of."""
        return self._merged.find(group)

    def groups(self) -> list[int]:
        """All groups, each after those it reads."""
        found = [g for g in range(len(self._rank)) if self.find(g) == g]
        return sorted(found, key=self._rank.__getitem__)

    def before(self, group: int) -> list[int]:
        """The groups it reads from."""
        return self._neighbours(self._before, group)

    def after(self, group: int) -> list[int]:
        """The groups that read from it."""
        return self._neighbours(self._after, group)

    def _neighbours(self, edges: list[list[int]], group: int) -> list[int]:
        """The groups at the other ends, each once; the list is shortened to them."""
        found = dict.fromkeys(map(self.find, edges[group]))
        found.pop(group, None)
        edges[group] = list(found)
        return edges[group]

    def path(self, a: int, b: int) -> list[int] | None:
        """A path from one of two groups to the other through a third; None if there is none."""
        a, b = sorted((a, b), key=self._rank.__getitem__)
        came: dict[int, int] = {}
        stack = [g for g in self.before(b) if g != a and self._rank[g] > self._rank[a]]
        came.update(dict.fromkeys(stack, b))
        while stack:
            group = stack.pop()
            for other in self.before(group):
                if other == a:
                    return [a, *_back(came, group)]
                if self._rank[other] > self._rank[a] and other not in came:
                    came[other] = group
                    stack.append(other)
        return None

    def merge(self, a: int, b: int) -> bool:
        """Makes two groups one, called the smaller number; False if that would make a cycle."""
        a, b = sorted((a, b), key=self._rank.__getitem__)
        try:
            above = self._rank[a]
            led = self._reached(self.before, b, a, lambda rank: rank > above)
            if led is None:
                return False
            below = self._rank[b]
            left = self._reached(self.after, a, b, lambda rank: rank < below) if led else []
        except TooFar:
            return False
        assert left is not None  # a path would have been found from its other end
        self._shift(a, led, left)
        keep, gone = min(a, b), max(a, b)
        self._rank[keep] = self._rank[a]
        self._merged.join(keep, gone)
        for edges in (self._after, self._before):
            edges[keep] = _poured(edges[keep], edges[gone])
            edges[gone] = []
        return True

    def _reached(
        self,
        step: Callable[[int], list[int]],
        start: int,
        end: int,
        inside: Callable[[int], bool],
    ) -> list[int] | None:
        """All that lies on one side of `start` within ranks; None if `end` does, but for an edge
        from one to the other."""
        steps = 0
        seen = {g for g in step(start) if g != end and inside(self._rank[g])}
        stack = list(seen)
        while stack:
            near = step(stack.pop())
            steps += len(near)
            if steps > MOST_STEPS:
                raise TooFar
            if end in near:
                return None
            new = [g for g in near if inside(self._rank[g]) and g not in seen]
            seen.update(new)
            stack += new
        return sorted(seen, key=self._rank.__getitem__)

    def _shift(self, a: int, led: list[int], left: list[int]) -> None:
        """New ranks, of the same numbers: what leads to b, both, what follows from a."""
        line = [*led, a, *left]
        ranks = sorted(self._rank[g] for g in line)
        for group, rank in zip(line, ranks, strict=True):
            self._rank[group] = rank


def _poured(into: list[int], more: list[int]) -> list[int]:
    if len(into) < len(more):
        into, more = more, into
    into += more
    return into


def _back(came: Mapping[int, int], group: int) -> list[int]:
    """The rest of a path, from a group to where the search began."""
    found = [group]
    while found[-1] in came:
        found.append(came[found[-1]])
    return found
