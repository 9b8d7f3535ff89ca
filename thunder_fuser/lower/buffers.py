# SPDX-License-Identifier: Apache-2.0
"""Persistent buffers: arrays in registers or shared memory, which one nest fills and others read.

nest 0:  T0_p[s] = ldv<8>(T0, ...)         an input, in whole vectors
nest 1:  ... T0_p[s].v[v] ...              replaces a load
"""

from __future__ import annotations

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.analysis.part import offset
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import Array, Lane, Let, Load, Set, Store
from thunder_fuser.lower.scope import Computed, Needs, Scope
from thunder_fuser.lower.state import BEFORE, BufferArray, KernelState, Window


def declare(state: KernelState, scope: Scope) -> None:
    """Declares an array for each buffer of the schedule."""
    ctx = state.ctx
    for buffer in ctx.scheduled.persistent:
        point, shared = ctx.at_loops(buffer.point), buffer.memory == "shared"
        name, dtype = state.name(f"{point.name}_p", point), ctx.dtype_of(point.name)
        is_input = point.name not in ctx.part.producer
        position = offset(point.index, ctx.part.strides[point.name]) if is_input else const(0)
        vector = is_input and ctx.loads_vector(point, position)
        state.buffers[point] = BufferArray(name, shared, vector, _own_position(ctx))
        if shared:
            x, y = ctx.threads
            scope.put(state.shared.array(name, dtype, x * y * ctx.slots))
        elif vector:
            scope.put(Array(name, dtype, ctx.steps, ctx.width))
        else:
            scope.put(Array(name, dtype, ctx.slots))


def _own_position(ctx: Context) -> Scalar:
    """Each thread has its own place: ((y * steps + step) * threads.x + x) * lanes + lane."""
    by = {a.parallel: ctx.loops.loops[a.name] for a in ctx.root_loops}
    x, y = by.get(ParallelType.TIDX, const(0)), by.get(ParallelType.TIDY, const(0))
    return ((y * ctx.steps + ctx.step) * ctx.threads[0] + x) * ctx.lanes + ctx.lane_symbol


def keep(state: KernelState, point: Point, window: Window) -> None:
    """Notes that an earlier phase has put a value into a shared array."""
    vector = state.ctx.is_vector(window.position, const(1), state.ctx.dtype_of(point.name))
    state.buffers[point] = BufferArray(window.array, True, vector, window.position, BEFORE)


def has(state: KernelState, point: Point) -> bool:
    """True if a nest before this one has put the point into a buffer."""
    filled_in = state.buffers[point].filled_in if point in state.buffers else None
    return filled_in is not None and filled_in < state.nest


def unfilled(state: KernelState, *, vector: bool) -> dict[Point, BufferArray]:
    """The buffers that are not filled yet: those of whole vectors, or the others.

    The others are filled again by another branch that does the work of the same step.
    """
    buffers = state.buffers.items()
    return {p: b for p, b in buffers if b.filled_in is None and b.vector == vector}


def fill(state: KernelState, point: Point, value: Computed, scope: Scope, width: int = 1) -> None:
    """Stores an element or a vector in its buffer, if it has one that is not filled yet."""
    ctx, (operand, needs), buffer = state.ctx, value, state.buffers.get(point)
    if buffer is None or buffer.filled_in is not None:
        return
    buffer.filled_in, dtype = state.nest, ctx.dtype_of(point.name)
    at = buffer.position if buffer.shared else ctx.slot
    at = at - ctx.lane_symbol if width > 1 else at
    put = Store(buffer.array, at, operand, dtype, width)
    kept = put if buffer.shared else Set(Lane(buffer.array, at), operand, dtype)
    scope.put(kept, needs | at.symbols)


def load_into(
    state: KernelState, point: Point, load: Load, needs: Needs, scope: Scope
) -> Computed | None:
    """Loads a vector directly into its buffer, if it has one in registers."""
    ctx, buffer = state.ctx, state.buffers.get(point)
    if buffer is None or buffer.shared or buffer.filled_in not in (None, state.nest):
        return None
    needs |= ctx.step.symbols | {ctx.home}
    if buffer.filled_in is None:
        scope.put(Set(Lane(buffer.array, ctx.step), load, load.dtype), needs)
        buffer.filled_in = state.nest
    return Lane(buffer.array, ctx.step, ctx.lane_symbol), needs | ctx.lane_symbol.symbols


def read(state: KernelState, point: Point, scope: Scope) -> Computed:
    """Reads the element of a buffer that an earlier nest has filled."""
    ctx, buffer, lane = state.ctx, state.buffers[point], state.ctx.lane_symbol
    if not buffer.shared:
        needs = ctx.step.symbols | lane.symbols | {ctx.home} | point.symbols
        if buffer.vector:
            return Lane(buffer.array, ctx.step, lane), needs
        return Lane(buffer.array, ctx.slot), needs
    aside = lane if buffer.vector else const(0)
    position, width = buffer.position - aside, ctx.width if buffer.vector else 1
    needs = position.symbols | {ctx.home} | (point.symbols - aside.symbols)
    name, dtype = state.name(f"{point.name}_s", point), ctx.dtype_of(point.name)
    scope.define(Let(name, dtype, Load(buffer.array, position, dtype, width), width), needs)
    return (Lane(name, None, lane), needs | lane.symbols) if buffer.vector else (name, needs)
