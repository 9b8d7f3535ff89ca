# SPDX-License-Identifier: Apache-2.0
"""Does some scheduler take a segment? From its summary where that tells, else by asking them.

A summary has axes but no Part, which costs more to make than all else here. It tells of pointwise
work and reductions whose values are all read in place: what schedulers ask of those is about axes
alone, and is asked here with their own functions (`have_one_space`, `Pattern.foreign`,
`rows_and_groups`). Of pointwise work that reads elsewhere the places are counted (places.py).
Lookups, scans, partial results, reductions of what is read elsewhere and tensors without elements
are matched by the schedulers, once for each set of expressions.
"""

from __future__ import annotations

from collections.abc import Iterable

from thunder_fuser.analysis.domain_map import rows_and_groups
from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.schedule.pointwise import have_one_space
from thunder_fuser.schedule.registry import SCHEDULERS, find_match
from thunder_fuser.schedule.scheduler import MAX_PLACES, Match, Reject
from thunder_fuser.segment.facts import Facts
from thunder_fuser.segment.places import are_few
from thunder_fuser.segment.summary import MAX_OPS, Summary, edge_names, stored_axes

Found = Match | tuple[Reject, ...]
NAME = "segmenter"


class Acceptance:
    """Answers for one fusion, target and set of options, remembered."""

    def __init__(self, facts: Facts, options: CompileOptions) -> None:
        self.facts, self.options = facts, options
        self._asked: dict[tuple[frozenset[int], frozenset[str]], Found] = {}
        self._taken: set[tuple[frozenset[int], frozenset[str]]] = set()

    def part(self, exprs: Iterable[int], stores: Iterable[str]) -> Part:
        """The part of these expressions, and of the numbers that they take."""
        closed = self._with_numbers(exprs)
        records: tuple[OpRecord, ...] = tuple(self.facts.exprs[at] for at in sorted(closed))
        return self.facts.parts.of(records, frozenset(stores))

    def _with_numbers(self, exprs: Iterable[int]) -> set[int]:
        """A kernel takes a computed number from nowhere: it makes it."""
        found = set(exprs)
        stack = list(found)
        while stack:
            at = stack.pop()
            for name in self.facts.numbers[at]:
                maker = self.facts.number.get(name)
                if maker is not None and maker not in found:
                    found.add(maker)
                    stack.append(maker)
        return found

    def ask(self, exprs: Iterable[int], stores: Iterable[str]) -> Found:
        """The match of the scheduler that takes these expressions, or every refusal."""
        key = (frozenset(exprs), frozenset(stores))
        if key not in self._asked:
            self._asked[key] = find_match(self.part(*key), self.facts.target, self.options)
        return self._asked[key]

    def refuses(self, one: Summary) -> tuple[Reject, ...]:
        """Why nothing takes the segment; nothing if something does."""
        if len(one.exprs) > MAX_OPS:
            return self.asked(one)
        if one.is_external and len(one.units) > 1:
            return (Reject("expr_eval", "not a single torch call"),)
        if not one.is_plain:
            return self.asked(one)
        if not one.patterns:
            return self._pointwise(one)
        return self._reductions(one)

    def asked(self, one: Summary) -> tuple[Reject, ...]:
        """As refuses, by asking the schedulers."""
        return self.refuses_set(one.exprs, one.stores)

    def refuses_set(self, exprs: Iterable[int], stores: Iterable[str]) -> tuple[Reject, ...]:
        """Why nothing takes these expressions; the scheduler of most segments is asked first."""
        key = (frozenset(exprs), frozenset(stores))
        if len(key[0]) > MAX_OPS:
            return (Reject(NAME, f"{len(key[0])} expressions, more than {MAX_OPS}"),)
        if key in self._taken:
            return ()
        if key not in self._asked:
            given = self.part(*key), self.facts.target, self.options
            if any(isinstance(s.match(*given), Match) for s in reversed(SCHEDULERS)):
                self._taken.add(key)
                return ()
        found = self.ask(*key)
        return found if isinstance(found, tuple) else ()

    def has_cut(self, exprs: Iterable[int]) -> bool:
        """True if one of the expressions reads a segment_set among them."""
        line = [self.facts.exprs[at] for at in exprs]
        cut = {name for expr in line if expr.op == "segment_set" for name in expr.outputs}
        return bool(cut) and any(not cut.isdisjoint(expr.inputs) for expr in line)

    def _pointwise(self, one: Summary) -> tuple[Reject, ...]:
        axes = stored_axes(self.facts, one)
        if not have_one_space(axes):
            return (Reject("pointwise", f"results over different axes: {_listed(axes)}"),)
        if one.is_sound or are_few(self.facts, one.exprs, one.stores, MAX_PLACES):
            return ()
        return self.asked(one)

    def _reductions(self, one: Summary) -> tuple[Reject, ...]:
        if rows_and_groups(one.patterns) is not None:
            return self.asked(one)
        if len(one.patterns) > 1:
            return (Reject("reduction", f"reductions of {len(one.patterns)} patterns"),)
        (pattern,) = one.patterns
        foreign = pattern.foreign(stored_axes(self.facts, one))
        if foreign:
            axes = _listed(foreign)
            return (Reject("reduction", f"results over {axes}, neither row values nor full ones"),)
        return () if one.is_sound else self.asked(one)

    def cut_between(self, a: Summary, b: Summary) -> tuple[Reject, ...]:
        """The refusal of two segments of which one reads the other's segment_set."""
        if not (a.cut or b.cut):
            return ()
        names = [n for n in (*edge_names(a, b), *edge_names(b, a)) if n in a.cut | b.cut]
        return tuple(Reject("segment_set", f"{name} is a boundary") for name in names)


def _listed(axes: Iterable[frozenset[str]]) -> str:
    each = sorted(sorted(one, key=lambda a: int(a[1:])) for one in axes)
    return ", ".join(f"[{', '.join(one)}]" for one in each)
