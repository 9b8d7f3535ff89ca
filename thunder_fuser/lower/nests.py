# SPDX-License-Identifier: Apache-2.0
"""One pass over the reduced axes: its loops, and at each step what it reduces, scans and stores.

for s: for v: T3 += T1_v[v];  stv<8>(T2, ..., T2_o)         Work(reductions=(T3,), results=(T2,))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from thunder_fuser.ir.domain import IterDomain, ParallelType
from thunder_fuser.ir.scalar import Scalar, const, minimum
from thunder_fuser.lower.accumulators import Accumulators
from thunder_fuser.lower.guards import clips, whole_step
from thunder_fuser.lower.identity import identity
from thunder_fuser.lower.kernel import (
    Accumulate,
    Choose,
    For,
    If,
    Lane,
    Let,
    Math,
    Set,
    Statement,
)
from thunder_fuser.lower.open_guards import OpenGuards
from thunder_fuser.lower.scope import Scope
from thunder_fuser.lower.stores import Stores
from thunder_fuser.schedule.loop_index import Edge


@dataclass(frozen=True, slots=True)
class Work:
    """What a pass does: the reductions that it adds to, and the results that it stores."""

    reductions: Sequence[str] = ()
    results: Sequence[str] = ()


class Nests:
    """Writes the nests of one kernel."""

    def __init__(self, stores: Stores, sums: Accumulators, guards: OpenGuards) -> None:
        self.ctx, self.values, self.stores, self.sums = stores.ctx, stores.values, stores, sums
        self.guards = guards

    def put(self, scope: Scope, work: Work) -> None:
        """The guards and loops of one pass, with its work inside."""
        saved = list(self.guards.open)
        inner = scope
        for guard in self.guards.ready(scope):
            inner = self.guards.enter(inner, guard)
        self._loops(inner, self.ctx.nest_loops, work)
        self.guards.close(inner, scope)
        self.guards.open = saved

    def _loops(self, scope: Scope, loops: Sequence[IterDomain], work: Work) -> None:
        """The loops of a nest, outermost first; at the lanes, the work itself."""
        if not loops or loops[0] is self.ctx.lane:
            self._lanes(scope, work)
            return
        axis = loops[0]
        variable = self.ctx.loops.loops[axis.name]
        inner = scope.child(str(variable))
        saved = list(self.guards.open)
        guarded, extent, whole = inner, axis.extent, self.guards.row_condition
        for guard in self.guards.ready(inner):
            if axis.parallel is ParallelType.UNROLL:
                # Clamped, not skipped: without branches all steps' loads are under way at once.
                self.guards.clamp(inner, guard)
            elif self.ctx.is_cpu and clips(guard, variable):
                extent = minimum(axis.extent, guard.extent - (guard.value - variable))
                self.guards.define(inner, guard.variable, guard.value)
            elif self.ctx.part.scans:
                self.guards.clamp(inner, guard)
            else:
                guarded = self.guards.enter(guarded, guard, axis)
        self._loops(guarded, loops[1:], work)
        self.guards.close(guarded, inner)
        self.guards.open, self.guards.row_condition = saved, whole
        parallel = self.ctx.parallel_of(axis)
        scope.put(For(str(variable), extent, parallel, tuple(inner.statements)))

    def _lanes(self, scope: Scope, work: Work) -> None:
        """Work at one step: vector loads before, and vector stores after, a loop over the lanes."""
        for expr in self.ctx.part.scans:
            self._scan(scope, expr.outputs[0])
        if self.ctx.lane is None:
            self._work(scope, scope, work)
            return
        if self.ctx.loops.edge is not None:
            if work.reductions or work.results:
                self._edge_lanes(scope, self.ctx.loops.edge, work)
            else:
                self.values.fill_vectors(scope)
            return
        inner, extent = self._lane_scope(scope)
        after = self._work(scope, inner, work)
        scope.put(self._each_lane(inner.statements, extent))
        scope.statements += after

    def _edge_lanes(self, scope: Scope, edge: Edge, work: Work) -> None:
        """The same work twice: for steps that lie within a row, and for those at its ends.

        if (0 <= i1 && i1 + 7 < 4095) { for v: sum += x[v];  stv<8>(T1, ...); }
        else                          { for v: if (0 <= i1 + v && i1 + v < 4095) { ... } }
        """
        lane, extent = self.ctx.lane_symbol, const(self.ctx.lanes)
        unfilled = self.values.buffers.unfilled()
        inner = scope.child(str(lane))
        after = self._work(scope, inner, work)
        whole = (self._each_lane(inner.statements, extent), *after)
        self.values.buffers.refill(unfilled)
        inner = scope.child(str(lane))
        self._work(inner, inner, work)  # no wide stores
        ends = (self._each_lane([If(edge.holds, tuple(inner.statements))], extent),)
        inside = whole_step(edge, self.ctx.whole_steps, lane, self.ctx.lanes)
        scope.put(If(inside, whole, ends))

    def _scan(self, scope: Scope, name: str) -> None:
        """One scan's elements of one step; afterwards each lane can read its own."""
        ctx = self.ctx
        inner, extent = (scope, const(1)) if ctx.lane is None else self._lane_scope(scope)
        value = self.values.get(self.ctx.demand.operands[name], inner)
        dtype, wide = ctx.part.tensors[name].dtype, ctx.accumulator_type(name)
        op, target = ctx.combines(name), ctx.scanned(name)
        if ctx.scheduled.params.inner:
            cast = value if wide is dtype else Math("cast", (value,), (dtype,), wide)
            inner.put(Set(target, cast, wide))
        else:
            inner.put(Accumulate(target, op, value, dtype, wide))
        if inner is not scope:
            scope.put(self._each_lane(inner.statements, extent))
        if ctx.scheduled.params.inner:
            scope.put(self.sums.join_scan(name, extent))

    def _each_lane(self, body: Iterable[Statement], extent: Scalar) -> For:
        return For(str(self.ctx.lane_symbol), extent, ParallelType.VECTORIZE, tuple(body))

    def _lane_scope(self, scope: Scope) -> tuple[Scope, Scalar]:
        """The block of the lane loop and its extent, clipped where the last one is partial."""
        assert self.ctx.lane is not None
        inner, extent = scope.child(str(self.ctx.lane_symbol)), self.ctx.lane.extent
        saved = list(self.guards.open)
        for guard in self.guards.ready(inner):
            # A guard of threads alone is of reduced axes: nests are inside it, rows need none.
            if not guard.value.symbols & self.ctx.lane_symbol.symbols:
                continue
            assert self.ctx.is_cpu and clips(guard, self.ctx.lane_symbol)
            extent = minimum(extent, guard.extent - (guard.value - self.ctx.lane_symbol))
            self.guards.define(inner, guard.variable, guard.value)
        self.guards.open = saved
        return inner, extent

    def _work(self, outer: Scope, inner: Scope, work: Work) -> list[Statement]:
        """Accumulates and stores; returns what must follow the lane loop."""
        for name in work.reductions:
            value = self.values.get(self.ctx.demand.operands[name], inner)
            op, dtype = self.ctx.part.producer[name].op, self.ctx.part.tensors[name].dtype
            wide = self.ctx.accumulator_type(name)
            if name in self.ctx.carried and not self.guards.row_condition.is_const:
                masked = f"{name}_m"  # a row beyond the last adds nothing
                choose = Choose(self.guards.row_condition, value, identity(op, dtype), dtype)
                inner.put(Let(masked, dtype, choose))
                value = masked
            if self.ctx.is_stream(name):
                inner.put(Set(Lane(f"{name}_s_v", self.ctx.lane_symbol), value, dtype))
            else:
                inner.put(Accumulate(self.ctx.accumulator(name), op, value, dtype, wide))
        return self._store(work.results, self.guards.row_condition, outer, inner)

    def _store(
        self, names: Iterable[str], condition: Scalar, outer: Scope, inner: Scope
    ) -> list[Statement]:
        found = [self.stores.store(name, condition, outer, inner) for name in names]
        return [statement for after in found for statement in after]

    def put_rows(self, scope: Scope, names: Iterable[str], condition: Scalar) -> None:
        """Stores results that have only kept axes; outside the loops of a nest."""
        if not self.ctx.lane_is_kept:
            self._store(names, condition, scope, scope)
            return
        inner, extent = self._lane_scope(scope)
        after = self._store(names, condition, scope, inner)
        scope.put(self._each_lane(inner.statements, extent))
        scope.statements += after
