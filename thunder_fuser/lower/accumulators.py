# SPDX-License-Identifier: Apache-2.0
"""The accumulators of reductions and scans: a variable, one for each lane, or one for each column.

declare:  float T3 = 0;                      a row's sum
          float T3_e[16] = {0, ...};         column sums, carried from row to row
reduce:   T3 = reduce_x<Sum, 128, 1>(T3);    combines the threads of a block or a cluster

The blocks of a cluster walk rows together, and send each other their partial results. A gate, which
is an mbarrier in shared memory, opens when all parts have arrived:

open_gates<256, 4>(T2_w, gates, 0);              each block makes its gates
gates_made();                                    announces them to the other blocks
gates_ready();                                   waits for theirs: here if sums are carried over
for (row of the cluster) {                       rows, else behind the loads of a row
  ...
  T2 = reduce_cluster<Sum, 256, 4>(T2, T2_w, gates, 0, row);
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType, integer_range
from thunder_fuser.ir.record import Literal
from thunder_fuser.ir.scalar import Scalar, const, symbol
from thunder_fuser.lower import kernel as nodes
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.scope import Scope
from thunder_fuser.lower.state import KernelState

SLOT = symbol("slot", 0, 2**31 - 1)  # an index into an array of sums


def identity(op: str, dtype: DataType) -> Literal:
    """The identity element of `op`, from which a reduction or scan starts."""
    if op in ("sum", "prod"):
        value = 0 if op == "sum" else 1
        return Literal.of(float(value) if dtype.is_float else value)
    if dtype is DataType.Bool:
        return Literal.of(op == "min")
    if dtype.is_float:
        return Literal.of(float("-inf") if op == "max" else float("inf"))
    low, high = integer_range(dtype)
    return Literal.of(low if op == "max" else high)


def each_lane(
    ctx: Context, body: Iterable[nodes.Statement], extent: Scalar | None = None
) -> nodes.For:
    """A loop over the lanes, or over the first `extent` of them."""
    extent = const(ctx.lanes) if extent is None else extent
    return nodes.For(str(ctx.lane_symbol), extent, ParallelType.VECTORIZE, tuple(body))


# ---- the gates of a cluster, whose blocks send words into each other's arrays in shared memory


def make_gates(
    state: KernelState, scope: Scope, arrays: Sequence[str], call: nodes.Call, *, gates: int = 1
) -> None:
    """Declares `gates` gates for each array, and puts a call that makes them."""
    state.gates = {array: number for number, array in enumerate(arrays)}
    scope.declare(state.shared.array("gates", DataType.Int, gates * len(arrays)))
    for array in arrays:
        scope.put(replace(call, arguments=(array, *gates_of(state, array))))
    scope.put(nodes.Call("gates_made"))


def gates_of(state: KernelState, array: str) -> tuple[nodes.Argument, ...]:
    """The arguments that name an array's gates."""
    return "gates", const(state.gates[array])


def wait_for_gates(state: KernelState, scope: Scope, where: Scalar | None = None) -> None:
    """Waits, the first time, until all blocks have made their gates. where: a condition."""
    if not state.gates_ready:
        ready = nodes.Call("gates_ready")
        scope.put(ready if where is None or where.is_const else nodes.If(where, (ready,)))
    state.gates_ready = True


def word(dtype: DataType) -> DataType:
    """The type of the word in which blocks of a cluster send each other a value."""
    return {8: DataType.Int, 16: DataType.ComplexDouble}.get(dtype.bytes, DataType.Int32)


def declare(ctx: Context, scope: Scope, name: str) -> None:
    """Declares a reduction's accumulator, with the identity element as its first value."""
    op, dtype, target = ctx.combines(name), ctx.accumulator_type(name), ctx.accumulator(name)
    start = identity(op, dtype)
    if ctx.is_stream(name):
        scope.put(nodes.Stream(f"{name}_s", op, ctx.dtype_of(name), dtype, start))
    elif isinstance(target, str):
        scope.put(nodes.Variable(target, dtype, start))
    else:  # one for each lane, or for each column if it is carried over rows
        of_rows = name in ctx.carried
        count, at = (ctx.columns, SLOT) if of_rows else (ctx.lanes, ctx.lane_symbol)
        scope.put(nodes.Array(target.array, dtype, count))
        clear = nodes.Set(nodes.Lane(target.array, at), start, dtype)
        scope.put(nodes.For(str(at), const(count), ParallelType.VECTORIZE, (clear,)))


def declare_scan(ctx: Context, scope: Scope, name: str) -> None:
    """Declares the elements of a scan's step, and the carry from step to step."""
    dtype, target = ctx.accumulator_type(name), ctx.scanned(name)
    if not ctx.scheduled.params.inner:
        declare(ctx, scope, name)
        return
    assert isinstance(target, nodes.Lane)
    scope.put(nodes.Array(target.array, dtype, ctx.lanes))
    scope.put(nodes.Variable(f"{name}_c", dtype, identity(ctx.combines(name), dtype)))


def make_gates_of_sums(state: KernelState, scope: Scope) -> None:
    """Declares the gates and arrays of a cluster's reductions, before any row."""
    ctx, names = state.ctx, list(state.ctx.demand.operands)
    call = nodes.Call("open_gates", template=(ctx.threads[0], ctx.cluster))
    make_gates(state, scope, [f"{name}_w" for name in names], call, gates=2)
    for name in names:  # a word for each warp of the cluster, twice
        count = 2 * (ctx.threads[0] // 32) * ctx.cluster
        scope.declare(state.shared.array(f"{name}_w", word(ctx.dtype_of(name)), count))
    if ctx.carried:
        wait_for_gates(state, scope)


def reduce_block(state: KernelState, scope: Scope, name: str) -> None:
    """Combines the accumulators of a block's or cluster's threads; all get the result."""
    ctx, inner = state.ctx, state.ctx.scheduled.params.inner
    if ctx.is_stream(name):
        total = nodes.Call("total", (f"{name}_s",))
        scope.put(nodes.Let(str(ctx.accumulator(name)), ctx.accumulator_type(name), total))
    if ctx.is_cpu or ctx.threads[0 if inner else 1] == 1:
        return
    if ctx.cluster == 1 or ctx.scheduled.rows:  # with groups, a row belongs to one block
        scope.put(join_threads(ctx, name, "x" if inner else "y"))
        return
    wait_for_gates(state, scope)
    target, array = ctx.accumulator(name), f"{name}_w"
    # The number of the row, of those that the cluster walks, says which of two gates is used.
    arguments = (target, array, *gates_of(state, array), ctx.number(ctx.row_loops))
    sizes = (ctx.combines(name), ctx.threads[0], ctx.cluster)
    joined = nodes.Call("reduce_cluster", arguments, sizes)
    scope.put(nodes.Set(target, joined, ctx.dtype_of(name)))


def join_threads(ctx: Context, name: str, axis: str) -> nodes.Set | nodes.Call:
    """Combines the block's threads along an axis: a variable, or each element of an array."""
    dtype, target = ctx.dtype_of(name), ctx.accumulator(name)
    sizes = (ctx.combines(name), *ctx.threads)
    variable = target.array if isinstance(target, nodes.Lane) else target
    if axis == "x":
        return nodes.Set(variable, nodes.Call("reduce_x", (variable,), sizes, dtype), dtype)
    if isinstance(target, str):
        return nodes.Call("reduce_y", (nodes.Address(target),), (*sizes, 1), dtype)
    count = ctx.columns if name in ctx.carried else ctx.lanes
    return nodes.Call("reduce_y", (variable,), (*sizes, count), dtype)


def join_scan(ctx: Context, name: str, count: Scalar) -> nodes.Call:
    """Combines each element with those before it and the carry; the last one is the new carry.

    On CUDA each thread of a row, along x, has a whole array; on a CPU it has `count` elements.
    """
    target, op = ctx.scanned(name), ctx.combines(name)
    assert isinstance(target, nodes.Lane)
    if ctx.is_cpu:
        return nodes.Call("scan_row", (target.array, count, f"{name}_c"), (op,))
    places, dtype = (target.array, f"{name}_c"), ctx.accumulator_type(name)
    return nodes.Call("scan_x", places, (op, *ctx.threads), dtype)
