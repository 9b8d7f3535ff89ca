# SPDX-License-Identifier: Apache-2.0
"""The conditions of guards: where a split does not divide, a last step runs over the end."""

from __future__ import annotations

from thunder_fuser.ir.domain import IterDomain
from thunder_fuser.ir.scalar import Scalar, conjunction, const, minimum
from thunder_fuser.ir.size_symbols import Sized
from thunder_fuser.schedule.loop_index import Edge, Guard, LoopIndex


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


def whole_steps(loops: LoopIndex, walked: IterDomain) -> tuple[Scalar, Scalar]:
    """The steps of an unrolled loop along an axis with edges that are known not to lie at them.

    i1 = 8*(128*s + t) + v - shift, shift < 8, of 4095:  0 < s, s < 3
    """
    edge, step = loops.edge, loops.loops[walked.name]
    assert edge is not None
    index = edge.index.substitute({str(g.variable): g.value for g in loops.guards})
    width = dict(index.terms[0]).get(step, 0)
    rest = index - step * width
    if type(walked.extent.value) is Sized or not (-width <= rest.lo and rest.hi < width):
        return const(0), const(0)
    return const(0).lt(step), step.lt(int(edge.extent.value) // width)


def either(a: Scalar, b: Scalar) -> Scalar:
    """Where one of two comparisons holds."""
    if const(0) in (a, b) or const(1) in (a, b):
        return a if b is const(0) or a is const(1) else b
    return minimum(a.parts[0], b.parts[0]).lt(0)


def whole_step(edge: Edge, known: tuple[Scalar, Scalar], lane: Scalar, width: int) -> Scalar:
    """Where all lanes of a step are within the axis; `known`: where that needs no test, as above.

    (0 < s or 0 <= i1) and (s < 3 or i1 + 7 < 4095)
    """
    first = edge.index - lane
    begun, ended = const(-1).lt(first), (first + (width - 1)).lt(edge.extent)
    return conjunction([either(known[0], begun), either(known[1], ended)])


def clips(guard: Guard, variable: Scalar) -> bool:
    """True if the guard only shortens the loop: value == base + variable."""
    base = guard.value - variable
    return bool(guard.value.symbols & variable.symbols) and not base.symbols & variable.symbols
