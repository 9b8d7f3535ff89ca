# SPDX-License-Identifier: Apache-2.0
"""Candidates -> the order in which they run.

by_liveness: the order with the lowest peak of live intermediates, in bytes

    T1 = f(T0), T2 = g(T1), T3 = f'(T0), T4 = g'(T3), each a segment; T1 and T3 are large
->  f, g, f', g': T1 and T3 are not alive at once

Up to MOST_EXACT segments this order is the best of all. Beyond, it is greedy: the next segment is
the one that leaves the fewest bytes alive.

by_posts: an order in which kernels run while communication is under way

    K0 -> all_gather -> K1;  K0 -> K2       ->      K0, all_gather, K2, K1

Communication keeps the order of the definition, which all ranks share. Their kernels may differ:
segments may depend on strides, which may differ between ranks. Each communication is posted as soon
as its operands are ready. After it, kernels that do not wait for it run first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from heapq import heappop, heappush

from thunder_fuser.ir.rules.communication import is_communication
from thunder_fuser.segment.candidate import Candidate, external, owners
from thunder_fuser.segment.fusion_info import FusionInfo

MOST_EXACT = 10

# ---- intermediates


class _Lives:
    """Which segments store (makes) and read the values between segments, by number, and the
    segments that each one needs."""

    def __init__(self, info: FusionInfo, candidates: Sequence[Candidate]) -> None:
        owner = owners(candidates)
        # Results live to the end in any order, so they count as 0.
        self.bytes = {name: info.bytes[name] * (name not in info.results) for name in owner}
        self.makes = [candidate.stores for candidate in candidates]
        self.made = [sum(self.bytes[name] for name in names) for names in self.makes]
        self.reads = [[n for n in external(info, c.exprs) if n in owner] for c in candidates]
        self.needs = [{owner[n] for n in names} for names in self.reads]
        self.readers: dict[str, set[int]] = {name: set() for name in owner}
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


def peak(info: FusionInfo, candidates: Sequence[Candidate]) -> int:
    """The most bytes of intermediates alive at once in this order. Results do not count."""
    return _Lives(info, candidates).peak(range(len(candidates)))


def by_liveness(info: FusionInfo, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates in the order with the lowest peak; unchanged if no order lowers it."""
    lives = _Lives(info, candidates)
    if not any(lives.made):
        return candidates
    order = _best(lives) if len(candidates) <= MOST_EXACT else _greedy(lives)
    is_lower = lives.peak(order) < lives.peak(range(len(candidates)))
    return [candidates[at] for at in order] if is_lower else candidates


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
                plan = max(most, now), (*line, at)
                longer[after] = min(longer.get(after, plan), plan)
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


# ---- communication


def by_posts(info: FusionInfo, candidates: list[Candidate]) -> list[Candidate] | None:
    """The candidates in that order. None if communication cannot keep the definition's order,
    because one kernel has work from before and from after it."""
    is_post = [
        any(is_communication(info.exprs[at]) for at in candidate.exprs) for candidate in candidates
    ]
    posts = [at for at, yes in enumerate(is_post) if yes]
    if not posts:
        return candidates
    posts.sort(key=lambda at: min(candidates[at].exprs))
    needs = _Lives(info, candidates).needs
    rest = [at for at, yes in enumerate(is_post) if not yes]
    done: list[int] = []
    waiting: set[int] = set()
    while posts or rest:
        if posts and needs[posts[0]] <= set(done):
            waiting -= needs[posts[0]]
            waiting.add(posts[0])
            done.append(posts.pop(0))
            continue
        ready = [at for at in rest if needs[at] <= set(done)]
        if not ready:
            return None
        before = _ancestors(needs, posts[0]) if posts else set()
        best = min(ready, key=lambda at: (not needs[at].isdisjoint(waiting), at not in before))
        waiting -= needs[best]
        rest.remove(best)
        done.append(best)
    return [candidates[at] for at in done]


def _ancestors(needs: list[set[int]], at: int) -> set[int]:
    """All candidates that one waits for, directly or through others."""
    ancestors: set[int] = set()
    stack = [at]
    while stack:
        new = needs[stack.pop()] - ancestors
        ancestors |= new
        stack += new
    return ancestors
