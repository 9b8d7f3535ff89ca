# SPDX-License-Identifier: Apache-2.0
"""Units -> groups: of all pairs that may merge, the one that saves most bytes does, until none.

    T1 = exp(T0); T2 = sum(T1, 1); T3 = sum(T1, 0)          T1: 64 MiB, T2 and T3: 64 KiB
->  {T1, T2}, {T3}: merging over T1 saves its store and a load, and only one of both can

Pairs are a producer and its reader, two readers of one value, and neighbours over the same axes
(which save a launch). Equal gains go to the smaller groups, then to the earlier ones: so chains
grow in halves, and a plan depends on the program alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from thunder_fuser.schedule.scheduler import Reject
from thunder_fuser.segment.acceptance import NAME, Acceptance
from thunder_fuser.segment.acyclic import Order
from thunder_fuser.segment.candidate import passes
from thunder_fuser.segment.summary import Summary, cost, merged

CYCLE = (Reject(NAME, "a third segment would have to run between its halves"),)
WINDOW = 4  # neighbours among the readers of one value that are tried with each
MAX_ROUNDS = 6

Pair = tuple[int, int]
# (priority, a, b): heaps give the least first
Entry = tuple[tuple[float, int], int, int]


class Groups:
    """The groups of units so far, their order, and what was refused and why."""

    def __init__(self, units: Sequence[Summary], acceptance: Acceptance) -> None:
        """units: in an order in which they can run."""
        self.facts, self.acceptance = acceptance.facts, acceptance
        self.count = len(units)
        self.summary = dict(enumerate(units))
        self.home = {name: at for at, one in enumerate(units) for name in one.stores}
        self.order = Order(self._edges(), len(units))
        self.refused: dict[Pair, tuple[Reject, ...]] = {}
        self._costs: dict[int, float] = {}

    def _edges(self) -> dict[int, list[int]]:
        edges: dict[int, list[int]] = {}
        for at, one in self.summary.items():
            for name in one.reads:
                if name in self.home:
                    edges.setdefault(self.home[name], []).append(at)
        return edges

    def cost(self, group: int) -> float:
        """What a group costs; see summary.cost."""
        if group not in self._costs:
            self._costs[group] = cost(self.facts, self.summary[group])
        return self._costs[group]

    def gain(self, a: int, b: int) -> float:
        """The cost that merging two groups saves, roughly: exact but for work done twice."""
        one, two = self.summary[a], self.summary[b]
        if len(two.reads) + len(two.stores) > len(one.reads) + len(one.stores):
            one, two = two, one
        saved = float(self.facts.target.launch_bytes)
        for name, (size, count) in two.reads.items():
            if name in one.stores:
                saved += size + self.facts.bytes[name] * (one.stores[name] == count)
            elif name in one.reads:
                most = self.facts.bytes[name]
                saved += one.reads[name][0] + size - min(one.reads[name][0] + size, most)
        for name, count in two.stores.items():
            if name in one.reads:
                size, readers = one.reads[name]
                saved += size + self.facts.bytes[name] * (count == readers)
        return saved - self._more_work(one, two)

    def _more_work(self, a: Summary, b: Summary) -> float:
        """What later passes over the data compute again if two groups become one."""
        alone = a.work * passes(len(a.depths)) + b.work * passes(len(b.depths))
        return (a.work + b.work) * passes(len(a.depths | b.depths)) - alone

    def join(self, a: int, b: int) -> bool:
        """Merges two groups if the result is acyclic and some scheduler takes it."""
        one, two = self.summary[a], self.summary[b]
        both = merged(self.facts, one, two)
        refusal = self.acceptance.cut_between(one, two) or self.acceptance.refuses(both)
        if refusal:
            self.refused[a, b] = refusal
            return False
        if not self.order.merge(a, b):
            self.refused[a, b] = CYCLE
            return False
        keep, gone = min(a, b), max(a, b)
        both.is_sound = True
        self.summary[keep] = both
        del self.summary[gone]
        self._costs.pop(keep, None)
        return True

    # ---- which pairs to try

    def pairs(self) -> Iterator[Pair]:
        """Every pair of groups worth a try, some more than once."""
        readers: dict[str, list[int]] = {}
        spaces: dict[frozenset[str], list[int]] = {}
        for group in sorted(self.summary):
            one = self.summary[group]
            for name in one.reads:
                if name in self.home:
                    yield self.order.find(self.home[name]), group
                readers.setdefault(name, []).append(group)
            for space in dict.fromkeys((self._space(one), *_kept(one))):
                spaces.setdefault(space, []).append(group)
        for line in (*readers.values(), *spaces.values()):
            for step in range(1, WINDOW + 1):
                yield from zip(line, line[step:])  # noqa: B905  each with the one `step` behind

    def _space(self, one: Summary) -> frozenset[str]:
        """The axes that a kernel of the group walks."""
        found: frozenset[str] = frozenset()
        for pattern in one.patterns:
            found |= pattern.walked
        for name in one.stores:
            found |= self.facts.axes[name]
        return found


def _kept(one: Summary) -> list[frozenset[str]]:
    """The axes of its row values: a pointwise group over them may join it."""
    return sorted((pattern.kept for pattern in one.patterns), key=sorted)


Rank = Callable[[Groups, int, int], float]


def by_gain(groups: Groups, a: int, b: int) -> float:
    """The pair that saves most first."""
    return -groups.gain(a, b)


def by_program(groups: Groups, a: int, b: int) -> float:
    """Pairs as the program lists their later halves, as long as they save anything."""
    gain = groups.gain(a, b)
    return -gain if gain <= 0 else max(a, b) - groups.count


def merge_greedily(units: Sequence[Summary], acceptance: Acceptance, rank: Rank) -> Groups:
    """Merges while that saves bytes; a round asks again what an earlier merge may have changed."""
    groups = Groups(units, acceptance)
    for _ in range(MAX_ROUNDS):
        if not _round(groups, rank):
            break
    return groups


def _round(groups: Groups, rank: Rank) -> int:
    """Every pair once, best first; how many merged."""
    tried: set[tuple[int, int, int, int]] = set()
    heap = [_entry(groups, rank, a, b) for a, b in dict.fromkeys(groups.pairs()) if a != b]
    heapify(heap)
    count = 0
    while heap:
        entry = heappop(heap)
        a, b = sorted((groups.order.find(entry[1]), groups.order.find(entry[2])))
        if a == b:
            continue
        key = (a, len(groups.summary[a].units), b, len(groups.summary[b].units))
        if key in tried:
            continue
        now = _entry(groups, rank, a, b)
        if now[0] > entry[0]:
            heappush(heap, now)
        elif now[0][0] < 0:
            tried.add(key)
            count += groups.join(a, b)
    return count


def _entry(groups: Groups, rank: Rank, a: int, b: int) -> Entry:
    size = len(groups.summary[a].units) + len(groups.summary[b].units)
    return (rank(groups, a, b), size), a, b
