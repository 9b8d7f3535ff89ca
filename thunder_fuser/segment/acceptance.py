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
from thunder_fuser.schedule.joined import JoinedKernels
from thunder_fuser.schedule.pointwise import have_one_space
from thunder_fuser.schedule.registry import find_match
from thunder_fuser.schedule.scheduler import MAX_PLACES, Match, NoMatch
from thunder_fuser.segment.candidate import Candidate
from thunder_fuser.segment.fusion_info import FusionInfo
from thunder_fuser.segment.units import Summary, stored_axes

MatchOrRefusals = Match | tuple[NoMatch, ...]
NAME = "segmenter"
MAX_OPS = 512  # expressions of one kernel: more take longer to compile than a cut costs


class Acceptance:
    """Answers for one fusion, target and set of options. It remembers them."""

    def __init__(self, info: FusionInfo, options: CompileOptions) -> None:
        self.info, self.options = info, options
        self._asked: dict[Candidate, MatchOrRefusals] = {}

    def part(self, candidate: Candidate) -> Part:
        """The part with these expressions, and with those that compute the numbers they read."""
        # No other kernel can pass a computed number by value.
        exprs, stack = set(candidate.exprs), list(candidate.exprs)
        while stack:
            names = self.info.numbers[stack.pop()]
            makers = {self.info.number[name] for name in names if name in self.info.number}
            stack += makers - exprs
            exprs |= makers
        return self.info.parts.of([self.info.exprs[at] for at in sorted(exprs)], candidate.stores)

    def ask(self, candidate: Candidate) -> MatchOrRefusals:
        """The match of the scheduler that takes the candidate, or every refusal."""
        if candidate not in self._asked:
            known = self._own_refusals(candidate.exprs)
            context = self.info.target, self.options
            self._asked[candidate] = known or find_match(self.part(candidate), *context)
        return self._asked[candidate]

    def joins(self, candidate: Candidate) -> bool:
        """True if parts of a candidate can share a launch; `ask` knows the match then."""
        if self._own_refusals(candidate.exprs):
            return False
        match = JoinedKernels.match(self.part(candidate), self.info.target, self.options)
        if not isinstance(match, JoinedKernels):
            return False
        self._asked[candidate] = match
        return True

    def _own_refusals(self, exprs: Set[int]) -> tuple[NoMatch, ...]:
        """Why the segmenter itself refuses the segment: a boundary inside, or too many ops."""
        if len(exprs) > MAX_OPS:
            return (NoMatch(NAME, f"{len(exprs)} expressions, more than {MAX_OPS}"),)
        info = self.info
        inside = [
            name for name in info.cuts
            if info.number[name] in exprs and not exprs.isdisjoint(info.uses[name])
        ]
        return tuple(NoMatch("segment_set", f"{n} is a boundary") for n in inside) if inside else ()

    def refusals(self, candidate: Candidate) -> tuple[NoMatch, ...]:
        """Why no scheduler takes the candidate; empty if one does."""
        answer = self.ask(candidate)
        return answer if isinstance(answer, tuple) else ()

    def refuses(self, unit: Summary) -> tuple[NoMatch, ...]:
        """As `refusals`, but does not ask the schedulers where the summary suffices."""
        known = self._own_refusals(unit.exprs)
        if known:
            return known
        if unit.is_external and len(unit.units) > 1:
            return (NoMatch("expr_eval", "not a single torch call"),)
        if unit.is_plain and rows_and_groups(unit.patterns) is None:
            reason = self._refused_axes(unit)
            if reason is not None:
                return (reason,)
            is_sound = unit.is_sound or (
                not unit.patterns and reads_few_places(self.info, unit.exprs, unit.stores)
            )
            if is_sound:
                return ()
        return self.refusals(Candidate(frozenset(unit.exprs), frozenset(unit.stores)))

    def _refused_axes(self, unit: Summary) -> NoMatch | None:
        axes = stored_axes(self.info, unit)
        if not unit.patterns:
            if have_one_space(axes):
                return None
            return NoMatch("pointwise", f"results over different axes: {_listed(axes)}")
        if len(unit.patterns) > 1:
            return NoMatch("reduction", f"reductions of {len(unit.patterns)} patterns")
        (pattern,) = unit.patterns
        foreign = pattern.foreign(axes)
        if not foreign:
            return None
        reason = f"results over {_listed(foreign)}, neither the row's axes nor all axes"
        return NoMatch("reduction", reason)


def reads_few_places(info: FusionInfo, exprs: Iterable[int], stores: Iterable[str]) -> bool:
    """True if these pointwise and movement expressions compute no value at more than MAX_PLACES.

    T1 = exp(T0); T2 = slice(T1); T3 = flip(T1); T4 = add(T2, T3)      T1 at two places

    A place is an index at which one output element needs the value. Places are numbered; 0 is the
    output element itself. A reader at another element adds a place for each of its own places. Some
    of these may be equal, so the count is an upper bound.
    """
    numbers: dict[tuple[int, int, int], int] = {}
    places: dict[str, set[int]] = {name: {0} for name in stores}
    for at in sorted(exprs, reverse=True):
        expr = info.exprs[at]
        here = places.get(expr.outputs[0], set())
        if len(here) > MAX_PLACES:
            return False
        for turn, name in enumerate(names_of(expr)):
            if name not in info.number:
                continue
            if name in info.keeps_place[at]:
                needed = here
            else:
                needed = {numbers.setdefault((at, turn, place), len(numbers) + 1) for place in here}
            places.setdefault(name, set()).update(needed)
    return True


def _listed(axes: Iterable[frozenset[str]]) -> str:
    each = sorted(sorted(space, key=lambda a: int(a[1:])) for space in axes)
    return ", ".join(f"[{', '.join(names)}]" for names in each)
