# SPDX-License-Identifier: Apache-2.0
"""What is known of a segment without looking at its expressions again; two of them merge.

    {T2 = sum(T1, 1)}  +  {T3 = sub(T1, T2)}
->  reads T1 once, stores T3 alone, one pattern of reductions, two passes over the data
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from thunder_fuser.analysis.domain_map import Axes, Pattern
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.segment.candidate import passes
from thunder_fuser.segment.facts import Facts
from thunder_fuser.segment.privatize import Unit

MAX_OPS = 512  # expressions of one kernel: more cost more to compile than the edge of a cut


@dataclass(slots=True)
class Summary:
    """A segment, as the segmenter sees it while it grows.

    reads: of each value from outside, [bytes, how many units read it]; stores: of each value made
    here, how many units outside read it, a result counted as one more; cut: what lies behind a
    segment_set made here; work: see Facts.work; depths: of the reductions made here; straight:
    expressions of which every element is known to be computed once, at its own place.
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
    straight: set[int]
    cut: frozenset[str] = field(default=frozenset())


def summaries(facts: Facts, units: Sequence[Unit]) -> list[Summary]:
    """The summary of each unit."""
    readers: dict[str, int] = {}
    for unit in units:
        for name, _ in unit.reads:
            readers[name] = readers.get(name, 0) + 1
    return [_summary(facts, at, unit, readers) for at, unit in enumerate(units)]


def _summary(facts: Facts, number: int, unit: Unit, readers: Mapping[str, int]) -> Summary:
    """The summary of one unit; readers: how many units read each value."""
    own = facts.exprs[unit.expr]
    exprs = {unit.expr, *unit.copies}
    stores = {
        name: readers.get(name, 0) + (name in facts.results)
        for name in own.outputs
    }
    pattern = facts.patterns[unit.expr]
    in_place = not unit.copies or _is_in_place(facts, exprs)
    return Summary(
        exprs=exprs,
        units=[number],
        reads={name: [size, 1] for name, size in unit.reads},
        stores=stores,
        patterns=frozenset([pattern] if pattern else []),
        depths=frozenset([facts.depth[unit.expr]] if pattern else []),
        work=sum(facts.work[at] for at in exprs),
        is_plain=all(facts.is_plain[at] for at in exprs),
        is_external=own.row.kind is OpKind.EXTERNAL,
        in_place=in_place,
        is_sound=in_place,
        straight=exprs if in_place else {unit.expr},
        cut=frozenset(own.outputs if own.op == "segment_set" else ()),
    )


def _is_in_place(facts: Facts, exprs: Iterable[int]) -> bool:
    """True if what they make is read by them at its own element."""
    made = {name for at in exprs for name in facts.exprs[at].outputs}
    return all(made.isdisjoint(set(facts.operands[at]) - facts.keeps_place[at]) for at in exprs)


def edge_names(a: Summary, b: Summary) -> list[str]:
    """What b reads that a stores."""
    if len(b.reads) < len(a.stores):
        return [name for name in b.reads if name in a.stores]
    return [name for name in a.stores if name in b.reads]


def merged(facts: Facts, a: Summary, b: Summary) -> Summary:
    """Both as one."""
    reads, stores, inner = _edges(facts, a, b)
    both = a.exprs & b.exprs
    straight, is_straight = _straight(facts, a, b, inner, both)
    in_place = a.in_place and b.in_place and is_straight
    patterns = a.patterns | b.patterns
    # Of values that are read where they were before, there is nothing new to ask.
    is_old = not inner and not both if patterns else is_straight and both <= straight
    return Summary(
        exprs=a.exprs | b.exprs,
        units=a.units + b.units,
        reads=reads,
        stores=stores,
        patterns=patterns,
        depths=a.depths | b.depths,
        work=a.work + b.work - sum(facts.work[at] for at in both),
        is_plain=a.is_plain and b.is_plain,
        is_external=a.is_external or b.is_external,
        in_place=in_place,
        is_sound=in_place or (a.is_sound and b.is_sound and is_old),
        straight=straight,
        cut=a.cut | b.cut,
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


def _straight(
    facts: Facts, a: Summary, b: Summary, inner: Iterable[str], both: set[int]
) -> tuple[set[int], bool]:
    """What is straight in both together, and whether all that one makes and the other reads is
    read at its own element by what is straight: then what it is made of stays as it was."""
    bent = [n for n in inner if not _is_read_straight(facts, n, a if n in a.reads else b)]
    if not bent and not both:
        return a.straight | b.straight, True
    own = [one.straight if one.stores.keys().isdisjoint(bent) else set[int]() for one in (a, b)]
    return (own[0] | own[1]) - (both - (own[0] & own[1])), not bent


def _is_read_straight(facts: Facts, name: str, reader: Summary) -> bool:
    for at in facts.uses[name]:
        if at in reader.exprs and (name not in facts.keeps_place[at] or at not in reader.straight):
            return False
    return True


def stored_axes(facts: Facts, one: Summary) -> set[Axes]:
    """The axes of what it stores."""
    return {facts.axes[name] for name in one.stores}


def cost(facts: Facts, one: Summary) -> float:
    """Bytes read and written, a launch, and the work, in bytes that memory moves meanwhile."""
    read = sum(size for size, _ in one.reads.values())
    stored = sum(facts.bytes[name] for name in one.stores)
    return facts.target.launch_bytes + read + stored + one.work * passes(len(one.depths))
