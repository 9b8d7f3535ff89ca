# SPDX-License-Identifier: Apache-2.0
"""ScheduledFusion -> Kernel.

A kernel is: block and thread loops (the root), then one nest of loops for each pass over the
reduced axes, then what is left for each kept position:

    root:    i0 = blockIdx.x; t = threadIdx.x
    nest 0:  for s: load x; max = max(max, x)           reduce over the block
    nest 1:  for s: sum += exp(x - max)                 reduce over the block
    nest 2:  for s: store exp(x - max) / sum
    rows:    store what has only kept axes

A scan is a loop of its own over the lanes of a step, before what reads it:

    for s:  for v: a[v] = exp(x)      scan a over the block, from the carry on
            for v: store a[v]

Values are pulled: a store asks for its operand at an index, that one for its own operands, back to
loads. Each is put into the outermost scope that has the loop variables of its index.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from thunder_fuser.analysis.demand import Point
from thunder_fuser.ir.domain import IterDomain, ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.scalar import Scalar, conjunction, const, minimum
from thunder_fuser.ir.sized import Sized
from thunder_fuser.lower.accumulators import Accumulators
from thunder_fuser.lower.cluster import Cluster
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.groups import Groups
from thunder_fuser.lower.guards import clips, whole_step
from thunder_fuser.lower.identity import identity
from thunder_fuser.lower.kernel import (
    Accumulate,
    Block,
    Call,
    Choose,
    Coordinate,
    For,
    If,
    Kernel,
    Lane,
    Let,
    Math,
    Parameter,
    Set,
    Statement,
)
from thunder_fuser.lower.open_guards import OpenGuards
from thunder_fuser.lower.row_loads import row_loads
from thunder_fuser.lower.scope import ROOT, ROW, Scope
from thunder_fuser.lower.sizes import with_free_sizes
from thunder_fuser.lower.stores import Stores
from thunder_fuser.lower.tiles import Window, passes
from thunder_fuser.lower.values import Values
from thunder_fuser.lower.verify import verify_kernel
from thunder_fuser.schedule.loop_index import Edge
from thunder_fuser.schedule.scheduled import ScheduledFusion, Tile

INT32_MAX = 2**31 - 1


def lower(scheduled: ScheduledFusion, name: str) -> Kernel:
    """The kernel of a schedule."""
    return verify_kernel(_Lowerer(Context(with_free_sizes(scheduled))).kernel(name))


class _Lowerer:
    """Builds one kernel; `values` makes and finds values, `stores` writes results.

    tiles: the results that go to shared memory, where another pass finds them.
    """

    def __init__(self, ctx: Context, tiles: Mapping[str, Window] | None = None) -> None:
        self.ctx = ctx
        self.part, self.demand = ctx.part, ctx.demand
        self.loops, self.is_cpu = ctx.loops, ctx.is_cpu
        self.guards = OpenGuards(ctx)
        self.root = Scope(frozenset([ROOT]))
        self.values = Values(ctx)
        self.stores = Stores(ctx, self.values, tiles or {})
        self.cluster = Cluster(ctx, self.values)
        self.sums = Accumulators(ctx, self.values, self.root, self.cluster)

    # ---- the kernel

    def kernel(self, name: str) -> Kernel:
        tile = self.ctx.scheduled.tile
        body = self._root_body() if tile is None else self._passes(tile)
        # Also of tensors that never reach memory: a reshape takes positions in them apart.
        names = (*self.part.inputs, *self.part.producer)
        sizes = [prod(map(int, self.part.tensors[n].sizes)) for n in names]
        reach = [self.ctx.reach(n) for n in self.part.global_tensors]
        work = prod(int(axis.extent.value) for axis in self.ctx.scheduled.axes)
        # Past the last element, too: there a guard compares.
        beyond = [int(guard.value.hi) for guard in self.loops.guards]
        return Kernel(
            name,
            self._parameters(),
            tuple(body),
            self._grid(),
            self.ctx.threads,
            self.values.shared.bytes,
            max([*sizes, *reach, *beyond, work, self.values.largest_index]) > INT32_MAX,
            work,
            # On a CPU what is vectorised is a size.
            self.ctx.scheduled.params.scheduler if self.is_cpu else str(self.ctx.scheduled.params),
            self.ctx.cluster,
            self.ctx.scheduled.params.blocks,
            tuple(self.values.places.checks),
        )

    def _grid(self) -> tuple[int, int]:
        blocks = {a.parallel: int(a.extent.value) for a in self.ctx.root_loops}
        y = blocks.get(ParallelType.CLUSTER, blocks.get(ParallelType.BIDY, 1))
        return blocks.get(ParallelType.BIDX, 1), y

    def _parameters(self) -> tuple[Parameter, ...]:
        shared = {name for pair in self.part.overwrites for name in pair}
        inputs = [self.part.tensors[name] for name in self.part.inputs]
        made = [
            Parameter(v.name, v.dtype.compute, "scalar")
            if v.by_value
            else Parameter(v.name, v.dtype, "input", v.name in shared)
            for v in inputs
        ]
        outputs = [
            Parameter(n, self.part.tensors[n].dtype, "output", n in shared)
            for n in self.part.outputs
        ]
        return (*made, *outputs)

    def _passes(self, tile: Tile) -> list[Statement]:
        """Reads tiles, computes, writes tiles: each a body of its own, with barriers between."""
        names = [*(p.name for p in tile.loads), *tile.stores]
        body: list[Statement] = [
            self.values.shared.array(f"{n}_t", self.part.tensors[n].dtype, tile.elements)
            for n in names
        ]
        for number, one in enumerate(passes(self.ctx.scheduled, tile)):
            lowerer = _Lowerer(one.ctx, one.put)
            for point, window in one.kept.items():
                lowerer.values.buffers.keep(point, window)
            body += [Call("sync_threads")] * (number > 0)
            body.append(Block(one.what, tuple(lowerer._root_body())))
            largest = lowerer.values.largest_index
            self.values.largest_index = max(self.values.largest_index, largest)
        return body

    def _root_body(self) -> list[Statement]:
        """Coordinates, guards, and the nests inside them. The CPU walks blocks in a loop."""
        blocks = [a for a in self.ctx.root_loops if not self.loops.loops[a.name].is_const]
        outer = Scope(frozenset())
        if self.is_cpu:
            self.root = outer.child(ROOT, *(str(self.loops.loops[a.name]) for a in blocks))
            self.sums.root = self.root
        for axis in () if self.is_cpu else blocks:
            self.guards.define(self.root, self.loops.loops[axis.name], self._coordinate(axis))
        inner = self.guards.guard(self.root)
        if self.ctx.cluster > 1 and not self.ctx.scheduled.rows:
            self.cluster.open(inner)
        if self.ctx.walks_rows:
            self._walk_rows(inner)
        elif self.ctx.scheduled.rows:
            self._group().put(inner)
        else:
            self._nests(inner)
        self.guards.close(inner, self.root)
        body = tuple(self.root.statements)
        if self.is_cpu:
            for block in reversed(blocks):
                variable = str(self.loops.loops[block.name])
                body = (For(variable, block.extent, block.parallel, body),)
        return [*outer.statements, *body]

    def _coordinate(self, axis: IterDomain) -> Coordinate:
        """With its bound where guards are: all but the last step of a loop then need no test."""
        bounded = axis.parallel is not ParallelType.BIDX and self.loops.guards
        known = bounded and type(axis.extent.value) is not Sized
        return Coordinate(axis.parallel, axis.extent.value if known else None)

    def _group(self) -> Groups:
        def nest(scope: Scope, *work: list[str]) -> None:
            self._nest_loops(scope, *work)

        return Groups(self.stores, self.sums, self.guards, nest)

    # ---- rows that one block or cluster walks

    def _walk_rows(self, scope: Scope) -> None:
        """The nests for every row of the block's or cluster's run, then the sums over them."""
        for name in self.ctx.carried:
            self.sums.declare_carried(scope, name)
        loops = {str(self.loops.loops[axis.name]): axis for axis in self.ctx.row_loops}
        inner = scope.child(ROW, *loops)
        extents = {variable: self._rows_of_block(inner, axis) for variable, axis in loops.items()}
        whole = self.guards.row_condition
        guarded = self.guards.guard(inner)
        self._nests(guarded)
        self.guards.close(guarded, inner)
        body = tuple(inner.statements)
        for variable, axis in reversed(loops.items()):
            body = (For(variable, extents[variable], axis.parallel, body),)
        scope.statements += body
        self.guards.row_condition = whole
        if self.ctx.carried:
            self._store_sums(scope)

    def _rows_of_block(self, scope: Scope, axis: IterDomain) -> Scalar:
        """How many rows a block walks. All its threads stop at the last one, if they have one row.

        Threads that have several rows at once go on in step, and mask those behind the last.
        """
        extent, variable = axis.extent, self.loops.loops[axis.name]
        if self.ctx.threads[1] > 1:
            return extent
        for guard in self.guards.ready(scope):
            if not clips(guard, variable):
                self.guards.open.append(guard)
                continue
            extent = minimum(extent, guard.extent - (guard.value - variable))
            self.guards.define(scope, guard.variable, guard.value)
        return extent

    def _store_sums(self, scope: Scope) -> None:
        """Joins the sums of threads that walked other rows; the first of them stores."""
        rows = [a for a in self.ctx.root_loops if a.parallel.is_thread and not a.is_reduction]
        for name in self.ctx.carried if rows and self.ctx.threads[1] > 1 else ():
            scope.put(self.sums.join_threads(name, "y", self.ctx.steps * self.ctx.lanes))
        self.guards.row_condition = conjunction([self.loops.loops[a.name].lt(1) for a in rows])
        self._nest_loops(scope, [], list(self.ctx.carried), [])

    # ---- nests

    def _nests(self, scope: Scope) -> None:
        self.values.buffers.declare(scope)
        count = self._nest_count()
        for number in range(count):
            self._nest(scope, number)
        self._rows(scope, count)

    def _nest_count(self) -> int:
        full = [p for p in self.demand.roots if self._in_nest(p) and not self._is_carried(p)]
        return 1 + max((self.demand.level[p] for p in full), default=-1)

    def _in_nest(self, point: Point) -> bool:
        return point in self.demand.operands.values() or self.ctx.is_full(point)

    def _is_carried(self, point: Point) -> bool:
        return point.name in self.ctx.carried and point.name in self.demand.results

    def _nest(self, scope: Scope, number: int) -> None:
        """One pass: accumulates the reductions and stores the full results of this level."""
        scans = [expr.outputs[0] for expr in self.part.scans]
        reductions = [
            n
            for n, p in self.demand.operands.items()
            if n not in scans and self.demand.level[p] == number
        ]
        results = [
            n
            for n, p in self.demand.results.items()
            if self.ctx.is_full(p) and self.demand.level[p] == number and not self._is_carried(p)
        ]
        self.values.nest = number
        own = [name for name in reductions if name not in self.ctx.carried]
        for name in own:
            self.sums.declare(scope, name)
        for name in scans:
            self.sums.declare_scan(scope, name)
        accumulators = [] if self.ctx.lane_is_kept else own
        plain, looked_up = row_loads(self.ctx) if number == 0 else ([], [])
        self.values.put_all(plain, scope)
        if self.loops.edge is not None and number == 0 and self.values.buffers.keeps_vectors:
            # All steps' loads before the first one's work: behind its branches they would wait.
            self._nest_loops(scope, [], [], [])
        self._nest_loops(scope, reductions, results, accumulators)
        self.values.put_all(looked_up, scope)
        for name in own:
            self.sums.reduce_block(scope, name)

    def _nest_loops(
        self,
        scope: Scope,
        reductions: list[str],
        results: list[str],
        accumulators: list[str],
    ) -> None:
        """The guards and loops of one pass, with its work inside."""
        saved = list(self.guards.open)
        inner = scope
        for guard in self.guards.ready(scope):
            inner = self.guards.enter(inner, guard)
        self._loops(inner, list(self.ctx.nest_loops), reductions, results, accumulators)
        self.guards.close(inner, scope)
        self.guards.open = saved

    def _loops(
        self,
        scope: Scope,
        loops: list[IterDomain],
        reductions: list[str],
        results: list[str],
        accumulators: list[str],
    ) -> None:
        """The loops of a nest, outermost first; at the lanes, the work itself."""
        if not loops or loops[0] is self.ctx.lane:
            self._lanes(scope, reductions, results, accumulators)
            return
        axis = loops[0]
        variable = self.loops.loops[axis.name]
        inner = scope.child(str(variable))
        saved = list(self.guards.open)
        guarded, extent, whole = inner, axis.extent, self.guards.row_condition
        for guard in self.guards.ready(inner):
            if axis.parallel is ParallelType.UNROLL:
                # Clamped, not skipped: without branches all steps' loads are under way at once.
                self.guards.clamp(inner, guard)
            elif self.is_cpu and clips(guard, variable):
                extent = minimum(axis.extent, guard.extent - (guard.value - variable))
                self.guards.define(inner, guard.variable, guard.value)
            elif self.part.scans:
                self.guards.clamp(inner, guard)
            else:
                guarded = self.guards.enter(guarded, guard, axis)
        self._loops(guarded, loops[1:], reductions, results, accumulators)
        self.guards.close(guarded, inner)
        self.guards.open, self.guards.row_condition = saved, whole
        # Arrays are registers only if every index into them is known when the loop is unrolled.
        arrays = self.ctx.scheduled.params.memory == "registers" and not self.is_cpu
        parallel = ParallelType.UNROLL if arrays else axis.parallel
        scope.put(For(str(variable), extent, parallel, tuple(inner.statements)))

    def _lanes(
        self,
        scope: Scope,
        reductions: list[str],
        results: list[str],
        accumulators: list[str],
    ) -> None:
        """Work at one step: vector loads before, and vector stores after, a loop over the lanes."""
        for expr in self.part.scans:
            self._scan(scope, expr.outputs[0])
        if self.ctx.lane is None:
            self._work(scope, scope, reductions, results)
            return
        if self.loops.edge is not None:
            if reductions or results:
                self._edge_lanes(scope, self.loops.edge, reductions, results)
            else:
                self.values.fill_vectors(scope)
            return
        inner, extent = self._lane_scope(scope)
        after = self._work(scope, inner, reductions, results)
        scope.put(
            For(
                str(self.ctx.lane_symbol),
                extent,
                ParallelType.VECTORIZE,
                tuple(inner.statements),
                *self.sums.collected(accumulators),
            )
        )
        for statement in after:
            scope.put(statement)

    def _edge_lanes(
        self, scope: Scope, edge: Edge, reductions: list[str], results: list[str]
    ) -> None:
        """The same work twice: for steps that lie within a row, and for those at its ends.

        if (0 <= i1 && i1 + 7 < 4095) { for v: sum += x[v];  stv<8>(T1, ...); }
        else                          { for v: if (0 <= i1 + v && i1 + v < 4095) { ... } }
        """
        lane, extent = self.ctx.lane_symbol, const(self.ctx.lanes)
        unfilled = self.values.buffers.unfilled()
        inner = scope.child(str(lane))
        after = self._work(scope, inner, reductions, results)
        body = tuple(inner.statements)
        whole = (For(str(lane), extent, ParallelType.VECTORIZE, body), *after)
        self.values.buffers.refill(unfilled)
        inner = scope.child(str(lane))
        self._work(inner, inner, reductions, results)  # no wide stores
        held = (If(edge.holds, tuple(inner.statements)),)
        ends = (For(str(lane), extent, ParallelType.VECTORIZE, held),)
        inside = whole_step(edge, self.ctx.whole_steps, lane, self.ctx.lanes)
        scope.put(If(inside, whole, ends))

    def _scan(self, scope: Scope, name: str) -> None:
        """One scan's elements of one step; afterwards each lane can read its own."""
        ctx = self.ctx
        inner, extent = (scope, const(1)) if ctx.lane is None else self._lane_scope(scope)
        value = self.values.get(self.demand.operands[name], inner)
        dtype, wide = ctx.part.tensors[name].dtype, ctx.accumulator_type(name)
        op, target = ctx.combines(name), ctx.scanned(name)
        if ctx.scheduled.params.inner:
            cast = value if wide is dtype else Math("cast", (value,), (dtype,), wide)
            inner.put(Set(target, cast, wide))
        else:
            inner.put(Accumulate(target, op, value, dtype, wide))
        if inner is not scope:
            statements = tuple(inner.statements)
            scope.put(For(str(ctx.lane_symbol), extent, ParallelType.VECTORIZE, statements))
        if ctx.scheduled.params.inner:
            assert isinstance(target, Lane)
            scope.put(self._joined_scan(target.array, extent, f"{name}_c", op, wide))

    def _joined_scan(
        self, values: str, count: Scalar, carry: str, op: str, dtype: DataType
    ) -> Call:
        """values = all elements up to each joined by op, from `carry` on, which ends as the last.

        On CUDA the threads of a row, along x, have the whole array each; on the CPU `count`.
        """
        if self.is_cpu:
            return Call("scan_row", (values, count, carry), (op,))
        scratch = self.values.shared.scratch(dtype, "x", self.root)
        return Call("scan_x", (values, carry, scratch), (op, *self.ctx.threads))

    def _lane_scope(self, scope: Scope) -> tuple[Scope, Scalar]:
        """The block of the lane loop and its extent, clipped where the last one is partial."""
        assert self.ctx.lane is not None
        inner, extent = scope.child(str(self.ctx.lane_symbol)), self.ctx.lane.extent
        saved = list(self.guards.open)
        for guard in self.guards.ready(inner):
            # A guard of threads alone is of reduced axes: nests are inside it, rows need none.
            if not guard.value.symbols & self.ctx.lane_symbol.symbols:
                continue
            assert self.is_cpu and clips(guard, self.ctx.lane_symbol)
            extent = minimum(extent, guard.extent - (guard.value - self.ctx.lane_symbol))
            self.guards.define(inner, guard.variable, guard.value)
        self.guards.open = saved
        return inner, extent

    def _work(
        self, outer: Scope, inner: Scope, reductions: list[str], results: list[str]
    ) -> list[Statement]:
        """Accumulates and stores; returns what must follow the lane loop."""
        for name in reductions:
            value = self.values.get(self.demand.operands[name], inner)
            op, dtype = self.part.producer[name].op, self.part.tensors[name].dtype
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
        after: list[Statement] = []
        for name in results:
            after += self.stores.store(name, self.guards.row_condition, outer, inner)
        return after

    # ---- rows

    def _rows(self, scope: Scope, count: int) -> None:
        """Stores results that have only kept axes, by one thread of those that share them."""
        carried = self.ctx.carried
        names = [
            n for n, p in self.demand.results.items() if not self._in_nest(p) and n not in carried
        ]
        if not names:
            return
        self.values.nest = count
        condition = conjunction([self.guards.row_condition, self._first_thread()])
        if not self.ctx.lane_is_kept:
            for name in names:
                for statement in self.stores.store(name, condition, scope, scope):
                    scope.put(statement)
            return
        assert self.ctx.lane is not None
        inner, extent = self._lane_scope(scope)
        after: list[Statement] = []
        for name in names:
            after += self.stores.store(name, condition, scope, inner)
        scope.put(
            For(str(self.ctx.lane_symbol), extent, ParallelType.VECTORIZE, tuple(inner.statements))
        )
        for statement in after:
            scope.put(statement)

    def _first_thread(self) -> Scalar:
        """True for the thread at 0 along the reduced axes."""
        reduced = [a for a in self.ctx.root_loops if a.is_reduction and a.parallel.is_thread]
        return conjunction([self.loops.loops[a.name].lt(1) for a in reduced])
