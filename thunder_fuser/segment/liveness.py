# SPDX-License-Identifier: Apache-2.0
"""Candidates -> the order in which they run, with the fewest bytes of intermediates alive at once.

    T1 = f(T0), T2 = g(T1), T3 = f'(T0), T4 = g'(T3), each a segment; T1 and T3 are large
->  f, g, f', g': one of T1 and T3 alive at a time, not both

Up to MOST_EXACT segments all orders are weighed; beyond, the next is the one that frees most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from thunder_fuser.segment.candidate import Candidate, external
from thunder_fuser.segment.facts import Facts

MOST_EXACT = 10


class _Lives:
    """Who makes and who reads the values between segments, by the segments' numbers."""

    def __init__(self, facts: Facts, candidates: Sequence[Candidate]) -> None:
        home = {name: at for at, one in enumerate(candidates) for name in sorted(one.stores)}
        self.bytes = facts.bytes
        self.reads = [[n for n in external(facts, one.exprs) if n in home] for one in candidates]
        self.needs = [{home[n] for n in names} for names in self.reads]
        self.makes_all = [sorted(one.stores) for one in candidates]
        self.makes = [sorted(one.stores - facts.results) for one in candidates]
        self.temporary = {name for names in self.makes for name in names}
        self.readers: dict[str, set[int]] = {name: set() for name in home}
        for at, names in enumerate(self.reads):
            for name in names:
                self.readers[name].add(at)

    def made(self, at: int) -> int:
        """Bytes of intermediates that a segment stores."""
        return sum(self.bytes[name] for name in self.makes[at])

    def freed(self, at: int, done: set[int]) -> int:
        """Bytes that nobody reads once it has run, after those done."""
        return sum(
            self.bytes[name] for name in self.reads[at]
            if name in self.temporary and self.readers[name] - done <= {at}
        )

    def peak(self, order: Iterable[int]) -> int:
        """The most bytes of intermediates that live at once in this order."""
        left = {name: len(readers) for name, readers in self.readers.items()}
        now = most = 0
        for at in order:
            now += self.made(at)
            most = max(most, now)
            for name in self.reads[at]:
                left[name] -= 1
                if not left[name] and name in self.temporary:
                    now -= self.bytes[name]
        return most


def peak(facts: Facts, candidates: Sequence[Candidate]) -> int:
    """The most bytes of intermediates, results left out, while candidates run in this order."""
    return _Lives(facts, candidates).peak(range(len(candidates)))


def by_liveness(facts: Facts, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates in the order with the lowest peak found; as they are if none is lower."""
    lives = _Lives(facts, candidates)
    if not lives.temporary:
        return list(candidates)
    found = _best(lives) if len(candidates) <= MOST_EXACT else _greedy(lives)
    is_lower = lives.peak(found) < lives.peak(range(len(candidates)))
    return [candidates[at] for at in found] if is_lower else list(candidates)


def _best(lives: _Lives) -> list[int]:
    """The order with the lowest peak, the first of them in program order."""
    count = len(lives.needs)
    # What is alive after a set of segments ran does not depend on their order.
    best: dict[frozenset[int], tuple[int, tuple[int, ...]]] = {frozenset(): (0, ())}
    alive: dict[frozenset[int], int] = {frozenset(): 0}
    for _ in range(count):
        longer: dict[frozenset[int], tuple[int, tuple[int, ...]]] = {}
        for done, (most, line) in best.items():
            for at in range(count):
                if at in done or not lives.needs[at] <= done:
                    continue
                after = done | {at}
                now = alive[done] + lives.made(at)
                alive[after] = now - lives.freed(at, set(done))
                longer[after] = min(longer.get(after, (1 << 62, ())), (max(most, now), (*line, at)))
        best = longer
    ((_, line),) = best.values()
    return list(line)


def _greedy(lives: _Lives) -> list[int]:
    """Always the ready segment that leaves least behind, the first of equals."""
    waiting = [len(needs) for needs in lives.needs]
    left = {name: set(readers) for name, readers in lives.readers.items()}
    heap: list[tuple[int, int]] = []
    done: set[int] = set()
    line: list[int] = []

    def push(at: int) -> None:
        last = (n for n in lives.reads[at] if n in lives.temporary and left[n] == {at})
        heappush(heap, (lives.made(at) - sum(lives.bytes[n] for n in last), at))

    for at, count in enumerate(waiting):
        if not count:
            push(at)
    while heap:
        _, at = heappop(heap)
        if at in done:
            continue
        done.add(at)
        line.append(at)
        for reader in sorted({r for n in lives.makes_all[at] for r in lives.readers[n]}):
            waiting[reader] -= 1
            if not waiting[reader]:
                push(reader)
        for name in lives.reads[at]:
            left[name].discard(at)
            for last in left[name] if len(left[name]) == 1 else ():
                if not waiting[last]:
                    push(last)
    return line
