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
from thunder_fuser.ir.scalar import const
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import Argument, Array, Call, Set
from thunder_fuser.lower.scope import Scope
from thunder_fuser.lower.shared import SharedMemory


class Cluster:
    """The scratch and gates of one kernel's reductions."""

    def __init__(self, ctx: Context, shared: SharedMemory) -> None:
        self.ctx, self.shared = ctx, shared
        self._gates: dict[str, int] = {}  # the number of each reduction's pair of gates
        self._ready = False  # true once the other blocks' gates have been waited for

    def open(self, scope: Scope) -> None:
        """Declares what the reductions need, before any row."""
        names = list(self.ctx.demand.operands)
        self._gates = {name: number for number, name in enumerate(names)}
        scope.declare(self.shared.array("gates", DataType.Int, 2 * len(names)))
        for name in names:
            scope.declare(self._parts(name))
            scope.put(Call("open_gates", self._places(name), self._sizes))
        scope.put(Call("gates_made"))
        if self.ctx.walks_rows:
            self._wait(scope)

    def _parts(self, name: str) -> Array:
        """What the warps of a cluster send for one reduction: a word each, twice."""
        count = 2 * (self.ctx.threads[0] // 32) * self.ctx.cluster
        wide = self.ctx.part.tensors[name].dtype.bytes == 8
        word = DataType.Int if wide else DataType.Int32
        return self.shared.array(f"{name}_w", word, count)

    def _places(self, name: str) -> tuple[Argument, ...]:
        return f"{name}_w", "gates", const(self._gates[name])

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.ctx.threads[0], self.ctx.cluster

    def _wait(self, scope: Scope) -> None:
        if not self._ready:
            scope.put(Call("gates_ready"))
        self._ready = True

    def reduce(self, name: str, scope: Scope) -> None:
        """Joins the accumulators of all threads of the cluster; all get the result."""
        self._wait(scope)
        target = self.ctx.accumulator(name)
        # The gates open in turns: the number of the row, of those that the cluster walks.
        arguments = (target, *self._places(name), self.ctx.number(self.ctx.row_loops))
        op = self.ctx.part.producer[name].op
        joined = Call("reduce_cluster", arguments, (op, *self._sizes))
        scope.put(Set(target, joined, self.ctx.part.tensors[name].dtype))
