# SPDX-License-Identifier: Apache-2.0
"""How many turns of each loop of a GPU are written as one.

for (j_o_o < 4) { T8 += ...; }      ->   #pragma unroll      a short loop: all of them
for (j_o_o < size0) { T8 += ...; }  ->   #pragma unroll 4    their loads are under way together
for (i < 64) { ...; reduce_x; }     ->   #pragma unroll 1    threads wait for each other in it
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.size_symbols import Sized
from thunder_fuser.lower.kernel import (
    ALL,
    REDUCES,
    For,
    If,
    Kernel,
    Statement,
    called,
    rewritten,
)
from thunder_fuser.lower.size_arguments import SHORT_LOOP

SEVERAL = 4


def unroll(kernel: Kernel) -> Kernel:
    """Gives every loop its number of turns."""
    return replace(kernel, body=rewritten(kernel.body, _unrolled))


def _unrolled(statement: Statement) -> Statement:
    return replace(statement, unroll=_turns(statement)) if isinstance(statement, For) else statement


def _turns(loop: For) -> int:
    if loop.parallel in (ParallelType.UNROLL, ParallelType.VECTORIZE):
        return ALL
    if _reduces(loop.body):
        return 1
    known = loop.extent.is_const and type(loop.extent.value) is not Sized
    return ALL if known and loop.extent.value <= SHORT_LOOP else SEVERAL


def _reduces(statements: tuple[Statement, ...]) -> bool:
    return any(
        called(s) in REDUCES or (isinstance(s, For | If) and _reduces(s.body)) for s in statements
    )
