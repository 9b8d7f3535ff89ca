# SPDX-License-Identifier: Apache-2.0
"""Reductions over the blocks of a cluster, which walk rows together.

open_gates<256, 4>(T2_w, gates, 0);              gates in every block's shared memory: when all
gates_made();                                    blocks have theirs, parts may be sent; where rows
gates_ready();                                   are walked before the first, else after its loads
for (row of the cluster) {
  ...
  T2 = reduce_cluster<Sum, 256, 4>(T2, T2_w, gates, 0, row);
"""

from __future__ import annotations

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import Array, ClusterReduce, GatesMade, GatesReady, OpenGates
from thunder_fuser.lower.scope import Scope
from thunder_fuser.lower.values import Values


class Cluster:
    """The scratch and gates of one kernel's reductions."""

    def __init__(self, ctx: Context, values: Values) -> None:
        self.ctx, self.values = ctx, values
        self._opened: dict[str, OpenGates] = {}
        self._ready = False  # true once the other blocks' gates have been waited for

    def open(self, scope: Scope) -> None:
        """Declares what the reductions need, before any row."""
        shared, names = self.values.shared, list(self.ctx.demand.operands)
        gates = shared.array("gates", DataType.Int, 2 * len(names))  # pairs of them
        shared.declare(gates, scope)
        for number, name in enumerate(names):
            scratch = self._parts(name)
            shared.declare(scratch, scope)
            opened = OpenGates(
                self.ctx.threads[0], self.ctx.cluster, scratch.name, gates.name, number
            )
            self._opened[name] = opened
            scope.put(opened)
        scope.put(GatesMade())
        if self.ctx.walks_rows:
            self._wait(scope)

    def _parts(self, name: str) -> Array:
        """What the warps of a cluster send for one reduction: a word each, twice."""
        count = 2 * (self.ctx.threads[0] // 32) * self.ctx.cluster
        wide = self.ctx.part.tensors[name].dtype.bytes == 8
        word = DataType.Int if wide else DataType.Int32
        return self.values.shared.array(f"{name}_w", word, count)

    def _wait(self, scope: Scope) -> None:
        if not self._ready:
            scope.put(GatesReady())
        self._ready = True

    def reduce(self, name: str, scope: Scope) -> None:
        """Joins the accumulators of all threads of the cluster; all get the result."""
        self._wait(scope)
        opened = self._opened[name]
        joined = ClusterReduce(
            self.ctx.accumulator(name),
            self.ctx.part.producer[name].op,
            opened.threads,
            opened.cluster,
            opened.scratch,
            opened.gates,
            opened.gate,
            self._turn(),
        )
        scope.put(joined)

    def _turn(self) -> Scalar:
        """How many rows the cluster has walked before."""
        turn = const(0)
        for axis in self.ctx.row_loops:
            turn = turn * axis.extent + self.ctx.loops.loops[axis.name]
        return turn
