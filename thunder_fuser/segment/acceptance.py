# SPDX-License-Identifier: Apache-2.0
"""Does some scheduler take a segment? From its summary where that tells, else by asking them.

A summary has axes but no Part, which costs more to make than all else here. It tells of pointwise
work and reductions whose values are all read in place: what schedulers ask of those is about axes
alone, and is asked here with their own functions (`have_one_space`, `Pattern.foreign`,
`rows_and_groups`). Of pointwise work that reads elsewhere the places are counted (`are_few`).
Lookups, scans, partial results, reductions of what is read elsewhere and tensors without elements
are matched by the schedulers, once for each set of expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from thunder_fuser.analysis.domain_map import rows_and_groups
from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.record import names_of
from thunder_fuser.schedule.pointwise import have_one_space
from thunder_fuser.schedule.registry import find_match
from thunder_fuser.schedule.scheduler import MAX_PLACES, Match, Reject
from thunder_fuser.segment.candidate import Candidate
from thunder_fuser.segment.facts import Facts
from thunder_fuser.segment.units import Summary, stored_axes

Found = Match | tuple[Reject, ...]
NAME = "segmenter"
MAX_OPS = 512  # expressions of one kernel: more cost more to compile than the edge of a cut


class Acceptance:
    """Answers for one fusion, target and set of options, remembered."""

    def __init__(self, facts: Facts, options: CompileOptions) -> None:
        self.facts, self.options = facts, options
        self._asked: dict[Candidate, Found] = {}

    def part(self, one: Candidate) -> Part:
        """The part of these expressions, and of the numbers that they take."""
        # A kernel takes a computed number from nowhere: it makes it.
        exprs, stack = set(one.exprs), list(one.exprs)
        while stack:
            names = self.facts.numbers[stack.pop()]
            makers = {self.facts.number[name] for name in names if name in self.facts.number}
            stack += makers - exprs
            exprs |= makers
        return self.facts.parts.of([self.facts.exprs[at] for at in sorted(exprs)], one.stores)

    def ask(self, one: Candidate) -> Found:
        """The match of the scheduler that takes these expressions, or every refusal."""
        if one not in self._asked:
            known = self._own_refusals(one.exprs)
            given = self.facts.target, self.options
            self._asked[one] = known or find_match(self.part(one), *given)
        return self._asked[one]

    def _own_refusals(self, exprs: Set[int]) -> tuple[Reject, ...]:
        """Why the segmenter refuses such a segment unasked: a boundary inside, or too many ops."""
        if len(exprs) > MAX_OPS:
            return (Reject(NAME, f"{len(exprs)} expressions, more than {MAX_OPS}"),)
        facts = self.facts
        inside = [
            name for name in facts.cuts
            if facts.number[name] in exprs and not exprs.isdisjoint(facts.uses[name])
        ]
        return tuple(Reject("segment_set", f"{n} is a boundary") for n in inside) if inside else ()

    def refusals(self, one: Candidate) -> tuple[Reject, ...]:
        """Why nothing takes these expressions; nothing if something does."""
        found = self.ask(one)
        return found if isinstance(found, tuple) else ()

    def refuses(self, one: Summary) -> tuple[Reject, ...]:
        """As `refusals`, without asking the schedulers where the summary tells."""
        known = self._own_refusals(one.exprs)
        if known:
            return known
        if one.is_external and len(one.units) > 1:
            return (Reject("expr_eval", "not a single torch call"),)
        if one.is_plain and rows_and_groups(one.patterns) is None:
            reason = self._refused_axes(one)
            if reason is not None:
                return (reason,)
            if one.is_sound or (not one.patterns and are_few(self.facts, one.exprs, one.stores)):
                return ()
        return self.refusals(Candidate(frozenset(one.exprs), frozenset(one.stores)))

    def _refused_axes(self, one: Summary) -> Reject | None:
        axes = stored_axes(self.facts, one)
        if not one.patterns:
            if have_one_space(axes):
                return None
            return Reject("pointwise", f"results over different axes: {_listed(axes)}")
        if len(one.patterns) > 1:
            return Reject("reduction", f"reductions of {len(one.patterns)} patterns")
        (pattern,) = one.patterns
        foreign = pattern.foreign(axes)
        if not foreign:
            return None
        reason = f"results over {_listed(foreign)}, neither row values nor full ones"
        return Reject("reduction", reason)


def are_few(facts: Facts, exprs: Iterable[int], stores: Iterable[str]) -> bool:
    """True if no value of these pointwise and movement expressions is wanted at many places.

    T1 = exp(T0); T2 = slice(T1); T3 = flip(T1); T4 = add(T2, T3)      T1 at two places

    A place has a number; 0 is that of a stored element. A reader that takes another element than
    its own makes a place of each of its own: some of them may be equal, so this is no exact count.
    """
    numbers: dict[tuple[int, int, int], int] = {}
    places: dict[str, set[int]] = {name: {0} for name in stores}
    for at in sorted(exprs, reverse=True):
        expr = facts.exprs[at]
        own = places.get(expr.outputs[0], set())
        if len(own) > MAX_PLACES:
            return False
        for turn, name in enumerate(names_of(expr)):
            if name not in facts.number:
                continue
            if name in facts.keeps_place[at]:
                found = own
            else:
                found = {numbers.setdefault((at, turn, one), len(numbers) + 1) for one in own}
            places.setdefault(name, set()).update(found)
    return True


def _listed(axes: Iterable[frozenset[str]]) -> str:
    each = sorted(sorted(one, key=lambda a: int(a[1:])) for one in axes)
    return ", ".join(f"[{', '.join(one)}]" for one in each)
