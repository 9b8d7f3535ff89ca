# SPDX-License-Identifier: Apache-2.0
"""Where reductions and scans add up: one variable, one for each lane, or one for each column.

declare:  float T3 = 0;                      a row's sum
          float T3_e[16] = {0, ...};         sums over rows, carried on from row to row
reduce:   T3 = reduce_x<Sum, 128, 1>(T3);    the threads of a block, or of a cluster, together
"""

from __future__ import annotations

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.scalar import Scalar, const, symbol
from thunder_fuser.lower.cluster import Cluster
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.identity import identity
from thunder_fuser.lower.kernel import (
    Address,
    Array,
    Call,
    For,
    Lane,
    Let,
    Set,
    Statement,
    Stream,
    Variable,
)
from thunder_fuser.lower.scope import Scope

SLOT = symbol("slot", 0, 2**31 - 1)  # a place in an array of sums


class Accumulators:
    """Declares and joins what the reductions of one kernel add into."""

    def __init__(self, ctx: Context, cluster: Cluster) -> None:
        self.ctx, self.cluster = ctx, cluster

    def declare_carried(self, scope: Scope, name: str) -> None:
        """A thread's sums over the rows that it walks, one for each of its columns."""
        dtype, target = self.ctx.accumulator_type(name), self.ctx.accumulator(name)
        assert isinstance(target, Lane)
        count = self.ctx.steps * self.ctx.lanes
        start = identity(self.ctx.part.producer[name].op, dtype)
        init = Set(Lane(target.array, SLOT), start, dtype)
        scope.put(Array(target.array, dtype, count))
        scope.put(For(str(SLOT), const(count), ParallelType.VECTORIZE, (init,)))

    def declare(self, scope: Scope, name: str) -> None:
        """What a reduction adds into, with what changes nothing in it."""
        dtype, target = self.ctx.accumulator_type(name), self.ctx.accumulator(name)
        init = identity(self.ctx.combines(name), dtype)
        if self.ctx.is_stream(name):
            narrow = self.ctx.part.tensors[name].dtype
            scope.put(Stream(f"{name}_s", self.ctx.combines(name), narrow, dtype, init))
            return
        if isinstance(target, str):
            scope.put(Variable(target, dtype, init))
            return
        scope.put(Array(target.array, dtype, self.ctx.lanes))
        scope.put(self._each_lane(Set(target, init, dtype)))

    def declare_scan(self, scope: Scope, name: str) -> None:
        """The elements of a scan's step, and what is carried from step to step."""
        if not self.ctx.scheduled.params.inner:
            self.declare(scope, name)
            return
        dtype, target = self.ctx.accumulator_type(name), self.ctx.scanned(name)
        assert isinstance(target, Lane)
        scope.put(Array(target.array, dtype, self.ctx.lanes))
        scope.put(Variable(f"{name}_c", dtype, identity(self.ctx.combines(name), dtype)))

    def _each_lane(self, statement: Statement) -> For:
        extent = const(self.ctx.lanes)
        return For(str(self.ctx.lane_symbol), extent, ParallelType.VECTORIZE, (statement,))

    def reduce_block(self, scope: Scope, name: str) -> None:
        """Joins the accumulators of a block's or cluster's threads; all get the result."""
        axis = "x" if self.ctx.scheduled.params.inner else "y"
        threads = self.ctx.threads
        if self.ctx.is_stream(name):
            total = Call("total", (f"{name}_s",))
            scope.put(Let(str(self.ctx.accumulator(name)), self.ctx.accumulator_type(name), total))
        if self.ctx.is_cpu or (threads[0] if axis == "x" else threads[1]) == 1:
            return
        if self.ctx.cluster > 1 and not self.ctx.scheduled.rows:  # whose rows are a block's
            self.cluster.reduce(name, scope)
            return
        count = self.ctx.lanes if self.ctx.lane_is_kept else 0
        scope.put(self.join_threads(name, axis, count))

    def join_threads(self, name: str, axis: str, count: int) -> Set | Call:
        """Over the threads of the block along an axis; all get the result.

        count > 0: the accumulator is an array of so many, each reduced.
        """
        dtype, op = self.ctx.part.tensors[name].dtype, self.ctx.part.producer[name].op
        target = self.ctx.accumulator(name)
        if isinstance(target, Lane):
            target = target.array
        if axis == "x":
            joined = Call("reduce_x", (target,), (op, *self.ctx.threads), dtype)
            return Set(target, joined, dtype)
        place = target if count else Address(target)
        return Call("reduce_y", (place,), (op, *self.ctx.threads, max(count, 1)), dtype)

    def join_scan(self, name: str, count: Scalar) -> Call:
        """Each element joined with those before it and the carry, which ends as the last one.

        On CUDA the threads of a row, along x, have the whole array each; on the CPU `count`.
        """
        target, op = self.ctx.scanned(name), self.ctx.combines(name)
        assert isinstance(target, Lane)
        if self.ctx.is_cpu:
            return Call("scan_row", (target.array, count, f"{name}_c"), (op,))
        places, dtype = (target.array, f"{name}_c"), self.ctx.accumulator_type(name)
        return Call("scan_x", places, (op, *self.ctx.threads), dtype)
