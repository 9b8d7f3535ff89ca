# SPDX-License-Identifier: Apache-2.0
"""What it costs to compute a value, to compute it again, and to keep it.

The unit is a byte that memory moves in the same time. A launch costs `target.launch_bytes`, an
element of an op its `cost` in ir/op_table.py. sector_waste.py prices sectors that are read in part.

    cheap: add, cast, div, sqrt, views      copied into each segment, computed in each pass
    expensive: exp, erf, sin, pow           stored once where it is broadcast, kept on chip
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from thunder_fuser.ir.op_schema import Op, OpKind
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.target import Target

CHEAP = 2  # simple float operations an element; no op in common use costs more than 2, less than 8
# A kernel that reads such a value may compute it.
INLINED = (OpKind.POINTWISE, OpKind.MOVEMENT, OpKind.FACTORY, OpKind.RANDOM)


def is_cheap(row: Op) -> bool:
    """True if to compute a result again costs less than to store and load it."""
    return row.kind not in (OpKind.REDUCTION, OpKind.SCAN) and row.cost <= CHEAP


def is_expensive(row: Op) -> bool:
    """True for arithmetic on single elements that is not cheap."""
    return row.kind in (OpKind.POINTWISE, OpKind.RANDOM) and not is_cheap(row)


def is_recomputable(expr: OpRecord) -> bool:
    """True for cheap arithmetic and views, which each block may compute again."""
    return expr.row.kind in (OpKind.POINTWISE, OpKind.MOVEMENT) and is_cheap(expr.row)


def work(row: Op, elements: int, target: Target) -> float:
    """The bytes that memory moves in the time of computing an op on so many elements."""
    return elements * row.cost / target.ops_per_byte


def passes(depths: int) -> float:
    """Roughly how often a segment with reductions at so many depths computes an expression: each
    depth is a pass over the data, and all but the first compute half of the expressions again."""
    return 1 + max(depths - 1, 0) / 2


def outer_repeats(sizes: Sequence[int], wanted: Sequence[int]) -> int:
    """How often each element is computed in a loop over `wanted`, where `sizes` has 1 for axes that
    are broadcast. A value that lacks the innermost axes is computed once for all of them.

    [1, 8, 1], [2, 8, 4]  ->  2
    """
    last = max((at for at, size in enumerate(sizes) if size > 1), default=0)
    return prod(wanted[:last]) // max(prod(sizes[:last]), 1)
