# SPDX-License-Identifier: Apache-2.0
"""Units -> groups: units of a large fusion are coarsened, then pairs merge while that saves bytes.

coarsen, in one walk: what makes values for one reader alone belongs to it

    T1 = exp(T0); T2 = mul(T1, 2.0); T3 = add(T2, T0)       T1 and T2 have one reader each
->  {T1, T2, T3}

merge_greedily: of all pairs that may merge, the one that saves most bytes does, until none

    T1 = exp(T0); T2 = sum(T1, 1); T3 = sum(T1, 0)          T1: 64 MiB, T2 and T3: 64 KiB
->  {T1, T2}, {T3}: merging over T1 saves its store and a load, and only one of both can
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from thunder_fuser.schedule.scheduler import Reject
from thunder_fuser.segment.acceptance import NAME, Acceptance
from thunder_fuser.segment.acyclic import Order
from thunder_fuser.segment.candidate import passes
from thunder_fuser.segment.units import Summary, merged, stored_axes

MOST_COARSENED = 32  # expressions: where a longer chain is cut, merge_greedily decides
CYCLE = (Reject(NAME, "a third segment would have to run between its halves"),)
WINDOW = 4  # neighbours among the readers of one value that are tried with each
MAX_ROUNDS = 6

# ---- coarsening

Twin = tuple[frozenset[str], frozenset[frozenset[str]]]


def coarsen(acceptance: Acceptance, units: Sequence[Summary]) -> list[Summary]:
    """Fewer, larger units in an order in which they can run. `units`, whose numbers are their
    places, are in program order.

    What makes values for one reader alone joins it: apart, those values would be stored and read
    for nothing. So do two that read the same values and make the same axes, if that gives what
    they read one reader. No merge of either kind can close a cycle, so no choice is lost, and
    merging is left with a fraction of the units.

    The walk supposes that values may be read at other places than their own. The schedulers are
    asked about each larger unit once, at its end; what they refuse is coarsened again to half the
    size.
    """
    found = _coarsened(acceptance, dict(enumerate(units)), MOST_COARSENED)
    return [found[at] for at in sorted(found)]


def _coarsened(
    acceptance: Acceptance, units: Mapping[int, Summary], most: int
) -> dict[int, Summary]:
    """Units of at most so many expressions, each at a place where it can run."""
    walk = _Walk(acceptance, most)
    for at, one in units.items():
        walk.add(at, one)
    found: dict[int, Summary] = {}
    for at, one in walk.units.items():
        if len(one.units) > 1:
            one.is_sound = one.in_place
            one.is_sound = not acceptance.refuses(one)
        if len(one.units) == 1 or one.is_sound:
            found[at] = one
        else:
            found |= _coarsened(acceptance, {n: units[n] for n in sorted(one.units)}, most // 2)
    return found


class _Walk:
    """The units as coarsened so far, by their places."""

    def __init__(self, acceptance: Acceptance, most: int) -> None:
        self.acceptance, self.facts, self.most = acceptance, acceptance.facts, most
        self.units: dict[int, Summary] = {}
        self._home: dict[str, int] = {}
        self._key: dict[int, Twin] = {}
        self._twin: dict[Twin, int] = {}

    def add(self, at: int, one: Summary) -> None:
        """One more unit, with what is made for it alone, and in its twin if there is one."""
        one = self._with_makers(one)
        key = self._key_of(one)
        twin = self._twin.get(key, -1)
        if twin in self.units and self._key[twin] == key:
            both = self._joined(self.units[twin], one)
            if both is not None:
                at, one = twin, self._with_makers(both)
                key = self._key_of(one)
        self.units[at], self._key[at], self._twin[key] = one, key, at
        self._home.update(dict.fromkeys(one.stores, at))

    def _key_of(self, one: Summary) -> Twin:
        return frozenset(one.reads), frozenset(stored_axes(self.facts, one))

    def _with_makers(self, one: Summary) -> Summary:
        waiting = list(one.reads)
        while waiting:
            at = self._home.get(waiting.pop(), -1)
            maker = self.units.get(at)
            if maker is None or not _is_for(maker, one):
                continue
            both = self._joined(maker, one)
            if both is not None:
                del self.units[at]
                waiting += maker.reads
                one = both
        return one

    def _joined(self, a: Summary, b: Summary) -> Summary | None:
        """Both as one, if it is small and takes no more passes, and its axes fit a scheduler."""
        is_small = len(a.exprs) + len(b.exprs) <= self.most and len(a.depths | b.depths) <= 1
        if not (a.is_plain and b.is_plain and is_small):
            return None
        both = merged(self.facts, a, b)
        both.is_sound = True
        return None if self.acceptance.refuses(both) else both


def _is_for(maker: Summary, reader: Summary) -> bool:
    """True if nothing else reads what the maker stores."""
    for name, count in maker.stores.items():
        if name not in reader.reads or reader.reads[name][1] != count:
            return False
    return True


# ---- merging

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
        self.refused: dict[Pair, tuple[Reject, ...]] = {}
        made = [[name for name in one.reads if name in self.home] for one in units]
        self.order = Order([[self.home[name] for name in names] for names in made])

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
        # Later passes over the data compute half of the work again.
        alone = one.work * passes(len(one.depths)) + two.work * passes(len(two.depths))
        return saved - ((one.work + two.work) * passes(len(one.depths | two.depths)) - alone)

    def join(self, a: int, b: int) -> bool:
        """Merges two groups if the result is acyclic and some scheduler takes it."""
        both = merged(self.facts, self.summary[a], self.summary[b])
        refusal = self.acceptance.refuses(both)
        if not refusal and not self.order.merge(a, b):
            refusal = CYCLE
        if refusal:
            self.refused[a, b] = refusal
            return False
        both.is_sound = True
        del self.summary[max(a, b)]
        self.summary[min(a, b)] = both
        return True

    def pairs(self) -> Iterator[Pair]:
        """Every pair of groups worth a try, some more than once: a producer and its reader, two
        readers of one value, and neighbours over the same axes, which save a launch."""
        readers: dict[str, list[int]] = {}
        spaces: dict[frozenset[str], list[int]] = {}
        for group in sorted(self.summary):
            one = self.summary[group]
            for name in one.reads:
                if name in self.home:
                    yield self.order.find(self.home[name]), group
                readers.setdefault(name, []).append(group)
            # A pointwise group over the axes of row values may join these.
            kept = sorted((pattern.kept for pattern in one.patterns), key=sorted)
            for space in dict.fromkeys((self._space(one), *kept)):
                spaces.setdefault(space, []).append(group)
        for line in (*readers.values(), *spaces.values()):
            for step in range(1, WINDOW + 1):
                yield from zip(line, line[step:])  # noqa: B905  each with the one `step` behind

    def _space(self, one: Summary) -> frozenset[str]:
        """The axes that a kernel of the group walks."""
        walked = (pattern.walked for pattern in one.patterns)
        return frozenset[str]().union(*walked, *stored_axes(self.facts, one))


Rank = Callable[[Groups, int, int], float]


def by_gain(groups: Groups, a: int, b: int) -> float:
    """Ranks the pair that saves most first."""
    return -groups.gain(a, b)


def by_program(groups: Groups, a: int, b: int) -> float:
    """Ranks pairs that save anything in the program order of their later halves."""
    gain = groups.gain(a, b)
    return -gain if gain <= 0 else max(a, b) - groups.count


def merge_greedily(units: Sequence[Summary], acceptance: Acceptance, rank: Rank) -> Groups:
    """Merges while that saves bytes. A round tries again what an earlier one may have changed.

    Equal ranks go to the smaller groups, then to the earlier ones: so chains grow in halves, and
    a plan depends on the program alone.
    """
    groups = Groups(units, acceptance)
    for _ in range(MAX_ROUNDS):
        if not _round(groups, rank):
            break
    return groups


def _round(groups: Groups, rank: Rank) -> int:
    """Tries every pair once, best first; returns how many merged."""
    tried: set[tuple[int, int, int, int]] = set()
    heap = [_entry(groups, rank, a, b) for a, b in dict.fromkeys(groups.pairs()) if a != b]
    heapify(heap)
    count = 0
    while heap:
        entry = heappop(heap)
        a, b = sorted((groups.order.find(entry[1]), groups.order.find(entry[2])))
        key = (a, len(groups.summary[a].units), b, len(groups.summary[b].units))
        if a == b or key in tried:
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
