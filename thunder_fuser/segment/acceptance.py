# SPDX-License-Identifier: Apache-2.0
"""Whether some scheduler takes a segment: its summary answers if it can, else the schedulers do.

To ask a scheduler needs a Part, which costs more to make than all else here. A summary has only
axes. They suffice for pointwise work and reductions whose values are all read in place: what
schedulers check there is about axes alone, and their own functions check it here (`have_one_space`,
`Pattern.foreign`, `rows_and_groups`). For pointwise work with other reads, places are counted
(`reads_few_places`). All else goes to the schedulers, once for each set of expressions: lookups,
scans, partial results, tensors without elements, and reductions of values read at other places.
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
MAX_OPS = 512  # expressions of one kernel: more take longer to compile than a cut costs


class Acceptance:
    """Answers for one fusion, target and set of options. It remembers them."""

    def __init__(self, facts: Facts, options: CompileOptions) -> None:
        self.facts, self.options = facts, options
        self._asked: dict[Candidate, Found] = {}

    def part(self, one: Candidate) -> Part:
        """The part with these expressions, and with those that compute the numbers they read."""
        # No other kernel can pass a computed number by value.
        exprs, stack = set(one.exprs), list(one.exprs)
        while stack:
            names = self.facts.numbers[stack.pop()]
            makers = {self.facts.number[name] for name in names if name in self.facts.number}
            stack += makers - exprs
            exprs |= makers
        return self.facts.parts.of([self.facts.exprs[at] for at in sorted(exprs)], one.stores)

    def ask(self, one: Candidate) -> Found:
        """The match of the scheduler that takes the candidate, or every refusal."""
        if one not in self._asked:
            known = self._own_refusals(one.exprs)
            given = self.facts.target, self.options
            self._asked[one] = known or find_match(self.part(one), *given)
        return self._asked[one]

    def _own_refusals(self, exprs: Set[int]) -> tuple[Reject, ...]:
        """Why the segmenter itself refuses the segment: a boundary inside, or too many ops."""
        if len(exprs) > MAX_OPS:
            return (Reject(NAME, f"{len(exprs)} expressions, more than {MAX_OPS}"),)
        facts = self.facts
        inside = [
            name for name in facts.cuts
            if facts.number[name] in exprs and not exprs.isdisjoint(facts.uses[name])
        ]
        return tuple(Reject("segment_set", f"{n} is a boundary") for n in inside) if inside else ()

    def refusals(self, one: Candidate) -> tuple[Reject, ...]:
        """Why no scheduler takes the candidate; empty if one does."""
        found = self.ask(one)
        return found if isinstance(found, tuple) else ()

    def refuses(self, one: Summary) -> tuple[Reject, ...]:
        """As `refusals`, but does not ask the schedulers where the summary suffices."""
        known = self._own_refusals(one.exprs)
        if known:
            return known
        if one.is_external and len(one.units) > 1:
            return (Reject("expr_eval", "not a single torch call"),)
        if one.is_plain and rows_and_groups(one.patterns) is None:
            reason = self._refused_axes(one)
            if reason is not None:
                return (reason,)
            is_sound = one.is_sound or (
                not one.patterns and reads_few_places(self.facts, one.exprs, one.stores)
            )
            if is_sound:
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


def reads_few_places(facts: Facts, exprs: Iterable[int], stores: Iterable[str]) -> bool:
    """True if these pointwise and movement expressions compute no value at more than MAX_PLACES.

    T1 = exp(T0); T2 = slice(T1); T3 = flip(T1); T4 = add(T2, T3)      T1 at two places

    A place is an index at which one output element needs the value. Places are numbered; 0 is the
    output element itself. A reader at another element adds a place for each of its own places. Some
    of these may be equal, so the count is an upper bound.
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
