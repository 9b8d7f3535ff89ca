# SPDX-License-Identifier: Apache-2.0
"""A plan as sets of expressions: what each reads and stores, what all of it costs.

An expression in two sets is computed in both. Each value that must reach memory is stored by one
set, its home; sets that nobody needs are dropped.
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
    """What expressions read from outside, and how many bytes of it they touch.

    T1 = cast(T0); T2 = slice(T1), a quarter of it    storing T2 alone: a quarter of T0
    """
    wanted = {name: facts.elements[name] for name in one.stores}
    for at in sorted(one.exprs, reverse=True):
        shown = max((wanted.get(name, 0) for name in facts.exprs[at].outputs), default=0)
        for name in facts.operands[at]:
            count = wanted.get(name, 0) + facts.shown(at, name, shown)
            wanted[name] = min(count, facts.elements[name])
    return {
        name: min(wanted[name] * facts.itemsize(name), facts.bytes[name])
        for name in external(facts, one.exprs)
    }


def edge_bytes(facts: Facts, one: Candidate) -> int:
    """What a segment reads and stores in memory."""
    return sum(reads_of(facts, one).values()) + sum(facts.bytes[name] for name in one.stores)


def cost_of(facts: Facts, one: Candidate) -> float:
    """Bytes read and stored, a launch, and the work, in bytes that memory moves meanwhile."""
    depths = {facts.depth[at] for at in one.exprs if facts.patterns[at] is not None}
    work = sum(facts.work[at] for at in sorted(one.exprs)) * passes(len(depths))
    return facts.target.launch_bytes + edge_bytes(facts, one) + work


def passes(depths: int) -> float:
    """How often an expression is computed, about, in a segment with reductions at so many depths.

    Reductions that wait for each other are passes over the data; a later one computes half again.
    """
    return 1 + max(depths - 1, 0) / 2


def total(facts: Facts, candidates: Sequence[Candidate]) -> float:
    """The cost of a plan."""
    return sum(cost_of(facts, one) for one in candidates)


def settled(
    facts: Facts, sets: Sequence[frozenset[int]], home: Mapping[str, int]
) -> list[Candidate]:
    """The candidates of expression sets, which are in an order in which each reads earlier ones.

    home: the set that stores a value, if it must reach memory. A set that then stores nothing is
    dropped, and so is what only such sets need.
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


def is_twice(facts: Facts, sets: Iterable[Iterable[int]]) -> bool:
    """True if two sets compute one expensive expression in a fusion that compares.

    Its bits could differ between two kernels, so one could miss the value that the other found.
    """
    if not facts.compares:
        return False
    expensive = [at for exprs in sets for at in exprs if not facts.exprs[at].row.is_cheap]
    return len(set(expensive)) < len(expensive)


def external(facts: Facts, exprs: Iterable[int]) -> list[str]:
    """The names of the values that expressions read but do not compute, in order."""
    made: set[str] = set()
    found: dict[str, None] = {}
    for at in sorted(exprs):  # in program order: what one of them makes comes before its readers
        for name in facts.operands[at]:
            if name not in made:
                found[name] = None
        made.update(facts.exprs[at].outputs)
    return list(found)
