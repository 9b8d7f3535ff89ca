# SPDX-License-Identifier: Apache-2.0
"""A plan -> a better one, in which expressions are computed twice or moved to other segments.

recompute_cheap_edges, for any plan: recomputes values where that is cheaper than to move them

    segment 0: T2 = add(T0: bf16, T1: bf16)    segment 1 reads T2, 4 bytes an element
->  segment 1: T2 = add(T0, T1); ...           and T0 and T1, 2 each, which it may have anyway

refine, for a small plan: takes one step at a time, as long as one of these lowers the cost

    merge     two segments become one
    dissolve  the readers of a segment compute its expressions themselves, and it is dropped
    copy      a reader computes a value itself: all producers, the cheap ones, or the last one
    read      a segment reads a value that another one stores anyway, instead of computing it
    pull      an expression that reads a value moves to the segment that computes it
    apart     two segments become one, and a second one copies tensors into another memory order
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial

from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.candidate import (
    Candidate,
    candidates_from,
    cost_of,
    crossed,
    external,
    homes,
    live_exprs,
    repeats_compared,
)
from thunder_fuser.segment.facts import Facts

MAX_CHEAP = 16  # cheap expressions that are recomputed for one value
MAX_COPIED = 40  # expressions that one step copies
MAX_STEPS = 24
MAX_SEGMENTS = 12  # a larger plan is not refined

Exprs = frozenset[int]
Sets = list[Exprs]


# ---- cheap edges


def recompute_cheap_edges(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, which compute their cheap inputs themselves where that saves bytes.

    Private copies (units.py) have done so already for values that are computed from one tensor.
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
    is_same = sets == [one.exprs for one in candidates]
    return candidates if is_same else candidates_from(facts, sets, home)


def _grown(
    acceptance: Acceptance, one: Candidate, chains: dict[str, Exprs]
) -> list[tuple[str, Exprs]]:
    """The chains that schedulers accept in the segment: all of them, or else one after another."""
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
    """Bytes that need not move if one reader of a value computes it itself."""
    stores = 1 if readers == 1 and name not in facts.results else 0
    return facts.bytes[name] * (1 + stores)


def _cost(facts: Facts, one: Candidate, have: Iterable[str], chain: Exprs) -> float:
    """The additional reads and work of a segment that computes a chain, in bytes."""
    new = (leaf for leaf in external(facts, chain) if leaf not in have)
    work = sum(facts.work[at] for at in sorted(chain - one.exprs))
    more = crossed(facts, Candidate(one.exprs | chain, one.stores)) - crossed(facts, one)
    return sum(facts.bytes[leaf] for leaf in new) + work + more


def _stored_chain(facts: Facts, home: Mapping[str, int], name: str) -> Exprs:
    """The cheap expressions that compute a value, if all that they read is in memory."""
    chain = _cheap_chain(facts, name)
    stored = all(leaf in home or leaf not in facts.number for leaf in external(facts, chain))
    return chain if stored else frozenset()


def _cheap_chain(facts: Facts, name: str) -> Exprs:
    """The cheap expressions that compute a value; none if it is an input, or they are too many."""
    chain: set[int] = set()
    stack = [name]
    while stack:
        at = facts.number.get(stack.pop())
        if at is None or at in chain:
            continue
        if facts.exprs[at].row.is_cheap and not facts.is_made_once(at):
            chain.add(at)
            stack += facts.operands[at]
        if len(chain) > MAX_CHEAP:
            return frozenset()
    return frozenset(chain)


# ---- steps of a search


def refine(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The plan after all steps that lower its cost."""
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
    """The cheapest plan one step away; None if none is cheaper than this one."""
    facts, best, least = acceptance.facts, None, sum(map(cost, candidates))
    for sets in _steps(facts, candidates):
        found = _arranged(facts, sets, candidates)
        if found is None or repeats_compared(facts, [one.exprs for one in found]):
            continue
        now = sum(map(cost, found))
        if now < least * (1 - 1e-6) and not any(map(acceptance.refusals, found)):
            best, least = found, now
    return best


def _arranged(facts: Facts, sets: Sets, before: Sequence[Candidate]) -> list[Candidate] | None:
    """The sets as candidates in topological order; None if there is no such order.

    A value is stored by the same set as before if that still computes it, else by the first that
    does.
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
    return candidates_from(facts, [sets[at] for at in line], home)


def _in_order(facts: Facts, sets: Sets, home: Mapping[str, int]) -> list[int] | None:
    """A topological order of the sets, which takes the first set that is ready; None if there is
    none."""
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
    copies = frozenset(filter(facts.is_made_once, range(len(facts.exprs))))
    edges = [
        (home[name], at, name)
        for at, exprs in enumerate(sets) for name in external(facts, exprs) if name in home
    ]
    for a in range(len(sets)):
        for b in range(a + 1, len(sets)):
            both = sets[a] | sets[b]
            yield _with(sets, {a: both, b: frozenset()})
            if both & copies and both - copies:
                yield _with(sets, {a: both & copies, b: both - copies})
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
