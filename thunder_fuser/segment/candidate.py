# SPDX-License-Identifier: Apache-2.0
"""A plan as sets of expressions: what each set reads and stores, and what the plan costs.

An expression in two sets is computed in both. Each value that must reach memory is stored by one
set, its owner. Sets whose values nothing needs are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.cost import is_cheap, passes
from thunder_fuser.segment.fusion_info import FusionInfo


@dataclass(frozen=True, slots=True)
class Candidate:
    """The expressions of one segment, by number, and the values it stores."""

    exprs: frozenset[int]
    stores: frozenset[str]


def owners(candidates: Sequence[Candidate]) -> dict[str, int]:
    """The number of the candidate that stores each value."""
    return {name: at for at, part in enumerate(candidates) for name in sorted(part.stores)}


def reads_of(info: FusionInfo, candidate: Candidate) -> dict[str, int]:
    """The values that a candidate reads from outside, and how many bytes of each it touches.

    T1 = cast(T0); T2 = slice(T1), a quarter of it    if it stores only T2: a quarter of T0
    """
    wanted = {name: info.elements[name] for name in candidate.stores}
    for at in sorted(candidate.exprs, reverse=True):
        computed = max((wanted.get(name, 0) for name in info.exprs[at].outputs), default=0)
        for name in info.operands[at]:
            count = wanted.get(name, 0) + info.elements_read(at, name, computed)
            wanted[name] = min(count, info.elements[name])
    return {
        name: min(wanted[name] * info.itemsize(name), info.bytes[name])
        for name in external(info, candidate.exprs)
    }


def edge_bytes(info: FusionInfo, candidate: Candidate) -> int:
    """The bytes that a segment reads from memory and stores to it."""
    return sum(reads_of(info, candidate).values()) + sum(info.bytes[n] for n in candidate.stores)


def cost_of(info: FusionInfo, candidate: Candidate) -> float:
    """The time, in bytes moved: reads, stores, wasted sectors, launch, arithmetic."""
    depths = {info.depth[at] for at in candidate.exprs if info.patterns[at] is not None}
    work = sum(info.work[at] for at in sorted(candidate.exprs)) * passes(len(depths))
    return info.target.launch_bytes + edge_bytes(info, candidate) + wasted(info, candidate) + work


def wasted(info: FusionInfo, candidate: Candidate) -> int:
    """The bytes of sectors that a segment with reductions does not use; see SectorWaste."""
    if not info.waste.is_mixed:
        return 0
    patterns = {pattern for at in candidate.exprs if (pattern := info.patterns[at]) is not None}
    stored = {name: info.bytes[name] for name in sorted(candidate.stores)}
    return info.waste.price({**reads_of(info, candidate), **stored}, patterns) if patterns else 0


def total(info: FusionInfo, candidates: Sequence[Candidate]) -> float:
    """The cost of a plan."""
    return sum(cost_of(info, candidate) for candidate in candidates)


def candidates_from(
    info: FusionInfo, sets: Sequence[frozenset[int]], owner: Mapping[str, int]
) -> list[Candidate]:
    """The candidates of sets of expressions. The sets are in topological order.

    owner: the set that stores a value, if the value must reach memory. A set that stores nothing is
    dropped, and so are the expressions that only such sets need.
    """
    wanted: set[str] = set(info.results)
    candidates: list[Candidate] = []
    for at in reversed(range(len(sets))):
        names = [n for e in sorted(sets[at]) for n in info.exprs[e].outputs]
        stores = frozenset(n for n in names if n in wanted and owner.get(n) == at)
        if stores:
            live = live_exprs(info, sets[at], stores)
            candidates.append(Candidate(live, stores))
            wanted.update(external(info, live))
    return candidates[::-1]


def live_exprs(info: FusionInfo, exprs: frozenset[int], stores: Iterable[str]) -> frozenset[int]:
    """The expressions that the stored values depend on."""
    live, stack = set[int](), [info.number[name] for name in sorted(stores)]
    while stack:
        at = stack.pop()
        if at in exprs and at not in live:
            live.add(at)
            stack += [info.number[n] for n in info.operands[at] if n in info.number]
    return frozenset(live)


def repeats_compared(info: FusionInfo, sets: Iterable[Iterable[int]]) -> bool:
    """True if two sets compute one expensive expression in a fusion that compares floats.

    Its bits could differ between two kernels, and a comparison of the two would then be wrong.
    """
    if not info.compares:
        return False
    expensive = [at for exprs in sets for at in exprs if not is_cheap(info.exprs[at].row)]
    return len(set(expensive)) < len(expensive)


def external(info: FusionInfo, exprs: Iterable[int]) -> list[str]:
    """The names of the values that expressions read but do not compute, in order."""
    computed, outside = set[str](), dict[str, None]()
    for at in sorted(exprs):  # in program order, so producers come before their readers
        for name in info.operands[at]:
            if name not in computed:
                outside[name] = None
        computed.update(info.exprs[at].outputs)
    return list(outside)
