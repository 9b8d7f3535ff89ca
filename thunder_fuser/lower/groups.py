# SPDX-License-Identifier: Apache-2.0
"""Loops over the rows of a block's group, and what is reduced over these rows, between them.

Shared<float> T5_r(0, 8);
for (row of the group) {
  nest over its columns: T4 = ...; T4 = reduce_x(T4);      T4 = sum(T3, columns)
  if (first thread) T5_r.put(row, T4);                     what T5 reduces: here T4 itself
}
sync_threads();                                            in a cluster: put_rows, and a gate
T5 = reduce_shared<Sum, 8, 8, 8>(T5_r, 0.0f);              T5 = sum(T4, rows)
for (row of the group) { nest: store T3 - T5 }
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from thunder_fuser.analysis.demand import Point
from thunder_fuser.ir.domain import IterDomain, ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.scalar import Scalar, conjunction, const
from thunder_fuser.lower.identity import identity
from thunder_fuser.lower.kernel import (
    Array,
    Call,
    For,
    If,
    Lane,
    Let,
    Operand,
    Set,
    SharedStore,
)
from thunder_fuser.lower.nests import Nests, Work
from thunder_fuser.lower.scope import Scope
from thunder_fuser.schedule.row_shape import row_of


@dataclass
class Turn:
    """One loop over rows: the reductions along each, the full results, what is stored of each row,
    and the reductions over rows that follow it."""

    along: list[str] = field(default_factory=list)
    full: list[str] = field(default_factory=list)
    of_rows: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)


class Groups:
    """Writes the loops over rows of one kernel; `nests` writes those over columns."""

    def __init__(self, nests: Nests) -> None:
        self.nests, self.ctx, self.values = nests, nests.ctx, nests.values
        self.sums, self.guards = nests.sums, nests.guards
        self._after: dict[str, int] = {}  # the loop that has a reduction along rows, or is before
        self._gates: dict[str, int] = {}  # of each reduction over the rows of a cluster
        self._ready = False  # true once the other blocks' gates have been waited for
        self._over = {n for n in self.ctx.demand.operands if not self._is_along(n)}
        self.turns = self._turns()

    def _is_along(self, name: str) -> bool:
        reduced = self.ctx.part.domain_map.reduced(self.ctx.part.tensors[name])
        return set(reduced) == set(self.ctx.scheduled.reduced)

    # ---- what is done when

    def _turns(self) -> list[Turn]:
        """Every reduction and result in the first loop over rows that has what it needs."""
        demand, turns = self.ctx.demand, list[Turn]()
        for expr in self.ctx.part.reductions:
            name = expr.outputs[0]
            at = self._first(demand.operands[name], is_row=name in self._over)
            self._after[name] = at
            turn = self._turn(turns, at)
            (turn.over if name in self._over else turn.along).append(name)
        for name, point in demand.results.items():
            if self.ctx.is_full(point):
                self._turn(turns, self._first(point, is_row=False)).full.append(name)
            elif self._is_of_row(name):
                self._turn(turns, self._first(point, is_row=True)).of_rows.append(name)
        return turns

    @staticmethod
    def _turn(turns: list[Turn], at: int) -> Turn:
        turns += (Turn() for _ in range(len(turns), at + 1))
        return turns[at]

    def _first(self, root: Point, *, is_row: bool) -> int:
        """The first loop that has what the root needs; a row has its own reductions in theirs."""
        return max(
            (
                self._after[name] + (name in self._over or not is_row)
                for name in self._reductions(root)
            ),
            default=0,
        )

    def _reductions(self, root: Point) -> list[str]:
        operands = self.ctx.demand.operands
        return [p.name for p in self.ctx.demand.reached([root]) if p.name in operands]

    def _is_of_row(self, name: str) -> bool:
        return not set(self.ctx.scheduled.rows).isdisjoint(self.ctx.part.axes(name))

    def _kept(self) -> list[str]:
        """The reductions along rows that a later loop over them reads."""
        found: dict[str, None] = {}
        demand = self.ctx.demand
        for at, turn in enumerate(self.turns):
            roots = [demand.operands[name] for name in (*turn.along, *turn.over)]
            roots += [demand.results[name] for name in (*turn.full, *turn.of_rows)]
            names = [n for root in roots for n in self._reductions(root) if n not in self._over]
            found.update(dict.fromkeys(n for n in names if self._after[n] < at))
        return list(found)

    # ---- statements

    def put(self, scope: Scope) -> None:
        """All of the group."""
        self.values.buffers.declare(scope)
        kept = self._kept() if self.ctx.group_loops else []
        for name in kept:
            scope.put(Array(f"{name}_k", self.ctx.part.tensors[name].dtype, self._row_count()))
        over = [name for turn in self.turns for name in turn.over]
        for name in over:
            self._declare(name, scope)
        if self.ctx.cluster > 1:
            self._open_gates(over, scope)
        for number, turn in enumerate(self.turns):
            self.values.nest = number
            self._rows(scope, turn, [name for name in turn.along if name in kept])
            if turn.over and not self.ctx.is_cpu and not self._gates:
                scope.put(Call("sync_threads"))
            for name in turn.over:
                scope.put(self._reduce(name))
        self.values.nest = len(self.turns)
        self._results(scope)

    def _row_count(self) -> int:
        """The rows that a thread walks."""
        return prod(int(axis.extent.value) for axis in self.ctx.group_loops)

    def _declare(self, name: str, scope: Scope) -> None:
        """What is reduced over rows, an element each."""
        dtype, count = self.ctx.part.tensors[name].dtype, self._size()
        if self.ctx.is_cpu:
            scope.put(Array(f"{name}_r", dtype, count))
            return
        if self.ctx.cluster > 1:  # blocks send each other words
            dtype = DataType.Int if dtype.bytes == 8 else DataType.Int32
        scope.declare(self.values.shared.array(f"{name}_r", dtype, count))

    def _open_gates(self, over: list[str], scope: Scope) -> None:
        """A gate for each array of a cluster's blocks: it opens when all rows' values are there."""
        scope.declare(self.values.shared.array("gates", DataType.Int, len(over)))
        self._gates = {name: number for number, name in enumerate(over)}
        for name, number in self._gates.items():
            places = (f"{name}_r", "gates", const(number))
            scope.put(Call("open_rows", places, (self._size(),)))
        scope.put(Call("gates_made"))

    def _size(self) -> int:
        extents = self.ctx.part.extents
        return prod(int(extents[axis].value) for axis in self.ctx.scheduled.rows)

    def _rows(self, scope: Scope, turn: Turn, kept: list[str]) -> None:
        """One loop over the rows of the group."""
        loops = {str(self.ctx.loops.loops[axis.name]): axis for axis in self.ctx.group_loops}
        open_before, whole = list(self.guards.open), self.guards.row_condition
        # With one row a thread there is no loop: what is made stays in order with the rest.
        inner = self.guards.guard(scope.child(*loops)) if loops else scope
        for name in turn.along:
            self.sums.declare(inner, name)
        if turn.along or turn.full:
            self.nests.put(inner, Work(turn.along, turn.full))
        for name in turn.along:
            self.sums.reduce_block(inner, name)
        for name in kept:
            self._keep(name, inner)
        self._of_rows(inner, turn)
        if not loops:
            return
        body = tuple(inner.statements)
        for variable, axis in reversed(loops.items()):
            body = (For(variable, axis.extent, self.ctx.parallel_of(axis), body),)
        scope.statements += body
        self.guards.open, self.guards.row_condition = open_before, whole
        self.values.keep_rows(kept)

    def _keep(self, name: str, scope: Scope) -> None:
        """A row's value for the loops to come."""
        (point,) = self.ctx.demand.points(name)
        value = self.values.get(point, scope)
        place = Lane(f"{name}_k", self.ctx.group_step)
        scope.put(Set(place, value, self.ctx.part.tensors[name].dtype))

    def _of_rows(self, scope: Scope, turn: Turn) -> None:
        """What one thread of a row stores of it, and puts where all rows are reduced."""
        reduced = [a for a in self.ctx.root_loops if a.is_reduction and a.parallel.is_thread]
        condition = self._where(reduced, self.guards.row_condition)
        for name in turn.over:
            self._put(name, condition, scope)
        self.nests.put_rows(scope, turn.of_rows, condition)

    def _put(self, name: str, condition: Scalar, scope: Scope) -> None:
        """A row's value, where those of all rows of the group are reduced."""
        value, dtype = self._operand(name, scope), self.ctx.part.tensors[name].dtype
        array, at = f"{name}_r", self.ctx.loops.index["*".join(self.ctx.scheduled.rows)]
        put: Set | SharedStore | Call = SharedStore(array, at, value, 1, dtype)
        if self.ctx.is_cpu:
            put = Set(Lane(array, at), value, dtype)
        if self._gates:
            self._wait(scope)
            condition, gate = self.guards.row_condition, self._gates[name]
            places = (array, at, value, "gates", const(gate))
            put = Call("put_rows", places, (self.ctx.cluster,), dtype)
        scope.put(put if condition.is_const else If(condition, (put,)))

    def _operand(self, name: str, scope: Scope) -> Operand:
        return self.values.get(self.ctx.demand.operands[name], scope)

    def _wait(self, scope: Scope) -> None:
        """Until the other blocks' gates are made: after the loads of the first row."""
        if not self._ready:
            first = self.ctx.group_step.lt(1)
            ready = Call("gates_ready")
            scope.put(ready if first.is_const else If(first, (ready,)))
        self._ready = True

    def _where(self, axes: list[IterDomain], condition: Scalar) -> Scalar:
        """The condition, for the first of the threads along these axes."""
        loops = self.ctx.loops.loops
        return conjunction([condition, *(loops[axis.name].lt(1) for axis in axes)])

    def _reduce(self, name: str) -> Let:
        """A reduction over rows, as a row of as many elements is reduced by itself.

        On a GPU every warp reduces all rows, so all threads get the same bits. Where the blocks of
        a cluster have sent the elements, they are there past a gate.
        """
        ctx, count, array = self.ctx, self._size(), f"{name}_r"
        wide, op = ctx.accumulator_type(name), ctx.part.producer[name].op
        start, target = identity(op, wide), ctx.accumulator(name)
        assert isinstance(target, str)
        if ctx.is_cpu:
            call = Call("reduce_rows", (array, const(count), start), (op,), wide)
        else:
            row = row_of(count, ctx.scheduled.target)
            gate = ("gates", const(self._gates[name])) if self._gates else ()
            sizes = (op, count, row.width, row.threads[0])
            call = Call("reduce_rows", (array, start, *gate), sizes, wide)
        return Let(target, wide, call)

    def _results(self, scope: Scope) -> None:
        """Stores what has one value a group."""
        names = [
            name
            for name, point in self.ctx.demand.results.items()
            if not self.ctx.is_full(point) and not self._is_of_row(name)
        ]
        of_group = (ParallelType.TIDX, ParallelType.TIDY, ParallelType.CLUSTER)
        threads = [axis for axis in self.ctx.root_loops if axis.parallel in of_group]
        condition = self._where(threads, conjunction([]))
        self.nests.put_rows(scope, names, condition)
