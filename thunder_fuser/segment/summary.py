# SPDX-License-Identifier: Apache-2.0
"""What is known of a segment without looking at its expressions again; two of them merge.

    {T2 = sum(T1, 1)}  +  {T3 = sub(T1, T2)}
->  reads T1 once, stores T3 alone, one pattern of reductions, two passes over the data
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.pattern import Axes, Pattern
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.segment.candidate import passes
from thunder_fuser.segment.facts import Facts
from thunder_fuser.segment.privatize import Unit


@dataclass(slots=True)
class Summary:
    """A segment, as the segmenter sees it while it grows.

    reads: of each value from outside, [bytes, how many units read it]; stores: of each value made
    here, how many units outside read it, a result counted as one more; work: see Facts.work;
    depths: of the reductions made here.
    """

    exprs: set[int]
    units: list[int]
    reads: dict[str, list[int]]
    stores: dict[str, int]
    patterns: frozenset[Pattern]
    depths: frozenset[int]
    work: float
    is_plain: bool  # no scans, torch calls, lookups, partial results, tensors without elements
    is_external: bool
    in_place: bool  # every value made here is read at its own element
    is_sound: bool  # so it is, or the schedulers were asked about the places it is read at


def summaries(facts: Facts, units: Sequence[Unit]) -> list[Summary]:
    """The summary of each unit."""
    readers = Counter(name for unit in units for name, _ in unit.reads)
    return [_summary(facts, at, unit, readers) for at, unit in enumerate(units)]


def _summary(facts: Facts, number: int, unit: Unit, readers: Mapping[str, int]) -> Summary:
    """The summary of one unit; readers: how many units read each value."""
    own = facts.exprs[unit.expr]
    exprs = {unit.expr, *unit.copies}
    pattern = facts.patterns[unit.expr]
    made = [name for at in exprs for name in facts.exprs[at].outputs]
    in_place = not unit.copies or _are_read_in_place(facts, made, exprs)
    return Summary(
        exprs=exprs,
        units=[number],
        reads={name: [size, 1] for name, size in unit.reads},
        stores={name: readers.get(name, 0) + (name in facts.results) for name in own.outputs},
        patterns=frozenset([pattern] if pattern else []),
        depths=frozenset([facts.depth[unit.expr]] if pattern else []),
        work=sum(facts.work[at] for at in exprs),
        is_plain=all(facts.is_plain[at] for at in exprs),
        is_external=own.row.kind is OpKind.EXTERNAL,
        in_place=in_place,
        is_sound=in_place,
    )


def _are_read_in_place(facts: Facts, names: Iterable[str], exprs: set[int]) -> bool:
    """True if these expressions read each of the values at its own element."""
    return all(
        name in facts.keeps_place[at]
        for name in names for at in facts.uses[name] if at in exprs
    )


def edge_names(a: Summary, b: Summary) -> list[str]:
    """What b reads that a stores."""
    if len(b.reads) < len(a.stores):
        return [name for name in b.reads if name in a.stores]
    return [name for name in a.stores if name in b.reads]


def merged(facts: Facts, a: Summary, b: Summary) -> Summary:
    """Both as one."""
    reads, stores, inner = _edges(facts, a, b)
    exprs, both = a.exprs | b.exprs, a.exprs & b.exprs
    in_place = a.in_place and b.in_place and _are_read_in_place(facts, inner, exprs)
    # Of values that are read where they were before, there is nothing new to ask.
    is_old = a.is_sound and b.is_sound and not inner and not both
    return Summary(
        exprs=exprs,
        units=a.units + b.units,
        reads=reads,
        stores=stores,
        patterns=a.patterns | b.patterns,
        depths=a.depths | b.depths,
        work=a.work + b.work - sum(facts.work[at] for at in both),
        is_plain=a.is_plain and b.is_plain,
        is_external=a.is_external or b.is_external,
        in_place=in_place,
        is_sound=in_place or is_old,
    )


def _edges(
    facts: Facts, a: Summary, b: Summary
) -> tuple[dict[str, list[int]], dict[str, int], list[str]]:
    """What both together read, what they store, and what one makes and the other reads."""
    reads, stores, inner = dict(a.reads), a.stores | b.stores, []
    for name, (size, count) in b.reads.items():
        if name in a.stores:
            inner.append(name)
            stores[name] -= count
        else:
            ours, readers = reads.get(name, (0, 0))
            reads[name] = [min(ours + size, facts.bytes[name]), readers + count]
    for name in b.stores:
        if name in a.reads:
            inner.append(name)
            stores[name] -= reads.pop(name)[1]
    for name in inner:
        if not stores[name]:
            del stores[name]
    return reads, stores, inner


def stored_axes(facts: Facts, one: Summary) -> set[Axes]:
    """The axes of what it stores."""
    return {facts.axes[name] for name in one.stores}


def cost(facts: Facts, one: Summary) -> float:
    """Bytes read and written, a launch, and the work, in bytes that memory moves meanwhile."""
    read = sum(size for size, _ in one.reads.values())
    stored = sum(facts.bytes[name] for name in one.stores)
    return facts.target.launch_bytes + read + stored + one.work * passes(len(one.depths))
