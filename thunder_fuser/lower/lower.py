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
from thunder_fuser.ir.scalar import Scalar, conjunction, minimum
from thunder_fuser.ir.size_symbols import Sized
from thunder_fuser.lower.accumulators import Accumulators
from thunder_fuser.lower.cluster import Cluster
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.groups import Groups
from thunder_fuser.lower.guards import clips
from thunder_fuser.lower.kernel import (
    Block,
    Call,
    Coordinate,
    For,
    Kernel,
    Parameter,
    Statement,
)
from thunder_fuser.lower.nests import Nests, Work
from thunder_fuser.lower.open_guards import OpenGuards
from thunder_fuser.lower.passes import run_passes
from thunder_fuser.lower.row_loads import row_loads
from thunder_fuser.lower.scope import ROOT, ROW, Scope
from thunder_fuser.lower.size_arguments import with_free_sizes
from thunder_fuser.lower.stores import Stores
from thunder_fuser.lower.tiles import Window, phases
from thunder_fuser.lower.values import Values
from thunder_fuser.lower.verify import verify_kernel
from thunder_fuser.schedule.scheduled import ScheduledFusion, Tile

INT32_MAX = 2**31 - 1


def lower(scheduled: ScheduledFusion, name: str) -> Kernel:
    """The kernel of a schedule."""
    return verify_kernel(run_passes(unfinished(scheduled, name), scheduled.target.is_cpu))


def unfinished(scheduled: ScheduledFusion, name: str) -> Kernel:
    """The kernel before its passes."""
    return _Lowerer(Context(with_free_sizes(scheduled))).kernel(name)


class _Lowerer:
    """Builds one kernel; `values` makes and finds values, `nests` loops over them.

    tiles: the results that go to shared memory, where another phase finds them.
    """

    def __init__(self, ctx: Context, tiles: Mapping[str, Window] | None = None) -> None:
        self.ctx = ctx
        self.part, self.demand = ctx.part, ctx.demand
        self.loops, self.is_cpu = ctx.loops, ctx.is_cpu
        self.guards = OpenGuards(ctx)
        self.root = Scope(frozenset([ROOT]))
        self.values = Values(ctx)
        self.cluster = Cluster(ctx, self.values.shared)
        self.sums = Accumulators(ctx, self.cluster)
        stores = Stores(ctx, self.values, tiles or {})
        self.nests = Nests(stores, self.sums, self.guards)

    # ---- the kernel

    def kernel(self, name: str) -> Kernel:
        tile = self.ctx.scheduled.tile
        body = self._root_body() if tile is None else self._phases(tile)
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

    def _phases(self, tile: Tile) -> list[Statement]:
        """Reads tiles, computes, writes tiles: each a body of its own, with barriers between."""
        names = [*(p.name for p in tile.loads), *tile.stores]
        body: list[Statement] = [
            self.values.shared.array(f"{n}_t", self.part.tensors[n].dtype, tile.elements)
            for n in names
        ]
        for number, one in enumerate(phases(self.ctx.scheduled, tile)):
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
        for axis in () if self.is_cpu else blocks:
            self.guards.define(self.root, self.loops.loops[axis.name], self._coordinate(axis))
        inner = self.guards.guard(self.root)
        if self.ctx.cluster > 1 and not self.ctx.scheduled.rows:
            self.cluster.open(inner)
        if self.ctx.walks_rows:
            self._walk_rows(inner)
        elif self.ctx.scheduled.rows:
            Groups(self.nests).put(inner)
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
        self.nests.put(scope, Work(results=self.ctx.carried))

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
        plain, looked_up = row_loads(self.ctx) if number == 0 else ([], [])
        self.values.put_all(plain, scope)
        if self.loops.edge is not None and number == 0 and self.values.buffers.keeps_vectors:
            # All steps' loads before the first one's work: behind its branches they would wait.
            self.nests.put(scope, Work())
        self.nests.put(scope, Work(reductions, results))
        self.values.put_all(looked_up, scope)
        for name in own:
            self.sums.reduce_block(scope, name)

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
        self.nests.put_rows(scope, names, condition)

    def _first_thread(self) -> Scalar:
        """True for the thread at 0 along the reduced axes."""
        reduced = [a for a in self.ctx.root_loops if a.is_reduction and a.parallel.is_thread]
        return conjunction([self.loops.loops[a.name].lt(1) for a in reduced])
