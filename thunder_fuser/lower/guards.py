# SPDX-License-Identifier: Apache-2.0
"""The conditions of guards: where a split does not divide, a last step runs over the end."""

from __future__ import annotations

from thunder_fuser.ir.domain import IterDomain
from thunder_fuser.ir.scalar import Scalar, minimum
from thunder_fuser.ir.sized import Sized
from thunder_fuser.schedule.loop_index import Guard, LoopIndex


def valid(guard: Guard) -> Scalar:
    """1 where the axis is inside its extent."""
    return guard.value.lt(guard.extent)


def valid_step(guard: Guard, loop: IterDomain | None, loops: LoopIndex) -> Scalar:
    """`valid` for an unrolled loop, all but the last step of which need no test.

    The compiler would not know that of an extent which is an argument.

    i1{4095} split 128, in 32 steps:  s < 31 or 128*s + t < 4095
    """
    whole = valid(guard)
    if loop is None or guard.axis + ".o" != loop.name or whole.is_const:
        return whole
    if type(loop.extent.value) is Sized:
        return whole
    last = loop.extent.value - 1
    return minimum(loops.loops[loop.name] - last, guard.value - guard.extent).lt(0)


def clips(guard: Guard, variable: Scalar) -> bool:
    """True if the guard only shortens the loop: value == base + variable."""
    base = guard.value - variable
    return not base.symbols & variable.symbols
