# SPDX-License-Identifier: Apache-2.0
"""A plan as sets of expressions: what each set reads and stores, and what the plan costs.

An expression in two sets is computed in both. Each value that must reach memory is stored by one
set, its home. Sets whose values nothing needs are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.segment.facts import Facts


@dataclass(frozen=True, slots=True)
class Candidate:
    """The expressions of one segment, by number, and the values it stores."""

    exprs: frozenset[int]
    stores: frozenset[str]


def homes(candidates: Sequence[Candidate]) -> dict[str, int]:
    """The number of the candidate that stores each value."""
    return {name: at for at, one in enumerate(candidates) for name in sorted(one.stores)}


def reads_of(facts: Facts, one: Candidate) -> dict[str, int]:
    """The values that a candidate reads from outside, and how many bytes of each it touches.

    T1 = cast(T0); T2 = slice(T1), a quarter of it    if it stores only T2: a quarter of T0
    """
    wanted = {name: facts.elements[name] for name in one.stores}
    for at in sorted(one.exprs, reverse=True):
        made = max((wanted.get(name, 0) for name in facts.exprs[at].outputs), default=0)
        for name in facts.operands[at]:
            count = wanted.get(name, 0) + facts.elements_read(at, name, made)
            wanted[name] = min(count, facts.elements[name])
    return {
        name: min(wanted[name] * facts.itemsize(name), facts.bytes[name])
        for name in external(facts, one.exprs)
    }


def edge_bytes(facts: Facts, one: Candidate) -> int:
    """The bytes that a segment reads from memory and stores to it."""
    return sum(reads_of(facts, one).values()) + sum(facts.bytes[name] for name in one.stores)


def cost_of(facts: Facts, one: Candidate) -> float:
    """Bytes read and stored, those of sectors that are moved in vain, and the bytes that memory
    moves in the time of the launch and of the arithmetic."""
    depths = {facts.depth[at] for at in one.exprs if facts.patterns[at] is not None}
    work = sum(facts.work[at] for at in sorted(one.exprs)) * passes(len(depths))
    return facts.target.launch_bytes + edge_bytes(facts, one) + crossed(facts, one) + work


def crossed(facts: Facts, one: Candidate) -> int:
    """The bytes of sectors that a segment with reductions moves in vain; see Crossing."""
    if not facts.crossing.is_mixed:
        return 0
    patterns = {found for at in one.exprs if (found := facts.patterns[at]) is not None}
    stored = {name: facts.bytes[name] for name in sorted(one.stores)}
    return facts.crossing.price({**reads_of(facts, one), **stored}, patterns) if patterns else 0


def passes(depths: int) -> float:
    """Roughly how often a segment with reductions at so many depths computes an expression.

    Reductions that wait for each other need several passes over the data. Each pass after the first
    computes about half of the expressions again.
    """
    return 1 + max(depths - 1, 0) / 2


def total(facts: Facts, candidates: Sequence[Candidate]) -> float:
    """The cost of a plan."""
    return sum(cost_of(facts, one) for one in candidates)


def candidates_from(
    facts: Facts, sets: Sequence[frozenset[int]], home: Mapping[str, int]
) -> list[Candidate]:
    """The candidates of sets of expressions. The sets are in topological order.

    home: the set that stores a value, if the value must reach memory. A set that stores nothing is
    dropped, and so are the expressions that only such sets need.
    """
    wanted: set[str] = set(facts.results)
    candidates: list[Candidate] = []
    for at in reversed(range(len(sets))):
        names = [n for e in sorted(sets[at]) for n in facts.exprs[e].outputs]
        stores = frozenset(n for n in names if n in wanted and home.get(n) == at)
        if stores:
            live = live_exprs(facts, sets[at], stores)
            candidates.append(Candidate(live, stores))
            wanted.update(external(facts, live))
    return candidates[::-1]


def live_exprs(facts: Facts, exprs: frozenset[int], stores: Iterable[str]) -> frozenset[int]:
    """The expressions that the stored values depend on."""
    found: set[int] = set()
    stack = [facts.number[name] for name in sorted(stores)]
    while stack:
        at = stack.pop()
        if at in exprs and at not in found:
            found.add(at)
            stack += [facts.number[n] for n in facts.operands[at] if n in facts.number]
    return frozenset(found)


def repeats_compared(facts: Facts, sets: Iterable[Iterable[int]]) -> bool:
    """True if two sets compute one expensive expression in a fusion that compares floats.

    Its bits could differ between two kernels, and a comparison of the two would then be wrong.
    """
    if not facts.compares:
        return False
    expensive = [at for exprs in sets for at in exprs if not facts.exprs[at].row.is_cheap]
    return len(set(expensive)) < len(expensive)


def external(facts: Facts, exprs: Iterable[int]) -> list[str]:
    """The names of the values that expressions read but do not compute, in order."""
    made: set[str] = set()
    found: dict[str, None] = {}
    for at in sorted(exprs):  # in program order, so producers come before their readers
        for name in facts.operands[at]:
            if name not in made:
                found[name] = None
        made.update(facts.exprs[at].outputs)
    return list(found)
