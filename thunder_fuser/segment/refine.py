# SPDX-License-Identifier: Apache-2.0
"""A small plan -> a better one, one step at a time, as long as one of these lowers its cost:

    merge     two segments become one
    dissolve  the readers of a segment compute what it does, and it goes
    copy      a reader computes what it reads, the cheap expressions or the last one behind it
    read      a segment reads what it had computed too, for another stores it anyway
    pull      what reads a value moves to where that is made
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.candidate import (
    Candidate,
    cost_of,
    external,
    is_twice,
    live_exprs,
    settled,
)
from thunder_fuser.segment.facts import Facts
from thunder_fuser.segment.recompute import cheap_chain

MAX_COPIED = 40  # expressions taken along in one step
MAX_STEPS = 24  # that are taken
MAX_SEGMENTS = 12

Sets = list[frozenset[int]]


def refine(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The plan after the steps that lower its cost; the same one if none does."""
    search = _Search(acceptance)
    cost = search.total(candidates)
    for _ in range(MAX_STEPS):
        if not 1 < len(candidates) <= MAX_SEGMENTS:
            break
        better = search.better(candidates, cost)
        if better is None:
            break
        candidates, cost = better
    return candidates


class _Search:
    def __init__(self, acceptance: Acceptance) -> None:
        self.acceptance, self.facts = acceptance, acceptance.facts
        self._costs: dict[Candidate, float] = {}

    def total(self, candidates: Sequence[Candidate]) -> float:
        return sum(self._cost(one) for one in candidates)

    def _cost(self, one: Candidate) -> float:
        if one not in self._costs:
            self._costs[one] = cost_of(self.facts, one)
        return self._costs[one]

    def better(
        self, candidates: list[Candidate], cost: float
    ) -> tuple[list[Candidate], float] | None:
        """The cheapest plan that is one step away, if it is cheaper than this one."""
        best = None
        for sets in _steps(self.facts, candidates):
            found = arranged(self.facts, sets, candidates)
            if found is None or is_twice(self.facts, [one.exprs for one in found]):
                continue
            now = self.total(found)
            if now < cost * (1 - 1e-6) and all(self._is_allowed(one) for one in found):
                best, cost = found, now
        return None if best is None else (best, cost)

    def _is_allowed(self, one: Candidate) -> bool:
        return not self.acceptance.has_cut(one.exprs) and not self.acceptance.refuses_set(
            one.exprs, one.stores
        )


def arranged(facts: Facts, sets: Sets, before: Sequence[Candidate]) -> list[Candidate] | None:
    """The sets as candidates in an order in which they can run; None if there is none.

    A value is stored where it was before, if that set still makes it, else by the first that does.
    """
    homes: dict[str, int] = {}
    for at, exprs in enumerate(sets):
        for expr in sorted(exprs):
            for name in facts.exprs[expr].outputs:
                kept = at < len(before) and name in before[at].stores
                if kept or name not in homes:
                    homes[name] = at
    line = _in_order(facts, sets, homes)
    if line is None:
        return None
    place = {at: number for number, at in enumerate(line)}
    home = {name: place[at] for name, at in homes.items()}
    return settled(facts, [sets[at] for at in line], home)


def _in_order(facts: Facts, sets: Sets, homes: dict[str, int]) -> list[int] | None:
    needs = []
    for at, exprs in enumerate(sets):
        read = [name for name in external(facts, exprs) if name in facts.number]
        if any(name not in homes for name in read):
            return None
        needs.append({homes[name] for name in read} - {at})
    line: list[int] = []
    while len(line) < len(sets):
        ready = [at for at in range(len(sets)) if at not in line and needs[at] <= set(line)]
        if not ready:
            return None
        line.append(ready[0])
    return line


def _steps(facts: Facts, candidates: Sequence[Candidate]) -> Iterator[Sets]:
    """The plans one step away."""
    sets = [one.exprs for one in candidates]
    home = {name: at for at, one in enumerate(candidates) for name in sorted(one.stores)}
    edges = [
        (home[name], at, name)
        for at, exprs in enumerate(sets) for name in external(facts, exprs) if name in home
    ]
    for a in range(len(sets)):
        for b in range(a + 1, len(sets)):
            yield _with(sets, {a: sets[a] | sets[b], b: frozenset()})
        readers = {at for maker, at, _ in edges if maker == a}
        if readers and len(sets[a]) <= MAX_COPIED:
            grown = {at: sets[at] | sets[a] for at in readers}
            yield _with(sets, {**grown, a: frozenset()})
    for maker, reader, name in edges:
        chain = live_exprs(facts, sets[maker], [name])
        last = facts.number[name]
        if len(chain) <= MAX_COPIED:
            yield _with(sets, {reader: sets[reader] | chain})
        yield _with(sets, {reader: sets[reader] | cheap_chain(facts, name)})
        yield _with(sets, {reader: sets[reader] | {last}})
        yield _with(sets, {reader: sets[reader] | {last}, maker: sets[maker] - {last}})
        for use in facts.uses[name]:
            if use in sets[reader]:
                moved = sets[maker] | {use}
                yield _with(sets, {maker: moved, reader: sets[reader] - {use}})
    for name, maker in home.items():
        for at, exprs in enumerate(sets):
            if at != maker and facts.number[name] in exprs:
                yield _with(sets, {at: exprs - {facts.number[name]}})


def _with(sets: Sets, changed: dict[int, frozenset[int]]) -> Sets:
    return [changed.get(at, exprs) for at, exprs in enumerate(sets)]
