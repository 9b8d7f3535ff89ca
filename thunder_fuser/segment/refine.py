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

from thunder_fuser.analysis.cost import is_cheap
from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.candidate import (
    Candidate,
    candidates_from,
    cost_of,
    external,
    live_exprs,
    owners,
    repeats_compared,
    wasted,
)
from thunder_fuser.segment.fusion_info import FusionInfo

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
    info, owner = acceptance.info, owners(candidates)
    reads = [external(info, candidate.exprs) for candidate in candidates]
    readers = Counter(name for names in reads for name in names)
    sets = [candidate.exprs for candidate in candidates]
    for at, (candidate, have) in enumerate(zip(candidates, reads, strict=True)):
        chains = {name: _stored_chain(info, owner, name) for name in have}
        saving = {
            name: chain for name, chain in chains.items()
            if chain and _cost(info, candidate, have, chain) < _saved(info, name, readers[name])
        }
        for name, grown in _grown(acceptance, candidate, saving):
            sets[at] |= grown
            readers[name] -= 1
    is_same = sets == [candidate.exprs for candidate in candidates]
    return candidates if is_same else candidates_from(info, sets, owner)


def _grown(
    acceptance: Acceptance, candidate: Candidate, chains: dict[str, Exprs]
) -> list[tuple[str, Exprs]]:
    """The chains that schedulers accept in the segment: all of them, or else one after another."""
    everything = candidate.exprs.union(*chains.values())
    if not chains or not acceptance.refusals(Candidate(everything, candidate.stores)):
        return list(chains.items())
    added, exprs = [], candidate.exprs
    for name, chain in chains.items():
        if not acceptance.refusals(Candidate(exprs | chain, candidate.stores)):
            exprs |= chain
            added.append((name, chain))
    return added


def _saved(info: FusionInfo, name: str, readers: int) -> int:
    """Bytes that need not move if one reader of a value computes it itself."""
    stores = 1 if readers == 1 and name not in info.results else 0
    return info.bytes[name] * (1 + stores)


def _cost(info: FusionInfo, candidate: Candidate, have: Iterable[str], chain: Exprs) -> float:
    """The additional reads and work of a segment that computes a chain, in bytes."""
    new = (leaf for leaf in external(info, chain) if leaf not in have)
    work = sum(info.work[at] for at in sorted(chain - candidate.exprs))
    grown = Candidate(candidate.exprs | chain, candidate.stores)
    more = wasted(info, grown) - wasted(info, candidate)
    return sum(info.bytes[leaf] for leaf in new) + work + more


def _stored_chain(info: FusionInfo, owner: Mapping[str, int], name: str) -> Exprs:
    """The cheap expressions that compute a value, if all that they read is in memory."""
    chain = _cheap_chain(info, name)
    stored = all(leaf in owner or leaf not in info.number for leaf in external(info, chain))
    return chain if stored else frozenset()


def _cheap_chain(info: FusionInfo, name: str) -> Exprs:
    """The cheap expressions that compute a value; none if it is an input, or they are too many."""
    chain, stack = set[int](), [name]
    while stack:
        at = info.number.get(stack.pop())
        if at is None or at in chain:
            continue
        if is_cheap(info.exprs[at].row) and not info.is_made_once(at):
            chain.add(at)
            stack += info.operands[at]
        if len(chain) > MAX_CHEAP:
            return frozenset()
    return frozenset(chain)


# ---- steps of a search


def refine(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The plan after all steps that lower its cost."""
    cost = cache(partial(cost_of, acceptance.info))
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
    info, best, least = acceptance.info, None, sum(map(cost, candidates))
    for sets in _steps(info, candidates):
        plan = _arranged(info, sets, candidates)
        if plan is None or repeats_compared(info, [candidate.exprs for candidate in plan]):
            continue
        now = sum(map(cost, plan))
        if now < least * (1 - 1e-6) and not any(map(acceptance.refusals, plan)):
            best, least = plan, now
    return best


def _arranged(info: FusionInfo, sets: Sets, before: Sequence[Candidate]) -> list[Candidate] | None:
    """The sets as candidates in topological order; None if there is no such order.

    A value is stored by the same set as before if that still computes it, else by the first that
    does.
    """
    stored: dict[str, int] = {}
    for at, exprs in enumerate(sets):
        for name in (name for expr in sorted(exprs) for name in info.exprs[expr].outputs):
            if name not in stored or (at < len(before) and name in before[at].stores):
                stored[name] = at
    line = _in_order(info, sets, stored)
    if line is None:
        return None
    place = {at: number for number, at in enumerate(line)}
    owner = {name: place[at] for name, at in stored.items()}
    return candidates_from(info, [sets[at] for at in line], owner)


def _in_order(info: FusionInfo, sets: Sets, owner: Mapping[str, int]) -> list[int] | None:
    """A topological order of the sets, which takes the first set that is ready; None if there is
    none."""
    needs = []
    for at, exprs in enumerate(sets):
        read = [name for name in external(info, exprs) if name in info.number]
        if any(name not in owner for name in read):
            return None
        needs.append({owner[name] for name in read} - {at})
    line: list[int] = []
    while len(line) < len(sets):
        ready = [at for at in range(len(sets)) if at not in line and needs[at] <= set(line)]
        if not ready:
            return None
        line.append(ready[0])
    return line


def _steps(info: FusionInfo, candidates: Sequence[Candidate]) -> Iterator[Sets]:
    """The plans one step away."""
    sets, owner = [candidate.exprs for candidate in candidates], owners(candidates)
    copies = frozenset(filter(info.is_made_once, range(len(info.exprs))))
    edges = [
        (owner[name], at, name)
        for at, exprs in enumerate(sets) for name in external(info, exprs) if name in owner
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
        chain = live_exprs(info, sets[maker], [name])
        last = info.number[name]
        if len(chain) <= MAX_COPIED:
            yield _with(sets, {reader: sets[reader] | chain})
        yield _with(sets, {reader: sets[reader] | _cheap_chain(info, name)})
        yield _with(sets, {reader: sets[reader] | {last}})
        yield _with(sets, {reader: sets[reader] | {last}, maker: sets[maker] - {last}})
        for use in info.uses[name]:
            if use in sets[reader]:
                moved = sets[maker] | {use}
                yield _with(sets, {maker: moved, reader: sets[reader] - {use}})
    for name, maker in owner.items():
        for at, exprs in enumerate(sets):
            if at != maker and info.number[name] in exprs:
                yield _with(sets, {at: exprs - {info.number[name]}})


def _with(sets: Sets, changed: dict[int, Exprs]) -> Sets:
    return [changed.get(at, exprs) for at, exprs in enumerate(sets)]
