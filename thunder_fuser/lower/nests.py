# SPDX-License-Identifier: Apache-2.0
"""Writes one pass over the reduced axes: loops, and at each step reductions, scans and stores.

for s: for v: T3 += T1_v[v];  stv<8>(T2, ..., T2_o)         Work(reductions=(T3,), results=(T2,))

If positions allow it, one vector store after the lanes stores a result, else each lane stores its
element. A result that crosses a tile goes to the tile's array; another phase writes it to memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from thunder_fuser.analysis.part import offset
from thunder_fuser.ir.domain import IterDomain, ParallelType
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.lower import kernel as nodes
from thunder_fuser.lower.accumulators import Accumulators, each_lane, identity
from thunder_fuser.lower.buffers import Window
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.guards import OpenGuards, whole_step
from thunder_fuser.lower.scope import Scope
from thunder_fuser.lower.values import Values
from thunder_fuser.schedule.axes import MAX_BYTES
from thunder_fuser.schedule.loop_index import Edge


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a pass: the reductions that it accumulates, and the results that it stores."""

    reductions: Sequence[str] = ()
    results: Sequence[str] = ()


class Nests:
    """Writes the nests of one kernel; `values` makes and finds the values in them.

    tiles: the results that go to shared memory, from which another phase reads them.
    """

    def __init__(self, ctx: Context, tiles: Mapping[str, Window]) -> None:
        self.ctx, self.tiles = ctx, tiles
        self.guards, self.values = OpenGuards(ctx), Values(ctx)
        self.sums = Accumulators(ctx, self.values.shared)

    # ---- loops

    def put(self, scope: Scope, work: Work) -> None:
        """Writes the guards and loops of one pass, with its work inside."""
        with self.guards.inside():
            inner = scope
            for guard in self.guards.ready(scope):
                inner = self.guards.enter(inner, guard)
            self._loops(inner, self.ctx.nest_loops, work)
            self.guards.close(inner, scope)

    def _loops(self, scope: Scope, loops: Sequence[IterDomain], work: Work) -> None:
        """The loops of a nest, outermost first; at the lanes, the work itself."""
        if not loops or loops[0] is self.ctx.lane:
            self._lanes(scope, work)
            return
        axis, variable = loops[0], self.ctx.loops.loops[loops[0].name]
        inner, extent = scope.child(str(variable)), axis.extent
        guarded = inner
        with self.guards.inside():
            for guard in self.guards.ready(inner):
                if self.ctx.is_cpu and guard.only_shortens(variable):
                    extent = self.guards.clip(inner, guard, variable, extent)
                elif axis.parallel is ParallelType.UNROLL or self.ctx.part.scans:
                    # Clamped, not skipped: without branches the loads of all steps overlap.
                    self.guards.clamp(inner, guard)
                else:
                    guarded = self.guards.enter(guarded, guard, axis)
            self._loops(guarded, loops[1:], work)
            self.guards.close(guarded, inner)
        parallel = self.ctx.parallel_of(axis)
        scope.put(nodes.For(str(variable), extent, parallel, tuple(inner.statements)))

    def _lanes(self, scope: Scope, work: Work) -> None:
        """The work of one step: vector loads, a loop over the lanes, vector stores."""
        for expr in self.ctx.part.scans:
            self._scan(scope, expr.outputs[0])
        edge = self.ctx.loops.edge
        if self.ctx.lane is None:
            self._work(scope, scope, work)
        elif edge is None:
            inner, extent = self._lane_scope(scope)
            after = self._work(scope, inner, work)
            scope.statements += each_lane(self.ctx, inner.statements, extent), *after
        elif work.reductions or work.results:
            self._edge_lanes(scope, edge, work)
        else:
            self.values.fill_vectors(scope)

    def _edge_lanes(self, scope: Scope, edge: Edge, work: Work) -> None:
        """Writes the work twice: for steps that lie within a row, and for those at its ends.

        if (0 <= i1 && i1 + 7 < 4095) { for v: sum += x[v];  stv<8>(T1, ...); }
        else                          { for v: if (0 <= i1 + v && i1 + v < 4095) { ... } }
        """
        ctx, lane = self.ctx, str(self.ctx.lane_symbol)
        unfilled = self.values.buffers.unfilled(vector=False)
        inner = scope.child(lane)
        after = self._work(scope, inner, work)
        whole = (each_lane(ctx, inner.statements), *after)
        for buffer in unfilled.values():
            buffer.filled_in = None
        inner = scope.child(lane)
        self._work(inner, inner, work)  # no wide stores
        ends = each_lane(ctx, [nodes.If(edge.holds, tuple(inner.statements))])
        scope.put(nodes.If(whole_step(ctx, edge), whole, (ends,)))

    def _lane_scope(self, scope: Scope) -> tuple[Scope, Scalar]:
        """The scope of the lane loop and its extent, clipped if the last vector is partial."""
        assert self.ctx.lane is not None
        lane, extent = self.ctx.lane_symbol, self.ctx.lane.extent
        inner = scope.child(str(lane))
        with self.guards.inside():
            for guard in self.guards.ready(inner):
                # Other guards are of reduced axes: nests are inside them, and rows need none.
                if guard.value.symbols & lane.symbols:
                    assert self.ctx.is_cpu and guard.only_shortens(lane)
                    extent = self.guards.clip(inner, guard, lane, extent)
        return inner, extent

    # ---- work

    def _scan(self, scope: Scope, name: str) -> None:
        """Computes a scan's elements of one step. Behind it each lane can read its own.

        Where they are indices, clamped threads add nothing: they look up the last element's place.
        """
        ctx = self.ctx
        inner, extent = (scope, const(1)) if ctx.lane is None else self._lane_scope(scope)
        value = self.values.get(ctx.demand.operands[name], inner)
        dtype, wide = ctx.dtype_of(name), ctx.accumulator_type(name)
        op, target = ctx.combines(name), ctx.scanned(name)
        if any(expr.row.kind is OpKind.INDEX for expr in ctx.part.exprs):
            value = self._masked(name, value, self.guards.scan_condition, inner)
        if ctx.scheduled.params.inner:
            cast = value if wide is dtype else nodes.Math("cast", (value,), (dtype,), wide)
            inner.put(nodes.Set(target, cast, wide))
        else:
            inner.put(nodes.Accumulate(target, op, value, dtype, wide))
        if inner is not scope:
            scope.put(each_lane(ctx, inner.statements, extent))
        if ctx.scheduled.params.inner:
            scope.put(self.sums.join_scan(name, extent))

    def _work(self, outer: Scope, inner: Scope, work: Work) -> list[nodes.Statement]:
        """Accumulates and stores; returns what must follow the lane loop."""
        ctx, condition = self.ctx, self.guards.row_condition
        for name in work.reductions:
            value = self.values.get(ctx.demand.operands[name], inner)
            op, dtype = ctx.combines(name), ctx.dtype_of(name)
            if name in ctx.carried:  # a row beyond the last adds nothing
                value = self._masked(name, value, condition, inner)
            if ctx.is_stream(name):
                inner.put(nodes.Set(nodes.Lane(f"{name}_s_v", ctx.lane_symbol), value, dtype))
            else:
                wide = ctx.accumulator_type(name)
                inner.put(nodes.Accumulate(ctx.accumulator(name), op, value, dtype, wide))
        return self._store_all(work.results, condition, outer, inner)

    def _masked(
        self, name: str, value: nodes.Operand, condition: Scalar, scope: Scope
    ) -> nodes.Operand:
        """The value where the condition holds, and else what the reduction or scan starts from."""
        if condition.is_const:
            return value
        masked, dtype = f"{name}_m", self.ctx.dtype_of(name)
        choose = nodes.Choose(condition, value, identity(self.ctx.combines(name), dtype), dtype)
        scope.put(nodes.Let(masked, dtype, choose))
        return masked

    def put_rows(self, scope: Scope, names: Iterable[str], condition: Scalar) -> None:
        """Stores results that have only kept axes; outside the loops of a nest."""
        if not self.ctx.lane_is_kept:
            self._store_all(names, condition, scope, scope)
            return
        inner, extent = self._lane_scope(scope)
        after = self._store_all(names, condition, scope, inner)
        scope.statements += each_lane(self.ctx, inner.statements, extent), *after

    # ---- results

    def _store_all(
        self, names: Iterable[str], condition: Scalar, outer: Scope, inner: Scope
    ) -> list[nodes.Statement]:
        stores = [self._store(name, condition, outer, inner) for name in names]
        return [statement for after in stores for statement in after]

    def _store(
        self, name: str, condition: Scalar, outer: Scope, inner: Scope
    ) -> list[nodes.Statement]:
        """Stores a result in `inner`; returns what must follow the lane loop, in `outer`."""
        ctx, dtype, tile = self.ctx, self.ctx.dtype_of(name), self.tiles.get(name)
        point = ctx.demand.results[name]
        value = self.values.get(point, inner)
        position = tile.position if tile else offset(point.index, ctx.part.strides[name])
        aligned = MAX_BYTES if tile else ctx.alignment(name)
        store = nodes.Store(tile.array if tile else name, position, value, dtype, 1, condition)
        if inner is outer or not ctx.is_vector(position, condition, dtype, aligned):
            inner.put(self._into_tile(store) if tile else store)
            return []
        vector, lane, width = self.values.name(f"{name}_o", point), ctx.lane_symbol, ctx.width
        outer.put(nodes.Array(vector, dtype, 0, width))
        inner.put(nodes.Set(nodes.Lane(vector, None, lane), value, dtype))
        store = replace(store, position=position - lane, value=vector, width=width)
        return [self._into_tile(store) if tile else store]

    def _into_tile(self, store: nodes.Store) -> nodes.Statement:
        """The store to a tile, skipped where a clamped thread would write another thread's place.

        Outside the tensors a thread may write anything to its own place, because it is never read.
        """
        clamped = {str(guard.variable) for guard in self.ctx.loops.guards}
        put = replace(store, condition=nodes.TRUE)
        if store.condition.is_const or not clamped & put.position.symbols:
            return put
        return nodes.If(store.condition, (put,))
