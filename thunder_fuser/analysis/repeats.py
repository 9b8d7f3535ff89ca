# SPDX-License-Identifier: Apache-2.0
"""How often a loop computes a value that is broadcast in it.

    cos[1, 1, t, d] * q[b, h, t, d]     cos once for each b and h: b*h times
    scale[t, 1] * x[t, d]               scale once in a row: d is the innermost axis

A cheap value costs no more than a load from memory, which takes its place. An expensive one may be
worth a kernel of its own, or be worth keeping.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from thunder_fuser.ir.op_schema import Op, OpKind


def outer_repeats(sizes: Sequence[int], wanted: Sequence[int]) -> int:
    """How often each element is computed in a loop over `wanted`, where `sizes` has 1 for axes that
    are broadcast. A value that lacks the innermost axes is computed once for all of them.

    [1, 8, 1], [2, 8, 4]  ->  2
    """
    last = max((at for at, size in enumerate(sizes) if size > 1), default=0)
    return prod(wanted[:last]) // max(prod(sizes[:last]), 1)


def is_costly(row: Op) -> bool:
    """True if to compute a result again costs more than to load it again."""
    return row.kind in (OpKind.POINTWISE, OpKind.RANDOM) and not row.is_cheap
