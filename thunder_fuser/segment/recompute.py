# SPDX-License-Identifier: Apache-2.0
"""Edges that are cheaper to recompute than to move through memory, over several tensors too.

    segment 0: T2 = add(T0: bf16, T1: bf16); ...    segment 1 reads T2 (4 bytes an element)
->  segment 1: T2 = add(T0, T1); ...                and reads T0 and T1 (2 each), which it has anyway

Private copies (privatize.py) have done so where one tensor is behind the value.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.schedule.scheduler import Scheduler
from thunder_fuser.segment.draft import Draft, cost_of, external, reads_of, settled
from thunder_fuser.segment.facts import Facts
from thunder_fuser.segment.verdicts import Verdicts

MAX_COPIED = 16  # expressions behind one value


def recompute_cheap_edges(
    verdicts: Verdicts, drafts: list[Draft]
) -> list[Draft]:
    """The drafts, each grown by the cheap expressions behind its inputs where that saves bytes."""
    facts = verdicts.facts
    home = {name: at for at, one in enumerate(drafts) for name in one.stores}
    readers: dict[str, int] = {}
    for one in drafts:
        for name in external(facts, one.exprs):
            readers[name] = readers.get(name, 0) + 1
    sets = [one.exprs for one in drafts]
    for at, one in enumerate(drafts):
        for name in external(facts, one.exprs):
            chain = cheap_chain(facts, name)
            if chain and _saves(facts, home, readers, sets[at], chain, name, one):
                grown = sets[at] | chain
                if isinstance(verdicts.ask(grown, one.stores), Scheduler):
                    sets[at] = grown
                    readers[name] -= 1
    return settled(facts, sets, home) if sets != [one.exprs for one in drafts] else drafts


def _saves(
    facts: Facts,
    home: dict[str, int],
    readers: dict[str, int],
    exprs: frozenset[int],
    chain: frozenset[int],
    name: str,
    one: Draft,
) -> bool:
    """True if fewer bytes move with the chain in the segment; its leaves must be in memory."""
    if any(leaf in facts.number and leaf not in home for leaf in external(facts, chain)):
        return False
    before = cost_of(facts, Draft(exprs, one.stores))
    if readers[name] == 1 and name not in facts.results:
        before += facts.bytes[name]  # nobody else wants it stored
    return cost_of(facts, Draft(exprs | chain, one.stores)) < before


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
