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

from thunder_fuser.analysis.cost import passes
from thunder_fuser.schedule.scheduler import NoMatch
from thunder_fuser.segment.acceptance import NAME, Acceptance
from thunder_fuser.segment.acyclic import GroupOrder
from thunder_fuser.segment.units import Summary, merged, stored_axes, wasted

MOST_COARSENED = 32  # expressions of a coarse unit; merge_greedily joins those of longer chains
CYCLE = (NoMatch(NAME, "merging would create a cycle"),)
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
    coarsened = _coarsened(acceptance, dict(enumerate(units)), MOST_COARSENED)
    return [coarsened[at] for at in sorted(coarsened)]


def _coarsened(
    acceptance: Acceptance, units: Mapping[int, Summary], most: int
) -> dict[int, Summary]:
    """Units of at most `most` expressions, each at a place where it can run."""
    walk = _UnitMerger(acceptance, most)
    for at, unit in units.items():
        walk.add(at, unit)
    fitting: dict[int, Summary] = {}
    for at, unit in walk.units.items():
        if len(unit.units) > 1:
            unit.is_sound = unit.in_place
            unit.is_sound = not acceptance.refuses(unit)
        if len(unit.units) == 1 or unit.is_sound:
            fitting[at] = unit
        else:
            fitting |= _coarsened(acceptance, {n: units[n] for n in sorted(unit.units)}, most // 2)
    return fitting


class _UnitMerger:
    """The units as coarsened so far, by their places."""

    def __init__(self, acceptance: Acceptance, most: int) -> None:
        self.acceptance, self.info, self.most = acceptance, acceptance.info, most
        self.units: dict[int, Summary] = {}
        self._owner: dict[str, int] = {}
        self._key: dict[int, Twin] = {}
        self._twin: dict[Twin, int] = {}

    def add(self, at: int, unit: Summary) -> None:
        """Adds a unit, merged with the producers that it alone reads, and with its twin."""
        unit = self._with_makers(unit)
        key = self._key_of(unit)
        twin = self._twin.get(key, -1)
        if twin in self.units and self._key[twin] == key:
            both = self._joined(self.units[twin], unit)
            if both is not None:
                at, unit = twin, self._with_makers(both)
                key = self._key_of(unit)
        self.units[at], self._key[at], self._twin[key] = unit, key, at
        self._owner.update(dict.fromkeys(unit.stores, at))

    def _key_of(self, unit: Summary) -> Twin:
        return frozenset(unit.reads), frozenset(stored_axes(self.info, unit))

    def _with_makers(self, unit: Summary) -> Summary:
        waiting = list(unit.reads)
        while waiting:
            at = self._owner.get(waiting.pop(), -1)
            maker = self.units.get(at)
            if maker is None or not _is_for(maker, unit):
                continue
            both = self._joined(maker, unit)
            if both is not None:
                del self.units[at]
                waiting += maker.reads
                unit = both
        return unit

    def _joined(self, a: Summary, b: Summary) -> Summary | None:
        """Both as one, if that is small, needs one pass, and has axes that a scheduler takes."""
        is_small = len(a.exprs) + len(b.exprs) <= self.most and len(a.depths | b.depths) <= 1
        if not (a.is_plain and b.is_plain and is_small):
            return None
        both = merged(self.info, a, b)
        both.is_sound = True
        is_expensive = wasted(self.info, both) > self.info.target.launch_bytes
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
HeapEntry = tuple[tuple[float, int], int, int]


class Groups:
    """The groups of units so far, their order, and what was refused and why."""

    def __init__(self, units: Sequence[Summary], acceptance: Acceptance) -> None:
        """units: in topological order."""
        self.info, self.acceptance = acceptance.info, acceptance
        self.count = len(units)
        self.summary = dict(enumerate(units))
        self.owner = {name: at for at, unit in enumerate(units) for name in unit.stores}
        self.refused: dict[Pair, tuple[NoMatch, ...]] = {}
        inner_reads = [[name for name in unit.reads if name in self.owner] for unit in units]
        self.order = GroupOrder([[self.owner[name] for name in names] for names in inner_reads])

    def gain(self, a: int, b: int) -> float:
        """The cost that merging two groups saves; an estimate if both compute one expression."""
        left, right = self.summary[a], self.summary[b]
        if len(right.reads) + len(right.stores) > len(left.reads) + len(left.stores):
            left, right = right, left
        saved = float(self.info.target.launch_bytes)
        for name, (size, count) in right.reads.items():
            if name in left.stores:
                saved += size + self.info.bytes[name] * (left.stores[name] == count)
            elif name in left.reads:
                most = self.info.bytes[name]
                saved += left.reads[name][0] + size - min(left.reads[name][0] + size, most)
        for name, count in right.stores.items():
            if name in left.reads:
                size, readers = left.reads[name]
                saved += size + self.info.bytes[name] * (count == readers)
        # Later passes over the data compute half of the work again.
        alone = left.work * passes(len(left.depths)) + right.work * passes(len(right.depths))
        saved -= (left.work + right.work) * passes(len(left.depths | right.depths)) - alone
        return saved - self._wasted_more(left, right)

    def _wasted_more(self, left: Summary, right: Summary) -> int:
        """The sector bytes that both as one waste beyond what each wastes alone."""
        if not (self.info.waste.is_mixed and (left.patterns or right.patterns)):
            return 0
        both = merged(self.info, left, right)
        return wasted(self.info, both) - wasted(self.info, left) - wasted(self.info, right)

    def join(self, a: int, b: int) -> bool:
        """Merges two groups if the result is acyclic and some scheduler takes it."""
        both = merged(self.info, self.summary[a], self.summary[b])
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
        """Yields pairs to try, some twice: producer and reader, readers of a value, equal axes."""
        readers: dict[str, list[int]] = {}
        spaces: dict[frozenset[str], list[int]] = {}
        for group in sorted(self.summary):
            unit = self.summary[group]
            for name in unit.reads:
                if name in self.owner:
                    yield self.order.find(self.owner[name]), group
                readers.setdefault(name, []).append(group)
            # A pointwise group over the axes of row values may join these.
            kept = sorted((pattern.kept for pattern in unit.patterns), key=sorted)
            for space in dict.fromkeys((self._space(unit), *kept)):
                spaces.setdefault(space, []).append(group)
        for line in (*readers.values(), *spaces.values()):
            for step in range(1, WINDOW + 1):
                yield from zip(line, line[step:])  # noqa: B905  each with the one `step` behind

    def _space(self, unit: Summary) -> frozenset[str]:
        """The axes that a kernel of the group walks."""
        walked = (pattern.walked for pattern in unit.patterns)
        return frozenset[str]().union(*walked, *stored_axes(self.info, unit))


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


def _entry(groups: Groups, rank: Rank, a: int, b: int) -> HeapEntry:
    size = len(groups.summary[a].units) + len(groups.summary[b].units)
    return (rank(groups, a, b), size), a, b
