# SPDX-License-Identifier: Apache-2.0
"""Sums of products by tensor cores: one call for all threads of a block.

T8 = sum_of_products<Sum, 16, 32, 1>(T1, 0, 2048, 8192, 16*i_o, T0, 0, 2048, 8, 2048, scratch_f32);
"""

from __future__ import annotations

from collections.abc import Iterable

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.lower import kernel as nodes
from thunder_fuser.lower.scope import Scope
from thunder_fuser.lower.state import KernelState
from thunder_fuser.schedule.axes import size_of
from thunder_fuser.schedule.products import COLUMNS, Matrix, matrices_of


def put(state: KernelState, scope: Scope, sums: Iterable[str]) -> None:
    """Computes these sums; each thread gets its own."""
    ctx = state.ctx
    part, template = ctx.part, (*ctx.threads, ctx.scheduled.params.unroll)
    (block,) = (axis for axis in ctx.root_loops if axis.parallel is ParallelType.BIDX)
    length = const(size_of(part, ctx.scheduled.reduced))

    def arguments(of: Matrix) -> tuple[str | Scalar, ...]:
        return of.name, const(of.first), const(of.stride), const(size_of(part, of.axes))

    for name in sums:
        operands = matrices_of(part, part.producer[name])
        assert operands is not None
        rows, matrix = map(arguments, operands)
        begin = ctx.loops.loops[block.name] * COLUMNS
        call = nodes.Call(
            "sum_of_products", (*matrix, begin, *rows, length), (ctx.combines(name), *template),
            ctx.dtype_of(name),
        )  # fmt: skip
        scope.put(nodes.Set(ctx.accumulator(name), call, ctx.dtype_of(name)))
