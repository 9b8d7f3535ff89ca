# SPDX-License-Identifier: Apache-2.0
"""Where reductions and scans add up: one variable, one for each lane, or one for each column.

declare:  float T3 = 0;                      a row's sum
          float T3_e[16] = {0, ...};         sums over rows, carried on from row to row
reduce:   T3 = reduce_x<Sum, 128, 1>(T3);    the threads of a block, or of a cluster, together

The blocks of a cluster, which walk rows together, send each other what they have:

open_gates<256, 4>(T2_w, gates, 0);              gates in every block's shared memory: when all
gates_made();                                    blocks have theirs, parts may be sent; where rows
gates_ready();                                   are walked before the first, else after its loads
for (row of the cluster) {
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
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import (
    Address,
    Argument,
    Array,
    Call,
    For,
    If,
    Lane,
    Let,
    Set,
    Statement,
    Stream,
    Variable,
)
from thunder_fuser.lower.scope import Scope, SharedMemory

SLOT = symbol("slot", 0, 2**31 - 1)  # a place in an array of sums


def identity(op: str, dtype: DataType) -> Literal:
    """What a reduction or scan starts from: the value that `op` leaves any other as it is with."""
    if op in ("sum", "prod"):
        value = 0 if op == "sum" else 1
        return Literal.of(float(value) if dtype.is_float else value)
    if dtype is DataType.Bool:
        return Literal.of(op == "min")
    if dtype.is_float:
        return Literal.of(float("-inf") if op == "max" else float("inf"))
    low, high = integer_range(dtype)
    return Literal.of(low if op == "max" else high)


def each_lane(ctx: Context, body: Iterable[Statement], extent: Scalar | None = None) -> For:
    """A loop over the lanes, or over as many of them as there are."""
    extent = const(ctx.lanes) if extent is None else extent
    return For(str(ctx.lane_symbol), extent, ParallelType.VECTORIZE, tuple(body))


class Gates:
    """Of a cluster's blocks, which send each other words: a gate opens when an array is full."""

    def __init__(self, shared: SharedMemory) -> None:
        self.shared = shared
        self._numbers: dict[str, int] = {}
        self._ready = False  # true once the other blocks' gates have been waited for

    def open(self, scope: Scope, arrays: Sequence[str], call: Call, gates: int = 1) -> None:
        """Declares so many gates for each array, and calls what makes them with each."""
        self._numbers = {array: number for number, array in enumerate(arrays)}
        scope.declare(self.shared.array("gates", DataType.Int, gates * len(arrays)))
        for array in arrays:
            scope.put(replace(call, arguments=(array, *self.of(array))))
        scope.put(Call("gates_made"))

    def of(self, array: str) -> tuple[Argument, ...]:
        """Which gates are an array's."""
        return "gates", const(self._numbers[array])

    def wait(self, scope: Scope, where: Scalar | None = None) -> None:
        """Until the other blocks' gates are made, where a condition holds."""
        if not self._ready:
            ready = Call("gates_ready")
            scope.put(ready if where is None or where.is_const else If(where, (ready,)))
        self._ready = True


def word(dtype: DataType) -> DataType:
    """What blocks of a cluster send each other a value as."""
    return DataType.Int if dtype.bytes == 8 else DataType.Int32


class Accumulators:
    """Declares and joins what the reductions of one kernel add into."""

    def __init__(self, ctx: Context, shared: SharedMemory) -> None:
        self.ctx, self.shared, self.gates = ctx, shared, Gates(shared)

    # ---- declarations

    def declare(self, scope: Scope, name: str) -> None:
        """What a reduction adds into, with what changes nothing in it."""
        ctx, op, dtype = self.ctx, self.ctx.combines(name), self.ctx.accumulator_type(name)
        start, target = identity(op, dtype), ctx.accumulator(name)
        if ctx.is_stream(name):
            scope.put(Stream(f"{name}_s", op, ctx.dtype_of(name), dtype, start))
        elif isinstance(target, str):
            scope.put(Variable(target, dtype, start))
        else:  # sums over the rows that a thread walks: one for each of its columns
            is_carried = name in ctx.carried
            count, at = (ctx.slots, SLOT) if is_carried else (ctx.lanes, ctx.lane_symbol)
            scope.put(Array(target.array, dtype, count))
            clear = Set(Lane(target.array, at), start, dtype)
            scope.put(For(str(at), const(count), ParallelType.VECTORIZE, (clear,)))

    def declare_scan(self, scope: Scope, name: str) -> None:
        """The elements of a scan's step, and what is carried from step to step."""
        dtype, target = self.ctx.accumulator_type(name), self.ctx.scanned(name)
        if not self.ctx.scheduled.params.inner:
            self.declare(scope, name)
            return
        assert isinstance(target, Lane)
        scope.put(Array(target.array, dtype, self.ctx.lanes))
        scope.put(Variable(f"{name}_c", dtype, identity(self.ctx.combines(name), dtype)))

    def open_gates(self, scope: Scope) -> None:
        """Declares what a cluster's reductions need, before any row."""
        ctx, names = self.ctx, list(self.ctx.demand.operands)
        call = Call("open_gates", template=(ctx.threads[0], ctx.cluster))
        self.gates.open(scope, [f"{name}_w" for name in names], call, gates=2)
        for name in names:  # a word of each warp of the cluster, twice
            count = 2 * (ctx.threads[0] // 32) * ctx.cluster
            scope.declare(self.shared.array(f"{name}_w", word(ctx.dtype_of(name)), count))
        if ctx.walks_rows:
            self.gates.wait(scope)

    # ---- joining

    def reduce_block(self, scope: Scope, name: str) -> None:
        """Joins the accumulators of a block's or cluster's threads; all get the result."""
        ctx, inner = self.ctx, self.ctx.scheduled.params.inner
        if ctx.is_stream(name):
            total = Call("total", (f"{name}_s",))
            scope.put(Let(str(ctx.accumulator(name)), ctx.accumulator_type(name), total))
        if ctx.is_cpu or ctx.threads[0 if inner else 1] == 1:
            return
        if ctx.cluster > 1 and not ctx.scheduled.rows:  # whose rows are a block's
            self.gates.wait(scope)
            scope.put(self._join_blocks(name))
        else:
            scope.put(self.join_threads(name, "x" if inner else "y"))

    def _join_blocks(self, name: str) -> Set:
        """Over all threads of the cluster."""
        ctx, target, array = self.ctx, self.ctx.accumulator(name), f"{name}_w"
        # The gates open in turns: the number of the row, of those that the cluster walks.
        arguments = (target, array, *self.gates.of(array), ctx.number(ctx.row_loops))
        sizes = (ctx.combines(name), ctx.threads[0], ctx.cluster)
        return Set(target, Call("reduce_cluster", arguments, sizes), ctx.dtype_of(name))

    def join_threads(self, name: str, axis: str) -> Set | Call:
        """Over the threads of the block along an axis: a variable, or each element of an array."""
        ctx, dtype, target = self.ctx, self.ctx.dtype_of(name), self.ctx.accumulator(name)
        sizes = (ctx.combines(name), *ctx.threads)
        variable = target.array if isinstance(target, Lane) else target
        if axis == "x":
            return Set(variable, Call("reduce_x", (variable,), sizes, dtype), dtype)
        if isinstance(target, str):
            return Call("reduce_y", (Address(target),), (*sizes, 1), dtype)
        count = ctx.slots if name in ctx.carried else ctx.lanes
        return Call("reduce_y", (variable,), (*sizes, count), dtype)

    def join_scan(self, name: str, count: Scalar) -> Call:
        """Each element joined with those before it and the carry, which ends as the last one.

        On CUDA the threads of a row, along x, have the whole array each; on the CPU `count`.
        """
        ctx, target, op = self.ctx, self.ctx.scanned(name), self.ctx.combines(name)
        assert isinstance(target, Lane)
        if ctx.is_cpu:
            return Call("scan_row", (target.array, count, f"{name}_c"), (op,))
        places, dtype = (target.array, f"{name}_c"), ctx.accumulator_type(name)
        return Call("scan_x", places, (op, *ctx.threads), dtype)
