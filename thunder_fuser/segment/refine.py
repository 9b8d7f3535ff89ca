# SPDX-License-Identifier: Apache-2.0
"""A plan -> a better one, in which expressions are computed twice or moved to other segments.

recompute_cheap_edges, of any plan: what is cheaper to recompute than to move through memory

    segment 0: T2 = add(T0: bf16, T1: bf16)    segment 1 reads T2, 4 bytes an element
->  segment 1: T2 = add(T0, T1); ...           and T0 and T1, 2 each, which it may have anyway

refine, of a small plan: one step at a time, as long as one of these lowers the cost

    merge     two segments become one
    dissolve  the readers of a segment compute what it does, and it goes
    copy      a reader computes what it reads, the cheap expressions or the last one behind it
    read      a segment reads what it had computed too, for another stores it anyway
    pull      what reads a value moves to where that is made
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial

from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.candidate import (
    Candidate,
    cost_of,
    external,
    homes,
    is_twice,
    live_exprs,
    settled,
)
from thunder_fuser.segment.facts import Facts

MAX_CHEAP = 16  # cheap expressions behind one value
MAX_COPIED = 40  # expressions taken along in one step
MAX_STEPS = 24  # that are taken
MAX_SEGMENTS = 12

Exprs = frozenset[int]
Sets = list[Exprs]


# ---- cheap edges


def recompute_cheap_edges(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, with the cheap expressions behind their inputs where that saves bytes.

    Private copies (units.py) have done so where one tensor is behind the value.
    """
    facts, home = acceptance.facts, homes(candidates)
    reads = [external(facts, one.exprs) for one in candidates]
    readers = Counter(name for names in reads for name in names)
    sets = [one.exprs for one in candidates]
    for at, (one, have) in enumerate(zip(candidates, reads, strict=True)):
        chains = {name: _stored_chain(facts, home, name) for name in have}
        saving = {
            name: chain for name, chain in chains.items()
            if chain and _cost(facts, one, have, chain) < _saved(facts, name, readers[name])
        }
        for name, grown in _grown(acceptance, one, saving):
            sets[at] |= grown
            readers[name] -= 1
    return settled(facts, sets, home) if sets != [one.exprs for one in candidates] else candidates


def _grown(
    acceptance: Acceptance, one: Candidate, chains: dict[str, Exprs]
) -> list[tuple[str, Exprs]]:
    """The chains that schedulers allow in the segment: all together, else one by one."""
    everything = one.exprs.union(*chains.values())
    if not chains or not acceptance.refusals(Candidate(everything, one.stores)):
        return list(chains.items())
    found, exprs = [], one.exprs
    for name, chain in chains.items():
        if not acceptance.refusals(Candidate(exprs | chain, one.stores)):
            exprs |= chain
            found.append((name, chain))
    return found


def _saved(facts: Facts, name: str, readers: int) -> int:
    """Bytes that need not move if one reader of a value computes it."""
    stores = 1 if readers == 1 and name not in facts.results else 0
    return facts.bytes[name] * (1 + stores)


def _cost(facts: Facts, one: Candidate, have: Iterable[str], chain: Exprs) -> float:
    """What a segment reads and computes in addition, in bytes, if it computes a chain."""
    new = (leaf for leaf in external(facts, chain) if leaf not in have)
    work = sum(facts.work[at] for at in sorted(chain - one.exprs))
    return sum(facts.bytes[leaf] for leaf in new) + work


def _stored_chain(facts: Facts, home: Mapping[str, int], name: str) -> Exprs:
    """The cheap expressions behind a value, if all that they read is in memory."""
    chain = _cheap_chain(facts, name)
    stored = all(leaf in home or leaf not in facts.number for leaf in external(facts, chain))
    return chain if stored else frozenset()


def _cheap_chain(facts: Facts, name: str) -> Exprs:
    """The cheap expressions behind a value; none if they are too many, or it is an input."""
    chain: set[int] = set()
    stack = [name]
    while stack:
        at = facts.number.get(stack.pop())
        if at is None or at in chain:
            continue
        if facts.exprs[at].row.is_cheap and facts.exprs[at].op != "segment_set":
            chain.add(at)
            stack += facts.operands[at]
        if len(chain) > MAX_CHEAP:
            return frozenset()
    return frozenset(chain)


# ---- steps of a search


def refine(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The plan after the steps that lower its cost; the same one if none does."""
    cost = cache(partial(cost_of, acceptance.facts))
    for _ in range(MAX_STEPS):
        is_searched = 1 < len(candidates) <= MAX_SEGMENTS
        better = _better(acceptance, candidates, cost) if is_searched else None
        if better is None:
            break
        candidates = better
    return candidates


def _better(
    acceptance: Acceptance, candidates: list[Candidate], cost: Callable[[Candidate], float]
) -> list[Candidate] | None:
    """The cheapest plan that is one step away, if it is cheaper than this one."""
    facts, best, least = acceptance.facts, None, sum(map(cost, candidates))
    for sets in _steps(facts, candidates):
        found = _arranged(facts, sets, candidates)
        if found is None or is_twice(facts, [one.exprs for one in found]):
            continue
        now = sum(map(cost, found))
        if now < least * (1 - 1e-6) and not any(map(acceptance.refusals, found)):
            best, least = found, now
    return best


def _arranged(facts: Facts, sets: Sets, before: Sequence[Candidate]) -> list[Candidate] | None:
    """The sets as candidates in an order in which they can run; None if there is none.

    A value is stored where it was before, if that set still makes it, else by the first that does.
    """
    stored: dict[str, int] = {}
    for at, exprs in enumerate(sets):
        for name in (name for expr in sorted(exprs) for name in facts.exprs[expr].outputs):
            if name not in stored or (at < len(before) and name in before[at].stores):
                stored[name] = at
    line = _in_order(facts, sets, stored)
    if line is None:
        return None
    place = {at: number for number, at in enumerate(line)}
    home = {name: place[at] for name, at in stored.items()}
    return settled(facts, [sets[at] for at in line], home)


def _in_order(facts: Facts, sets: Sets, home: Mapping[str, int]) -> list[int] | None:
    """An order in which each set reads earlier ones: always the first that can run."""
    needs = []
    for at, exprs in enumerate(sets):
        read = [name for name in external(facts, exprs) if name in facts.number]
        if any(name not in home for name in read):
            return None
        needs.append({home[name] for name in read} - {at})
    line: list[int] = []
    while len(line) < len(sets):
        ready = [at for at in range(len(sets)) if at not in line and needs[at] <= set(line)]
        if not ready:
            return None
        line.append(ready[0])
    return line


def _steps(facts: Facts, candidates: Sequence[Candidate]) -> Iterator[Sets]:
    """The plans one step away."""
    sets, home = [one.exprs for one in candidates], homes(candidates)
    edges = [
        (home[name], at, name)
        for at, exprs in enumerate(sets) for name in external(facts, exprs) if name in home
    ]
    for a in range(len(sets)):
        for b in range(a + 1, len(sets)):
            yield _with(sets, {a: sets[a] | sets[b], b: frozenset()})
        readers = {at for maker, at, _ in edges if maker == a}
        if readers and len(sets[a]) <= MAX_COPIED:
            grown = {at: sets[at] | sets[a] for at in readers}
            yield _with(sets, {**grown, a: frozenset()})
    for maker, reader, name in edges:
        chain = live_exprs(facts, sets[maker], [name])
        last = facts.number[name]
        if len(chain) <= MAX_COPIED:
            yield _with(sets, {reader: sets[reader] | chain})
        yield _with(sets, {reader: sets[reader] | _cheap_chain(facts, name)})
        yield _with(sets, {reader: sets[reader] | {last}})
        yield _with(sets, {reader: sets[reader] | {last}, maker: sets[maker] - {last}})
        for use in facts.uses[name]:
            if use in sets[reader]:
                moved = sets[maker] | {use}
                yield _with(sets, {maker: moved, reader: sets[reader] - {use}})
    for name, maker in home.items():
        for at, exprs in enumerate(sets):
            if at != maker and facts.number[name] in exprs:
                yield _with(sets, {at: exprs - {facts.number[name]}})


def _with(sets: Sets, changed: dict[int, Exprs]) -> Sets:
    return [changed.get(at, exprs) for at, exprs in enumerate(sets)]
