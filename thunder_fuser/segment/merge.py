# SPDX-License-Identifier: Apache-2.0
"""Units -> groups: units of a large fusion are coarsened, then pairs merge while that saves bytes.

coarsen walks the units once and merges a producer with its reader if there is only one

    T1 = exp(T0); T2 = mul(T1, 2.0); T3 = add(T2, T0)       T1 and T2 have one reader each
->  {T1, T2, T3}

merge_greedily merges the pair that saves most bytes, again and again, until no merge saves any

    T1 = exp(T0); T2 = sum(T1, 1); T3 = sum(T1, 0)          T1: 64 MiB, T2 and T3: 64 KiB
->  {T1, T2}, {T3}: one of the sums can merge with T1, which saves T1's store and a load
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from thunder_fuser.schedule.scheduler import Reject
from thunder_fuser.segment.acceptance import NAME, Acceptance
from thunder_fuser.segment.acyclic import Order
from thunder_fuser.segment.candidate import passes
from thunder_fuser.segment.units import Summary, crossed, merged, stored_axes

MOST_COARSENED = 32  # expressions of a coarse unit; merge_greedily joins those of longer chains
CYCLE = (Reject(NAME, "a third segment would have to run between its halves"),)
WINDOW = 4  # of the readers of one value, each is tried with this many of the next ones
MAX_ROUNDS = 6

# ---- coarsening

Twin = tuple[frozenset[str], frozenset[frozenset[str]]]


def coarsen(acceptance: Acceptance, units: Sequence[Summary]) -> list[Summary]:
    """Fewer, larger units, in an order in which they can run. `units` are in program order, and
    their numbers are their places.

    A producer joins its reader if that is the only one: apart, they would only store and load the
    values between them. Two units that read the same values and make the same axes (twins) join
    too, since their producer may then have one reader. Neither kind of merge can close a cycle or
    rule out a better plan, and merge_greedily is left with a fraction of the units.

    The walk assumes that schedulers accept every place at which a value is read. It asks them once
    about each larger unit at the end, and coarsens what they refuse again, to half the size.
    """
    found = _coarsened(acceptance, dict(enumerate(units)), MOST_COARSENED)
    return [found[at] for at in sorted(found)]


def _coarsened(
    acceptance: Acceptance, units: Mapping[int, Summary], most: int
) -> dict[int, Summary]:
    """Units of at most `most` expressions, each at a place where it can run."""
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
        """Adds a unit, merged with the producers that it alone reads, and with its twin."""
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
        """Both as one, if that is small, needs one pass, and has axes that a scheduler takes."""
        is_small = len(a.exprs) + len(b.exprs) <= self.most and len(a.depths | b.depths) <= 1
        if not (a.is_plain and b.is_plain and is_small):
            return None
        both = merged(self.facts, a, b)
        both.is_sound = True
        is_expensive = crossed(self.facts, both) > self.facts.target.launch_bytes
        return None if is_expensive or self.acceptance.refuses(both) else both


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
        """units: in topological order."""
        self.facts, self.acceptance = acceptance.facts, acceptance
        self.count = len(units)
        self.summary = dict(enumerate(units))
        self.home = {name: at for at, one in enumerate(units) for name in one.stores}
        self.refused: dict[Pair, tuple[Reject, ...]] = {}
        made = [[name for name in one.reads if name in self.home] for one in units]
        self.order = Order([[self.home[name] for name in names] for names in made])

    def gain(self, a: int, b: int) -> float:
        """The cost that merging two groups saves; an estimate if both compute one expression."""
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
        saved -= (one.work + two.work) * passes(len(one.depths | two.depths)) - alone
        return saved - self._crossed_more(one, two)

    def _crossed_more(self, one: Summary, two: Summary) -> int:
        """The bytes that both as one move in vain, and do not on their own."""
        if not (self.facts.crossing.is_mixed and (one.patterns or two.patterns)):
            return 0
        both = merged(self.facts, one, two)
        return crossed(self.facts, both) - crossed(self.facts, one) - crossed(self.facts, two)

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
        """Every pair of groups worth a try, some of them repeatedly: a producer and its reader, two
        readers of one value, and neighbours over the same axes, whose merge saves a launch."""
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
    """Ranks first the pair that saves most."""
    return -groups.gain(a, b)


def by_program(groups: Groups, a: int, b: int) -> float:
    """Ranks the pairs that save anything by the program order of their later groups."""
    gain = groups.gain(a, b)
    return -gain if gain <= 0 else max(a, b) - groups.count


def merge_greedily(units: Sequence[Summary], acceptance: Acceptance, rank: Rank) -> Groups:
    """Merges while that saves bytes. Each round tries all pairs again, since merges change gains.

    Of equal ranks, smaller groups merge first, then earlier ones. So long chains merge in a
    balanced way, and a plan depends on the program alone.
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
