# SPDX-License-Identifier: Apache-2.0
"""Loops over the rows of a block's group, and reductions over these rows between the loops.

Shared<float> T5_r(0, 8);
for (row of the group) {
  nest over its columns: T4 = ...; T4 = reduce_x(T4);      T4 = sum(T3, columns)
  if (first thread) T5_r.put(row, T4);                     the operand of T5, here T4 itself
}
sync_threads();                                            in a cluster: put_rows, and a gate
T5 = reduce_rows<Sum, 8, 8, 8>(T5_r, 0.0f);                T5 = sum(T4, rows)
for (row of the group) { nest: store T3 - T5 }
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.scalar import Scalar, conjunction, const
from thunder_fuser.lower.accumulators import Gates, identity, word
from thunder_fuser.lower.kernel import Array, Call, If, Lane, Let, Set, Statement, Store
from thunder_fuser.lower.nests import Nests, Work
from thunder_fuser.lower.scope import Scope, loops_around
from thunder_fuser.schedule.row_shape import row_of


@dataclass
class RowLoop:
    """One loop over rows. along: the reductions along each row. full: the results with an element
    for each column. of_rows: the results with one for each row. over: the reductions over rows that
    follow the loop."""

    along: list[str] = field(default_factory=list)
    full: list[str] = field(default_factory=list)
    of_rows: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)


class RowGroups:
    """Writes the loops over rows of one kernel; `nests` writes those over columns."""

    def __init__(self, nests: Nests) -> None:
        self.nests, self.ctx, self.values = nests, nests.ctx, nests.values
        self.sums, self.guards = nests.sums, nests.guards
        # {reduction: the loop that computes it, or after which it is computed if it is over rows}
        self._after: dict[str, int] = {}
        # For the reductions over rows that the blocks of a cluster share.
        self._gates = Gates(self.values.shared) if self.ctx.cluster > 1 else None
        part, scheduled = self.ctx.part, self.ctx.scheduled
        along, of = set(scheduled.reduced), part.domain_map.reduced
        self._over = {n for n in self.ctx.demand.operands if set(of(part.tensors[n])) != along}
        self._size = prod(int(part.extents[axis].value) for axis in scheduled.rows)
        self.loops = self._loops()

    # ---- what is done when

    def _loops(self) -> list[RowLoop]:
        """Puts every reduction and result into the first loop whose operands are ready."""
        demand, loops = self.ctx.demand, list[RowLoop]()
        for expr in self.ctx.part.reductions:
            name = expr.outputs[0]
            at = self._first(demand.operands[name], is_row=name in self._over)
            self._after[name] = at
            loop = self._loop(loops, at)
            (loop.over if name in self._over else loop.along).append(name)
        for name, point in demand.results.items():
            if self.ctx.is_full(point):
                self._loop(loops, self._first(point, is_row=False)).full.append(name)
            elif self._is_of_row(name):
                self._loop(loops, self._first(point, is_row=True)).of_rows.append(name)
        return loops

    @staticmethod
    def _loop(loops: list[RowLoop], at: int) -> RowLoop:
        loops += (RowLoop() for _ in range(len(loops), at + 1))
        return loops[at]

    def _first(self, root: Point, *, is_row: bool) -> int:
        """The first loop in which the root's operands are ready. The end of a row (is_row) can read
        reductions along it in their own loop; other work reads them in the next one."""
        names = self._reductions(root)
        return max((self._after[n] + (n in self._over or not is_row) for n in names), default=0)

    def _reductions(self, root: Point) -> list[str]:
        operands = self.ctx.demand.operands
        return [p.name for p in self.ctx.demand.reached([root]) if p.name in operands]

    def _is_of_row(self, name: str) -> bool:
        return not set(self.ctx.scheduled.rows).isdisjoint(self.ctx.part.axes(name))

    def _kept(self) -> list[str]:
        """The reductions along rows that a later loop reads."""
        kept: dict[str, None] = {}
        demand = self.ctx.demand
        for at, loop in enumerate(self.loops):
            roots = [demand.operands[name] for name in (*loop.along, *loop.over)]
            roots += [demand.results[name] for name in (*loop.full, *loop.of_rows)]
            names = [n for root in roots for n in self._reductions(root) if n not in self._over]
            kept.update(dict.fromkeys(n for n in names if self._after[n] < at))
        return list(kept)

    # ---- statements

    def put(self, scope: Scope) -> None:
        """Writes the loops of the group."""
        ctx = self.ctx
        self.values.buffers.declare(scope)
        kept = self._kept() if ctx.group_loops else []
        count = prod(int(axis.extent.value) for axis in ctx.group_loops)  # rows of a thread
        for name in kept:
            scope.put(Array(f"{name}_k", ctx.dtype_of(name), count))
        over = [name for loop in self.loops for name in loop.over]
        for name in over:
            self._declare(name, scope)
        if self._gates is not None:
            call = Call("open_rows", template=(self._size,))
            self._gates.open(scope, [f"{name}_r" for name in over], call)
        for number, loop in enumerate(self.loops):
            self.values.buffers.nest = number
            self._rows(scope, loop, [name for name in loop.along if name in kept])
            if loop.over and not ctx.is_cpu and self._gates is None:
                scope.put(Call("sync_threads"))
            for name in loop.over:
                scope.put(self._reduce(name))
        self.values.buffers.nest = len(self.loops)
        self._results(scope)

    def _declare(self, name: str, scope: Scope) -> None:
        """Declares the array of a reduction over rows, with an element for each row."""
        dtype, count = self.ctx.dtype_of(name), self._size
        if self.ctx.is_cpu:
            scope.put(Array(f"{name}_r", dtype, count))
            return
        sent = dtype if self._gates is None else word(dtype)
        scope.declare(self.values.shared.array(f"{name}_r", sent, count))

    def _rows(self, scope: Scope, loop: RowLoop, kept: list[str]) -> None:
        """Writes one loop over the rows of the group."""
        ctx = self.ctx
        loops = [(ctx.loops.loops[a.name], a.extent, ctx.parallel_of(a)) for a in ctx.group_loops]
        if not loops:  # each thread has one row, so there is no loop
            self._row(scope, loop, kept)
            return
        with self.guards.inside():
            inner = self.guards.guard(scope.child(*(str(variable) for variable, *_ in loops)))
            self._row(inner, loop, kept)
            scope.statements += loops_around(inner.statements, loops)
        self.values.rows_kept.update(kept)

    def _row(self, scope: Scope, loop: RowLoop, kept: list[str]) -> None:
        """Writes the work on one row: its reductions, its results, and (by one thread) its operands
        of the reductions over rows. kept: the reductions that later loops read."""
        for name in loop.along:
            self.sums.declare(scope, name)
        if loop.along or loop.full:
            self.nests.put(scope, Work(loop.along, loop.full))
        for name in loop.along:
            self.sums.reduce_block(scope, name)
        for name in kept:
            (point,) = self.ctx.demand.points(name)
            value = self.values.get(point, scope)
            scope.put(Set(Lane(f"{name}_k", self.ctx.group_step), value, self.ctx.dtype_of(name)))
        condition = conjunction([self.guards.row_condition, self.ctx.first_thread()])
        for name in loop.over:
            self._put(name, condition, scope)
        self.nests.put_rows(scope, loop.of_rows, condition)

    def _put(self, name: str, condition: Scalar, scope: Scope) -> None:
        """Stores a row's operand of a reduction over rows in the reduction's array."""
        ctx, dtype = self.ctx, self.ctx.dtype_of(name)
        value = self.values.get(ctx.demand.operands[name], scope)
        array, at = f"{name}_r", ctx.loops.index["*".join(ctx.scheduled.rows)]
        put: Statement = Store(array, at, value, dtype)
        if ctx.is_cpu:
            put = Set(Lane(array, at), value, dtype)
        if self._gates is not None:
            self._gates.wait(scope, ctx.group_step.lt(1))  # after the loads of the first row
            condition = self.guards.row_condition
            put = Call(
                "put_rows", (array, at, value, *self._gates.of(array)), (ctx.cluster,), dtype
            )
        scope.put(put if condition.is_const else If(condition, (put,)))

    def _reduce(self, name: str) -> Let:
        """A reduction over rows. Its order of additions is that of a row with as many elements.

        On a GPU every warp reduces all rows, so all threads get the same bits. In a cluster it
        first waits at the gate for the elements that other blocks send.
        """
        ctx, count, array = self.ctx, self._size, f"{name}_r"
        wide, op, target = ctx.accumulator_type(name), ctx.combines(name), ctx.accumulator(name)
        start = identity(op, wide)
        assert isinstance(target, str)
        if ctx.is_cpu:
            return Let(target, wide, Call("reduce_rows", (array, const(count), start), (op,), wide))
        row = row_of(count, ctx.scheduled.target)
        gate = () if self._gates is None else self._gates.of(array)
        sizes = (op, count, row.width, row.threads[0])
        return Let(target, wide, Call("reduce_rows", (array, start, *gate), sizes, wide))

    def _results(self, scope: Scope) -> None:
        """Stores the results with one value for each group."""
        names = [
            name
            for name, point in self.ctx.demand.results.items()
            if not self.ctx.is_full(point) and not self._is_of_row(name)
        ]
        of_group = (ParallelType.TIDX, ParallelType.TIDY, ParallelType.CLUSTER)
        threads = [axis for axis in self.ctx.root_loops if axis.parallel in of_group]
        self.nests.put_rows(scope, names, self.ctx.first_of(threads))
