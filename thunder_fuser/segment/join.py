# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same with fewer launches: products of the same few rows share one.

    segment 0: T8 = linear(T0, T1); segment 1: T9 = rope(T8); segment 2: T10 = linear(T0, T2)
->  segment 0: T8 = linear(T0, T1), T10 = linear(T0, T2); segment 1: T9 = rope(T8)

Each product keeps its blocks and its loops (schedule/joined.py). None may need another one.
"""

from __future__ import annotations

from itertools import combinations

from thunder_fuser.schedule.reduction import Reduction, rows_of_product
from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.acyclic import Order
from thunder_fuser.segment.candidate import Candidate, external, owners


def join(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The plan with joined products, in an order in which it can run."""
    owner = owners(candidates)
    reads = [external(acceptance.info, one.exprs) for one in candidates]
    order = Order([[owner[name] for name in names if name in owner] for names in reads])
    groups = dict(enumerate(candidates))
    for line in _products(acceptance, candidates).values():
        for a, b in combinations(line, 2):
            a, b = sorted((order.find(a), order.find(b)))
            both = Candidate(groups[a].exprs | groups[b].exprs, groups[a].stores | groups[b].stores)
            if a != b and acceptance.joins(both) and order.merge(a, b):
                groups[a] = both
    return [groups[at] for at in order.groups()]


def _products(acceptance: Acceptance, candidates: list[Candidate]) -> dict[str, list[int]]:
    """The products of few rows, by the inputs that may be their rows."""
    found: dict[str, list[int]] = {}
    for at, candidate in enumerate(candidates):
        match = acceptance.ask(candidate)
        if isinstance(match, Reduction) and not match.target.is_cpu:
            for name in sorted(rows_of_product(match)[1]):
                found.setdefault(name, []).append(at)
    return found
