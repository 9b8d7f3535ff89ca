# SPDX-License-Identifier: Apache-2.0
"""Edges that are cheaper to recompute than to move through memory, over several tensors too.

    segment 0: T2 = add(T0: bf16, T1: bf16)    segment 1 reads T2, 4 bytes an element
->  segment 1: T2 = add(T0, T1); ...           and T0 and T1, 2 each, which it may have anyway

Private copies (privatize.py) have done so where one tensor is behind the value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.candidate import Candidate, external, settled
from thunder_fuser.segment.facts import Facts

MAX_COPIED = 16  # expressions behind one value


def recompute_cheap_edges(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, with the cheap expressions behind their inputs where that saves bytes."""
    facts = acceptance.facts
    home = {name: at for at, one in enumerate(candidates) for name in one.stores}
    reads = [external(facts, one.exprs) for one in candidates]
    readers = Counter(name for names in reads for name in names)
    sets = [one.exprs for one in candidates]
    for at, (one, have) in enumerate(zip(candidates, reads, strict=True)):
        chains = {name: _chain(facts, home, name) for name in have}
        saving = {
            name: chain for name, chain in chains.items()
            if chain and _cost(facts, one, have, chain) < _saved(facts, name, readers[name])
        }
        for name, grown in _grown(acceptance, one, saving):
            sets[at] |= grown
            readers[name] -= 1
    return settled(facts, sets, home) if sets != [one.exprs for one in candidates] else candidates


def _grown(
    acceptance: Acceptance, one: Candidate, chains: dict[str, frozenset[int]]
) -> list[tuple[str, frozenset[int]]]:
    """The chains that the segment may take: all at once if it may, else one after the other."""
    everything = one.exprs.union(*chains.values())
    if not chains or not acceptance.refuses_set(everything, one.stores):
        return list(chains.items())
    found, exprs = [], one.exprs
    for name, chain in chains.items():
        if not acceptance.refuses_set(exprs | chain, one.stores):
            exprs |= chain
            found.append((name, chain))
    return found


def _saved(facts: Facts, name: str, readers: int) -> int:
    """Bytes that need not move if one reader of a value computes it."""
    stores = 1 if readers == 1 and name not in facts.results else 0
    return facts.bytes[name] * (1 + stores)


def _cost(facts: Facts, one: Candidate, have: Iterable[str], chain: frozenset[int]) -> float:
    """What a segment reads and does more, in bytes, if it computes a chain."""
    new = (leaf for leaf in external(facts, chain) if leaf not in have)
    work = sum(facts.work[at] for at in sorted(chain - one.exprs))
    return sum(facts.bytes[leaf] for leaf in new) + work


def _chain(facts: Facts, home: dict[str, int], name: str) -> frozenset[int]:
    """The cheap expressions behind a value, if all that they read is in memory."""
    chain = cheap_chain(facts, name)
    stored = all(leaf in home or leaf not in facts.number for leaf in external(facts, chain))
    return chain if stored else frozenset()


def cheap_chain(facts: Facts, name: str) -> frozenset[int]:
    """The cheap expressions behind a value; none if they are too many, or it is an input."""
    chain: set[int] = set()
    stack = [name]
    while stack:
        at = facts.number.get(stack.pop())
        if at is None or at in chain:
            continue
        row = facts.exprs[at].row
        if row.is_cheap and facts.exprs[at].op != "segment_set":
            chain.add(at)
            stack += facts.operands[at]
        if len(chain) > MAX_COPIED:
            return frozenset()
    return frozenset(chain)
