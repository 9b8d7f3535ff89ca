# SPDX-License-Identifier: Apache-2.0
"""At how many places of a value its readers want it, at most, without making an index.

    T1 = exp(T0); T2 = slice(T1); T3 = flip(T1); T4 = add(T2, T3)      T1 at two places
"""

from __future__ import annotations

from collections.abc import Iterable

from thunder_fuser.ir.record import names_of
from thunder_fuser.segment.facts import Facts


def are_few(facts: Facts, exprs: Iterable[int], stores: Iterable[str], most: int) -> bool:
    """True if no value of these pointwise and movement expressions is wanted at more places.

    A place has a number; 0 is that of a stored element. A reader that takes another element than
    its own makes a place of each of its own: some of them may be equal, so this is no exact count.
    """
    numbers: dict[tuple[int, int, int], int] = {}
    places: dict[str, set[int]] = {name: {0} for name in stores}
    for at in sorted(exprs, reverse=True):
        expr = facts.exprs[at]
        own = places.get(expr.outputs[0], set())
        if len(own) > most:
            return False
        for turn, name in enumerate(names_of(expr)):
            if name not in facts.number:
                continue
            if name in facts.keeps_place[at]:
                found = own
            else:
                found = {numbers.setdefault((at, turn, one), len(numbers) + 1) for one in own}
            places.setdefault(name, set()).update(found)
    return True
