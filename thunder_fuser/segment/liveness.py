# SPDX-License-Identifier: Apache-2.0
"""Candidates -> the order in which they run, with the lowest peak of live intermediates, in bytes.

    T1 = f(T0), T2 = g(T1), T3 = f'(T0), T4 = g'(T3), each a segment; T1 and T3 are large
->  f, g, f', g': T1 and T3 are not alive at once

Up to MOST_EXACT segments the order is the best of all. Beyond, it is greedy: the next segment is
the one that leaves the fewest bytes alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from heapq import heappop, heappush

from thunder_fuser.segment.candidate import Candidate, external, homes
from thunder_fuser.segment.facts import Facts

MOST_EXACT = 10


class _Lives:
    """Which segments store and read the values between segments, by number."""

    def __init__(self, facts: Facts, candidates: Sequence[Candidate]) -> None:
        home = homes(candidates)
        # Results live to the end in any order, so they count as 0.
        self.bytes = {name: facts.bytes[name] * (name not in facts.results) for name in home}
        self.makes = [one.stores for one in candidates]
        self.made = [sum(self.bytes[name] for name in names) for names in self.makes]
        self.reads = [[n for n in external(facts, one.exprs) if n in home] for one in candidates]
        self.needs = [{home[n] for n in names} for names in self.reads]
        self.readers: dict[str, set[int]] = {name: set() for name in home}
        for at, names in enumerate(self.reads):
            for name in names:
                self.readers[name].add(at)

    def freed(self, at: int, done: Set[int]) -> int:
        """Bytes of the values that nothing else reads after this segment, which follows `done`."""
        return sum(self.bytes[n] for n in self.reads[at] if self.readers[n] - done <= {at})

    def peak(self, order: Iterable[int]) -> int:
        """The most bytes of intermediates that are alive at once in this order."""
        done: set[int] = set()
        now = most = 0
        for at in order:
            now += self.made[at]
            most = max(most, now)
            now -= self.freed(at, done)
            done.add(at)
        return most


def peak(facts: Facts, candidates: Sequence[Candidate]) -> int:
    """The most bytes of intermediates alive at once in this order. Results do not count."""
    return _Lives(facts, candidates).peak(range(len(candidates)))


def by_liveness(facts: Facts, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates in the order with the lowest peak; unchanged if no order lowers it."""
    lives = _Lives(facts, candidates)
    if not any(lives.made):
        return candidates
    found = _best(lives) if len(candidates) <= MOST_EXACT else _greedy(lives)
    is_lower = lives.peak(found) < lives.peak(range(len(candidates)))
    return [candidates[at] for at in found] if is_lower else candidates


def _best(lives: _Lives) -> list[int]:
    """The order with the lowest peak; of equal ones, the first in program order."""
    # The bytes alive after a set of segments do not depend on the order in which they ran.
    alive: dict[frozenset[int], int] = {frozenset(): 0}
    best: dict[frozenset[int], tuple[int, tuple[int, ...]]] = {frozenset(): (0, ())}
    for _ in lives.needs:
        longer: dict[frozenset[int], tuple[int, tuple[int, ...]]] = {}
        for done, (most, line) in best.items():
            for at, needs in enumerate(lives.needs):
                if at in done or not needs <= done:
                    continue
                after, now = done | {at}, alive[done] + lives.made[at]
                alive[after] = now - lives.freed(at, done)
                found = max(most, now), (*line, at)
                longer[after] = min(longer.get(after, found), found)
        best = longer
    ((_, line),) = best.values()
    return list(line)


def _greedy(lives: _Lives) -> list[int]:
    """Takes the ready segment that leaves the fewest bytes alive; of equals, the first."""
    done: dict[int, None] = {}
    heap: list[tuple[int, int]] = []
    ready = [at for at, needs in enumerate(lives.needs) if not needs]
    left = {name: set(readers) for name, readers in lives.readers.items()}
    while ready or heap:
        for at in ready:
            heappush(heap, (lives.made[at] - lives.freed(at, done.keys()), at))
        _, at = heappop(heap)
        ready = []
        if at in done:
            continue
        done[at] = None
        near = {reader for name in lives.makes[at] for reader in lives.readers[name]}
        for name in lives.reads[at]:
            left[name].discard(at)
            near |= left[name] if len(left[name]) == 1 else set()  # it frees the value now
        ready = [other for other in near if lives.needs[other] <= done.keys()]
    return list(done)
