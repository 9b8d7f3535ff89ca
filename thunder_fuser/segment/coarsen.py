# SPDX-License-Identifier: Apache-2.0
"""Units of a large fusion -> fewer, larger ones, where no choice is lost by it.

    T1 = exp(T0); T2 = mul(T1, 2.0); T3 = add(T2, T0)       T1 and T2 have one reader each
->  {T1, T2, T3}

What makes values for one reader alone belongs to it: apart, those values would be stored and read
for nothing. So do two that read the same values and make the same axes, if that gives what they
read one reader. No merge of either kind can close a cycle. One walk in program order finds them;
merging, which weighs every pair, is left with a fraction of the units.

The walk supposes that values may be read at other places than their own, and the schedulers are
asked about each larger unit once, at its end; what they refuse is taken apart into smaller ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.summary import Summary, merged, stored_axes

MOST_COARSENED = 32  # expressions: where a longer chain is cut, merge.py decides

Twin = tuple[frozenset[str], frozenset[frozenset[str]]]


def coarsen(acceptance: Acceptance, units: Sequence[Summary]) -> list[Summary]:
    """The units in an order in which they can run. `units`, whose numbers are their places, are in
    program order."""
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
        if len(one.units) == 1 or _is_taken(acceptance, one):
            found[at] = one
        else:
            found |= _coarsened(acceptance, {n: units[n] for n in sorted(one.units)}, most // 2)
    return found


def _is_taken(acceptance: Acceptance, one: Summary) -> bool:
    """Whether some scheduler takes it, wherever its values are read."""
    one.is_sound = one.in_place
    one.is_sound = not acceptance.refuses(one)
    return one.is_sound


class _Walk:
    """What was coarsened so far, by places."""

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
        for name in one.stores:
            self._home[name] = at

    def _key_of(self, one: Summary) -> Twin:
        return frozenset(one.reads), frozenset(stored_axes(self.facts, one))

    def _with_makers(self, one: Summary) -> Summary:
        waiting = list(one.reads)
        while waiting:
            at = self._home.get(waiting.pop())
            maker = None if at is None else self.units.get(at)
            if at is None or maker is None or not _is_for(maker, one):
                continue
            both = self._joined(maker, one)
            if both is not None:
                del self.units[at]
                waiting += maker.reads
                one = both
        return one

    def _joined(self, a: Summary, b: Summary) -> Summary | None:
        """Both as one, if it is small and takes no more passes, and its axes fit a scheduler."""
        if not (a.is_plain and b.is_plain) or len(a.depths | b.depths) > 1:
            return None
        if len(a.exprs) + len(b.exprs) > self.most or self.acceptance.cut_between(a, b):
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
