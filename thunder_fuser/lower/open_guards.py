# SPDX-License-Identifier: Apache-2.0
"""Guards, each put where its value is first known: skipped as an If, or clamped.

skipped:  if (i < n) { const i32 i = ...; ... }          where no barrier follows
clamped:  const i32 i = i_x < n - 1 ? i_x : n - 1;       all threads go on, and do not store
"""

from __future__ import annotations

from thunder_fuser.ir.domain import IterDomain
from thunder_fuser.ir.scalar import Scalar, conjunction, const, minimum
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.guards import valid, valid_step
from thunder_fuser.lower.kernel import Coordinate, If, Let
from thunder_fuser.lower.scope import Scope
from thunder_fuser.schedule.loop_index import Guard


class OpenGuards:
    """The guards of one kernel, each until it is put where its value is first known.

    row_condition: where a kept position, which is clamped, is one of the tensor's.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.open, self.row_condition = ctx, list(ctx.loops.guards), const(1)

    @staticmethod
    def define(scope: Scope, variable: Scalar, value: Coordinate | Scalar) -> None:
        """The variable of an axis or loop, from here on."""
        scope.put(Let(str(variable), None, value))
        scope.symbols = scope.symbols | variable.symbols

    def guard(self, scope: Scope) -> Scope:
        """Guards known from blocks, threads and rows.

        Kept axes are clamped where barriers follow, and reduced ones are left to the nests: no
        thread may skip a barrier. A pointwise kernel has none and skips all at once.
        """
        if not self.ctx.part.reductions and not self.ctx.part.scans:
            for guard in self.ready(scope):
                scope = self.enter(scope, guard)
            return scope
        reduced = {"*".join(self.ctx.scheduled.reduced), *self.ctx.scheduled.reduced}
        for guard in self.ready(scope):
            if guard.axis.partition(".")[0] in reduced and not self.ctx.part.scans:
                self.open.append(guard)
                continue
            self.clamp(scope, guard)
        return scope

    def clamp(self, scope: Scope, guard: Guard) -> None:
        """Past the end the last element is read again, and what it makes is not stored."""
        self.define(scope, guard.variable, minimum(guard.value, guard.extent - 1))
        self.row_condition = conjunction([self.row_condition, valid(guard)])

    def ready(self, scope: Scope) -> list[Guard]:
        """The guards, innermost axes last, whose values can be known in the scope."""
        ready: list[Guard] = []
        symbols = scope.symbols
        progress = True
        while progress:
            progress = False
            for guard in list(self.open):
                if guard.value.symbols <= symbols:
                    self.open.remove(guard)
                    ready.append(guard)
                    symbols = symbols | guard.variable.symbols
                    progress = True
        return ready

    def enter(self, scope: Scope, guard: Guard, loop: IterDomain | None = None) -> Scope:
        """A block, inside a loop, in which the guard holds and its variable is defined."""
        inner = scope.child()
        unrolled = loop is not None and not self.ctx.is_cpu
        inner.condition = valid_step(guard, loop, self.ctx.loops) if unrolled else valid(guard)
        self.define(inner, guard.variable, guard.value)
        return inner

    def close(self, scope: Scope, until: Scope) -> None:
        """Puts each block made by `enter`, from the innermost out to `until`, into its If."""
        while scope is not until:
            assert scope.condition is not None and scope.parent is not None
            scope.parent.put(If(scope.condition, tuple(scope.statements)))
            scope = scope.parent
