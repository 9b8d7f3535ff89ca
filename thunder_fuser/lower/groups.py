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

Sums over rows that keep the columns are carried from row to row, an element for each column of a
thread. Behind all rows the threads that had different rows are combined:

for (row of the group) { nest: T7_e[column] += T4 * T6 }   T7 = sum(T4 * T6, rows)
reduce_y<Sum, 8, 64, 8>(T7_e); nest: store T7
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.scalar import Scalar, conjunction, const
from thunder_fuser.lower import accumulators, buffers, guards, nests, values
from thunder_fuser.lower.accumulators import gates_of, identity, make_gates, wait_for_gates, word
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import Array, Call, If, Lane, Let, Set, Statement, Store
from thunder_fuser.lower.nests import Work
from thunder_fuser.lower.scope import Scope, loops_around
from thunder_fuser.lower.state import KernelState
from thunder_fuser.schedule.row_shape import row_of


@dataclass(frozen=True, slots=True)
class RowLoop:
    """One loop over rows. along: the reductions along each row. down: the sums over rows that keep
    columns. full: the results with an element for each column. of_rows: the results with one for
    each row. over: the reductions over rows that follow the loop."""

    along: list[str]
    down: list[str]
    full: list[str]
    of_rows: list[str]
    over: list[str]


def row_loops(ctx: Context) -> tuple[list[RowLoop], list[str]]:
    """Puts every reduction and result into the first loop whose operands are ready. Returns these
    loops, and the reductions along rows that later loops read.
    """
    demand, loops = ctx.demand, list[RowLoop]()
    along, reduced = set(ctx.scheduled.reduced), ctx.part.domain_map.reduced
    rows = {n for n in demand.operands if set(reduced(ctx.part.tensors[n])) != along}
    over = rows.difference(ctx.carried)
    after: dict[str, int] = {}  # {reduction: the loop that computes it, or that it follows}

    def first(root: Point, *, is_row: bool) -> int:
        """The first loop in which the root's operands are ready. The end of a row (is_row) can read
        reductions along it in their own loop; other work reads them in the next one."""
        names = _reductions(ctx, root)
        return max((after[n] + (n in over or not is_row) for n in names), default=0)

    def loop(at: int) -> RowLoop:
        loops.extend(RowLoop([], [], [], [], []) for _ in range(len(loops), at + 1))
        return loops[at]

    for name in (expr.outputs[0] for expr in ctx.part.reductions):
        after[name] = first(demand.operands[name], is_row=name in over)
        here = loop(after[name])
        (here.over if name in over else here.down if name in rows else here.along).append(name)
    for name, point in demand.results.items():
        if _has_columns(ctx, name):
            continue
        if ctx.is_full(point):
            loop(first(point, is_row=False)).full.append(name)
        elif ctx.is_of_row(name):
            loop(first(point, is_row=True)).of_rows.append(name)
    kept: dict[str, None] = {}
    for at, done in enumerate(loops if ctx.group_loops else ()):
        roots = [demand.operands[name] for name in (*done.along, *done.down, *done.over)]
        roots += [demand.results[name] for name in (*done.full, *done.of_rows)]
        names = [n for root in roots for n in _reductions(ctx, root) if n not in rows]
        kept.update(dict.fromkeys(n for n in names if after[n] < at))
    return loops, list(kept)


def _reductions(ctx: Context, root: Point) -> list[str]:
    operands = ctx.demand.operands
    return [point.name for point in ctx.demand.reached([root]) if point.name in operands]


def _has_columns(ctx: Context, name: str) -> bool:
    """True for a result of sums over rows that keep the columns."""
    return ctx.is_full(ctx.demand.results[name]) and not ctx.is_of_row(name)


def _size(ctx: Context) -> int:
    """The number of a group's rows."""
    return prod(int(ctx.part.extents[axis].value) for axis in ctx.scheduled.rows)


def put(state: KernelState, scope: Scope) -> None:
    """Writes the loops of the group."""
    ctx, (loops, kept) = state.ctx, row_loops(state.ctx)
    buffers.declare(state, scope)
    count = prod(int(axis.extent.value) for axis in ctx.group_loops)  # rows of a thread
    for name in kept:
        scope.put(Array(f"{name}_k", ctx.dtype_of(name), count))
    over = [name for loop in loops for name in loop.over]
    for name in over:
        _declare(state, name, scope)
    if ctx.cluster > 1:
        call = Call("open_rows", template=(_size(ctx),))
        make_gates(state, scope, [f"{name}_r" for name in over], call)
    for name in ctx.carried:
        accumulators.declare(ctx, scope, name)
    for number, loop in enumerate(loops):
        state.nest = number
        _rows(state, scope, loop, [name for name in loop.along if name in kept])
        if loop.over and not ctx.is_cpu and ctx.cluster == 1:
            scope.put(Call("sync_threads"))
        for name in loop.over:
            scope.put(_reduce(state, name))
    state.nest = len(loops)
    _results(state, scope)


def _declare(state: KernelState, name: str, scope: Scope) -> None:
    """Declares the array of a reduction over rows, with an element for each row."""
    ctx, dtype, count = state.ctx, state.ctx.dtype_of(name), _size(state.ctx)
    if ctx.is_cpu:
        scope.put(Array(f"{name}_r", dtype, count))
        return
    sent = dtype if ctx.cluster == 1 else word(dtype)
    scope.declare(state.shared.array(f"{name}_r", sent, count))


def _rows(state: KernelState, scope: Scope, loop: RowLoop, kept: list[str]) -> None:
    """Writes one loop over the rows of the group."""
    ctx = state.ctx
    loops = [(ctx.loops.loops[a.name], a.extent, ctx.parallel_of(a)) for a in ctx.group_loops]
    if not loops:  # each thread has one row, so there is no loop
        _row(state, scope, loop, kept)
        return
    with state.inside():
        inner = guards.put_ready(state, scope.child(*(str(variable) for variable, *_ in loops)))
        _row(state, inner, loop, kept)
        scope.statements += loops_around(inner.statements, loops)
    state.rows_kept.update(kept)


def _row(state: KernelState, scope: Scope, loop: RowLoop, kept: list[str]) -> None:
    """Writes the work on one row: its reductions, its results, and (by one thread) its operands
    of the reductions over rows. kept: the reductions that later loops read."""
    ctx = state.ctx
    for name in loop.along:
        accumulators.declare(ctx, scope, name)
    if loop.along or loop.down or loop.full:
        nests.put(state, scope, Work([*loop.along, *loop.down], loop.full))
    for name in loop.along:
        accumulators.reduce_block(state, scope, name)
    for name in kept:
        (point,) = ctx.demand.points(name)
        value = values.get(state, point, scope)
        scope.put(Set(Lane(f"{name}_k", ctx.group_step), value, ctx.dtype_of(name)))
    condition = conjunction([state.row_condition, ctx.first_thread()])
    for name in loop.over:
        _put(state, name, condition, scope)
    nests.put_rows(state, scope, loop.of_rows, condition)


def _put(state: KernelState, name: str, condition: Scalar, scope: Scope) -> None:
    """Stores a row's operand of a reduction over rows in the reduction's array."""
    ctx, dtype = state.ctx, state.ctx.dtype_of(name)
    value = values.get(state, ctx.demand.operands[name], scope)
    array, at = f"{name}_r", ctx.loops.index["*".join(ctx.scheduled.rows)]
    put: Statement = Store(array, at, value, dtype)
    if ctx.is_cpu:
        put = Set(Lane(array, at), value, dtype)
    if ctx.cluster > 1:
        wait_for_gates(state, scope, ctx.group_step.lt(1))  # after the loads of the first row
        condition = state.row_condition
        put = Call(
            "put_rows", (array, at, value, *gates_of(state, array)), (ctx.cluster,), dtype
        )
    scope.put(put if condition.is_const else If(condition, (put,)))


def _reduce(state: KernelState, name: str) -> Let:
    """A reduction over rows. Its order of additions is that of a row with as many elements.

    On a GPU every warp reduces all rows, so all threads get the same bits. In a cluster it
    first waits at the gate for the elements that other blocks send.
    """
    ctx, count, array = state.ctx, _size(state.ctx), f"{name}_r"
    wide, op, target = ctx.accumulator_type(name), ctx.combines(name), ctx.accumulator(name)
    start = identity(op, wide)
    assert isinstance(target, str)
    if ctx.is_cpu:
        return Let(target, wide, Call("reduce_rows", (array, const(count), start), (op,), wide))
    row = row_of(count, ctx.scheduled.target)
    gate = gates_of(state, array) if ctx.cluster > 1 else ()
    sizes = (op, count, row.width, row.threads[0])
    return Let(target, wide, Call("reduce_rows", (array, start, *gate), sizes, wide))


def _results(state: KernelState, scope: Scope) -> None:
    """Stores the results with one value for each group, then those with one for each column."""
    ctx, results = state.ctx, state.ctx.demand.results
    names = [n for n, p in results.items() if not ctx.is_full(p) and not ctx.is_of_row(n)]
    of_group = (ParallelType.TIDX, ParallelType.TIDY, ParallelType.CLUSTER)
    threads = [axis for axis in ctx.root_loops if axis.parallel in of_group]
    nests.put_rows(state, scope, names, ctx.first_of(threads))
    for name in ctx.carried if ctx.threads[1] > 1 else ():
        scope.put(accumulators.join_threads(ctx, name, "y"))
    if ctx.carried:
        inner = scope.child()
        inner.condition = ctx.first_of(axis for axis in threads if not axis.is_reduction)
        nests.put(state, inner, Work(results=[n for n in results if _has_columns(ctx, n)]))
        guards.close(inner, scope)
