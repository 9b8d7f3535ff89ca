# SPDX-License-Identifier: Apache-2.0
"""Guards: if a split does not divide an axis, the last step would run over its end.

A guard is put where its value is first known. It skips the work by an If, or clamps the index:

skipped:  if (i < n) { const i32 i = ...; ... }          where no barrier follows
clamped:  const i32 i = i_x < n - 1 ? i_x : n - 1;       all threads go on, but do not store
"""

from __future__ import annotations

from thunder_fuser.ir.domain import IterDomain
from thunder_fuser.ir.scalar import Scalar, ceil_div, conjunction, const, minimum
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import Coordinate, If, Let
from thunder_fuser.lower.scope import Scope
from thunder_fuser.lower.state import KernelState
from thunder_fuser.schedule.loop_index import Edge, Guard


def define(scope: Scope, variable: Scalar, value: Coordinate | Scalar) -> None:
    """Defines the variable of an axis or loop."""
    scope.put(Let(str(variable), None, value))
    scope.symbols = scope.symbols | variable.symbols


def put_ready(state: KernelState, scope: Scope) -> Scope:
    """Puts the guards that depend only on blocks, threads and rows.

    No thread may skip a barrier. So before barriers kept axes are clamped, and guards of
    reduced axes are left to the nests. A pointwise kernel has no barriers and skips all work.
    """
    if not state.ctx.part.reductions and not state.ctx.part.scans:
        for guard in take_ready(state, scope):
            scope = enter(state.ctx, scope, guard)
        return scope
    for guard in take_ready(state, scope):
        if guard.is_reduction and not state.ctx.part.scans:
            state.guards.append(guard)
        else:
            clamp(state, scope, guard)
    return scope


def clamp(state: KernelState, scope: Scope, guard: Guard) -> None:
    """Clamps the index: past the end the last element is read again, and nothing is stored."""
    define(scope, guard.variable, minimum(guard.value, guard.extent - 1))
    state.row_condition = conjunction([state.row_condition, valid(guard)])
    if guard.is_reduction:
        state.scan_condition = conjunction([state.scan_condition, valid(guard)])


def clip(scope: Scope, guard: Guard, variable: Scalar, extent: Scalar) -> Scalar:
    """The extent of a loop that ends where its guard fails, as it does once (Guard.growth).

    j = t + 128*s, s < 30, j < 3800:  s < min(30, (3800 - t + 127) / 128)

    Its steps have no branch, so that the loads of several overlap. Where no step is valid, the
    number is 0 or negative; what is divided never is negative (Scalar's division).
    """
    define(scope, guard.variable, guard.value)
    factor = guard.growth(variable)
    left = guard.extent - (guard.value - variable * factor)
    return minimum(extent, left if factor == 1 else ceil_div(left, factor))


def take_ready(state: KernelState, scope: Scope) -> list[Guard]:
    """Removes and returns the open guards whose values are known in the scope, innermost axes
    last."""
    ready: list[Guard] = []
    symbols = scope.symbols
    while known := [guard for guard in state.guards if guard.value.symbols <= symbols]:
        ready.append(known[0])
        state.guards.remove(known[0])
        symbols |= known[0].variable.symbols
    return ready


def enter(ctx: Context, scope: Scope, guard: Guard, loop: IterDomain | None = None) -> Scope:
    """A block, inside a loop, in which the guard holds and its variable is defined."""
    inner = scope.child()
    inner.condition = valid(guard) if loop is None else valid_step(ctx, guard, loop)
    define(inner, guard.variable, guard.value)
    return inner


def close(scope: Scope, until: Scope) -> None:
    """Puts each block made by `enter`, from the innermost out to `until`, into its If."""
    while scope is not until:
        assert scope.condition is not None and scope.parent is not None
        scope.parent.put(If(scope.condition, tuple(scope.statements)))
        scope = scope.parent


def valid(guard: Guard) -> Scalar:
    """1 where the axis is inside its extent."""
    return guard.value.lt(guard.extent)


def valid_step(ctx: Context, guard: Guard, loop: IterDomain) -> Scalar:
    """`valid`, with a hint for a GPU's unrolled loop: only its last step needs the test.

    The compiler cannot know this itself if the extent is an argument.

    i1{4095} split 128, in 32 steps:  s < 31 or 128*s + t < 4095
    """
    whole, walks = valid(guard), guard.axis + ".o" == loop.name
    if ctx.is_cpu or not walks or whole.is_const or not loop.extent.is_known:
        return whole
    step, last = ctx.loops.loops[loop.name], loop.extent.value - 1
    return minimum(step - last, guard.value - guard.extent).lt(0)


def whole_steps(ctx: Context) -> tuple[Scalar, Scalar]:
    """Two conditions that hold only for steps entirely behind a row's beginning, or before its end.

    i1 = 8*(128*s + t) + v - shift, shift < 8, of 4095:  0 < s, s < 3
    """
    edge, walked = ctx.loops.edge, [a for a in ctx.nest_loops if a is not ctx.lane]
    if edge is None or len(walked) != 1 or not walked[0].extent.is_known:
        return const(0), const(0)
    step = ctx.loops.loops[walked[0].name]
    index = edge.index.substitute({str(g.variable): g.value for g in ctx.loops.guards})
    width = dict(index.terms[0]).get(step, 0)
    rest = index - step * width
    if not (-width <= rest.lo and rest.hi < width):
        return const(0), const(0)
    return const(0).lt(step), step.lt(int(edge.extent.value) // width)


def either(a: Scalar, b: Scalar) -> Scalar:
    """The condition that one of two comparisons holds."""
    if const(0) in (a, b) or const(1) in (a, b):
        return a if b is const(0) or a is const(1) else b
    return minimum(a.parts[0], b.parts[0]).lt(0)


def whole_step(ctx: Context, edge: Edge) -> Scalar:
    """The condition that all lanes of a step are within the axis.

    (0 < s or 0 <= i1) and (s < 3 or i1 + 7 < 4095)
    """
    first, (behind, before) = edge.index - ctx.lane_symbol, whole_steps(ctx)
    begun, ended = const(-1).lt(first), (first + (ctx.lanes - 1)).lt(edge.extent)
    return conjunction([either(behind, begun), either(before, ended)])
