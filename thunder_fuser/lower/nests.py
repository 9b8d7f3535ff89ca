# SPDX-License-Identifier: Apache-2.0
"""Writes one pass over the reduced axes: loops, and at each step reductions, scans and stores.

for s: for v: T3 += T1_v[v];  stv<8>(T2, ..., T2_o)         Work(reductions=(T3,), results=(T2,))

If positions allow it, one vector store after the lanes stores a result, else each lane stores its
element. A result that crosses a tile goes to the tile's array; another phase writes it to memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.ir.domain import IterDomain, ParallelType
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.scalar import Scalar, conjunction, const, symbol
from thunder_fuser.lower import buffers, guards, values
from thunder_fuser.lower import kernel as nodes
from thunder_fuser.lower.accumulators import each_lane, identity, join_scan
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.guards import whole_step
from thunder_fuser.lower.scope import Scope
from thunder_fuser.lower.size_arguments import has_a_length
from thunder_fuser.lower.state import KernelState
from thunder_fuser.schedule.axes import MAX_BYTES
from thunder_fuser.schedule.loop_index import Edge, Guard


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a pass: the reductions that it accumulates, and the results that it stores."""

    reductions: Sequence[str] = ()
    results: Sequence[str] = ()


def put(state: KernelState, scope: Scope, work: Work) -> None:
    """Writes the guards and loops of one pass, with its work inside."""
    with state.inside():
        inner = scope
        for guard in guards.take_ready(state, scope):
            inner = guards.enter(state.ctx, inner, guard)
        _loops(state, inner, state.ctx.nest_loops, work)
        guards.close(inner, scope)


def _loops(state: KernelState, scope: Scope, loops: Sequence[IterDomain], work: Work) -> None:
    """The loops of a nest, outermost first; at the lanes, the work itself."""
    if not loops or loops[0] is state.ctx.lane:
        _lanes(state, scope, work)
        return
    axis, variable = loops[0], state.ctx.loops.loops[loops[0].name]
    inner, extent = scope.child(str(variable)), axis.extent
    guarded, clipped = inner, dict[str, Scalar]()
    with state.inside():
        for ready in guards.take_ready(state, inner):
            guard = replace(ready, value=ready.value.substitute(clipped))
            if _may_clip(state.ctx, axis, guard):
                extent = guards.clip(inner, guard, variable, extent)
                clipped[str(guard.variable)] = guard.value
            elif axis.parallel is ParallelType.UNROLL or state.ctx.part.scans:
                # Clamped, not skipped: without branches the loads of all steps overlap.
                guards.clamp(state, inner, guard)
            else:
                guarded = guards.enter(state.ctx, guarded, guard, axis)
        _loops(state, guarded, loops[1:], work)
        guards.close(guarded, inner)
    parallel = state.ctx.parallel_of(axis)
    scope.put(nodes.For(str(variable), extent, parallel, tuple(inner.statements)))


def _may_clip(ctx: Context, axis: IterDomain, guard: Guard) -> bool:
    """True if a loop may end where its guard fails. On a GPU the number of steps then differs from
    thread to thread, and they are not all unrolled."""
    growth = guard.growth(ctx.loops.loops[axis.name])
    if ctx.is_cpu:
        return growth == 1
    return growth > 0 and not ctx.part.scans and not has_a_length(ctx.scheduled, axis)


def _lanes(state: KernelState, scope: Scope, work: Work) -> None:
    """The work of one step: vector loads, a loop over the lanes, vector stores."""
    for expr in state.ctx.part.scans:
        _scan(state, scope, expr.outputs[0])
    edge = state.ctx.loops.edge
    if state.ctx.lane is None:
        _work(state, scope, scope, work)
    elif edge is None:
        inner, extent = _lane_scope(state, scope)
        after = _work(state, scope, inner, work)
        if state.ctx.scheduled.column_sums:  # what they read is loaded before the first loop waits
            values.put_all(state, buffers.unfilled(state, vector=True), scope)
        scope.statements += each_lane(state.ctx, inner.statements, extent), *after
    elif work.reductions or work.results:
        _edge_lanes(state, scope, edge, work)
    else:
        values.put_all(state, buffers.unfilled(state, vector=True), scope)


def _edge_lanes(state: KernelState, scope: Scope, edge: Edge, work: Work) -> None:
    """Writes the work twice: for steps that lie within a row, and for those at its ends.

    if (0 <= i1 && i1 + 7 < 4095) { for v: sum += x[v];  stv<8>(T1, ...); }
    else                          { for v: if (0 <= i1 + v && i1 + v < 4095) { ... } }
    """
    ctx, lane = state.ctx, str(state.ctx.lane_symbol)
    unfilled = buffers.unfilled(state, vector=False)
    inner = scope.child(lane)
    after = _work(state, scope, inner, work)
    whole = (each_lane(ctx, inner.statements), *after)
    for buffer in unfilled.values():
        buffer.filled_in = None
    inner = scope.child(lane)
    _work(state, inner, inner, work)  # no wide stores
    ends = each_lane(ctx, [nodes.If(edge.holds, tuple(inner.statements))])
    scope.put(nodes.If(whole_step(ctx, edge), whole, (ends,)))


def _lane_scope(state: KernelState, scope: Scope) -> tuple[Scope, Scalar]:
    """The scope of the lane loop and its extent, clipped if the last vector is partial."""
    assert state.ctx.lane is not None
    lane, extent = state.ctx.lane_symbol, state.ctx.lane.extent
    inner = scope.child(str(lane))
    with state.inside():
        for guard in guards.take_ready(state, inner):
            # Other guards are of reduced axes: nests are inside them, and rows need none.
            if guard.value.symbols & lane.symbols:
                assert state.ctx.is_cpu and guard.growth(lane) == 1
                extent = guards.clip(inner, guard, lane, extent)
    return inner, extent


def _scan(state: KernelState, scope: Scope, name: str) -> None:
    """Computes a scan's elements of one step. Behind it each lane can read its own.

    Where they are indices, clamped threads add nothing: they look up the last element's place.
    """
    ctx = state.ctx
    inner, extent = (scope, const(1)) if ctx.lane is None else _lane_scope(state, scope)
    value = values.get(state, ctx.demand.operands[name], inner)
    dtype, wide = ctx.dtype_of(name), ctx.accumulator_type(name)
    op, target = ctx.combines(name), ctx.scanned(name)
    if any(expr.row.kind is OpKind.INDEX for expr in ctx.part.exprs):
        value = _masked(ctx, name, value, state.scan_condition, inner)
    if ctx.scheduled.params.inner:
        cast = value if wide is dtype else nodes.Math("cast", (value,), (dtype,), wide)
        inner.put(nodes.Set(target, cast, wide))
    else:
        inner.put(nodes.Accumulate(target, op, value, dtype, wide))
    if inner is not scope:
        scope.put(each_lane(ctx, inner.statements, extent))
    if ctx.scheduled.params.inner:
        scope.put(join_scan(state.ctx, name, extent))


def _work(state: KernelState, outer: Scope, inner: Scope, work: Work) -> list[nodes.Statement]:
    """Accumulates and stores; returns what must follow the lane loop."""
    ctx, condition = state.ctx, state.row_condition
    for name in work.reductions:
        value = values.get(state, ctx.demand.operands[name], inner)
        op, dtype = ctx.combines(name), ctx.dtype_of(name)
        if name in ctx.carried:  # a row beyond the last adds nothing
            value = _masked(ctx, name, value, condition, inner)
        if ctx.is_stream(name):
            inner.put(nodes.Set(nodes.Lane(f"{name}_s_v", ctx.lane_symbol), value, dtype))
        else:
            wide = ctx.accumulator_type(name)
            inner.put(nodes.Accumulate(ctx.accumulator(name), op, value, dtype, wide))
    return _store(state, work.results, condition, outer, inner)


def _masked(
    ctx: Context, name: str, value: nodes.Operand, condition: Scalar, scope: Scope
) -> nodes.Operand:
    """The value where the condition holds, and else what the reduction or scan starts from."""
    if condition.is_const:
        return value
    masked, dtype = f"{name}_m", ctx.dtype_of(name)
    choose = nodes.Choose(condition, value, identity(ctx.combines(name), dtype), dtype)
    scope.put(nodes.Let(masked, dtype, choose))
    return masked


def put_rows(state: KernelState, scope: Scope, names: Iterable[str], condition: Scalar) -> None:
    """Stores results that have only kept axes; outside the loops of a nest."""
    if not state.ctx.lane_is_kept:
        _store(state, names, condition, scope, scope)
        return
    inner, extent = _lane_scope(state, scope)
    after = _store(state, names, condition, scope, inner)
    scope.statements += each_lane(state.ctx, inner.statements, extent), *after


def _store(
    state: KernelState, names: Iterable[str], condition: Scalar, outer: Scope, inner: Scope
) -> list[nodes.Statement]:
    """Stores results in `inner`; returns what must follow the lane loop, in `outer`."""
    ctx, after = state.ctx, list[nodes.Statement]()
    for name in names:
        dtype, tile, point = ctx.dtype_of(name), state.tiles.get(name), ctx.demand.results[name]
        value = values.get(state, point, inner)
        position, holds = tile.position if tile else None, condition
        if position is None:  # an index that is looked up is a variable of `outer`, or of the lane
            position, valid = _stored_at(state, point, inner)
            holds = conjunction([condition, valid])
        aligned = MAX_BYTES if tile else ctx.alignment(name)
        store = nodes.Store(tile.array if tile else name, position, value, dtype, 1, holds)
        if inner is outer or not ctx.is_vector(position, holds, dtype, aligned):
            inner.put(_into_tile(ctx, store) if tile else store)
            continue
        vector, lane, width = state.name(f"{name}_o", point), ctx.lane_symbol, ctx.width
        outer.put(nodes.Array(vector, dtype, 0, width))
        inner.put(nodes.Set(nodes.Lane(vector, None, lane), value, dtype))
        store = replace(store, position=position - lane, value=vector, width=width)
        after.append(_into_tile(ctx, store) if tile else store)
    return after


def _stored_at(state: KernelState, point: Point, scope: Scope) -> tuple[Scalar, Scalar]:
    """(The position of a stored element, the condition under which it is stored). A kernel of a CPU
    goes on where an index is outside its axis, and must not store there.

    T6[T2[0] * 64 + j]  ->  T2_x * 64 + j    on a CPU, if 0 <= T2_e < 512
    """
    (position,), _ = values.placed(state, scope, state.ctx.part.position(point))
    condition = const(1)
    if state.ctx.is_cpu:
        for element in state.ctx.part.position(point).elements:
            index = values.get(state, values.point_of(element), scope)
            raw = symbol(str(index), -(1 << 63), (1 << 63) - 1)
            inside = raw.lt(int(element.hi) + 1), (const(-1) - raw).lt(0)
            condition = conjunction([condition, *inside])
    return position, condition


def _into_tile(ctx: Context, store: nodes.Store) -> nodes.Statement:
    """The store to a tile, skipped where a clamped thread would write another thread's place.

    Outside the tensors a thread may write anything to its own place, because it is never read.
    """
    clamped = {str(guard.variable) for guard in ctx.loops.guards}
    put = replace(store, condition=nodes.TRUE)
    if store.condition.is_const or not clamped & put.position.symbols:
        return put
    return nodes.If(store.condition, (put,))
