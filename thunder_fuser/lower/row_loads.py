# SPDX-License-Identifier: Apache-2.0
"""What a row reads for itself, beside what its reductions do: on its way while they wait.

A row of cross entropy ends with its target's element. Asked for where it is used, after the last
reduction, it would be waited for twice there, first for its place and then for itself:

    T1_e = ld(T1, i)                       before the first pass, which waits for memory anyway
    for s: load x; max = max(max, x)
    T9_x = checked_index(T1_e, 50257)      what is at a looked-up place: before the reduction over
    T0_e = ld(T0, T9_x + i * 50257)        the block, behind the loads of the pass
    max = reduce(max)
"""

from __future__ import annotations

from thunder_fuser.analysis.demand import Point
from thunder_fuser.analysis.part import offset
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import names_of
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.lower.context import Context


def row_loads(ctx: Context) -> tuple[list[Point], list[Point]]:
    """The elements of inputs that only results of rows read: at known places, at looked-up ones."""
    demand, part = ctx.demand, ctx.part
    if ctx.is_cpu or ctx.lane_is_kept or not part.reductions:
        return [], []
    full = [*demand.operands.values(), *(p for p in demand.roots if ctx.is_full(p))]
    rows = [p for n, p in demand.results.items() if p not in full and n not in ctx.carried]
    own = [p for p in demand.reached(rows) if p.name in part.inputs and not ctx.is_full(p)]
    loaded = [p for p in own if not part.tensors[p.name].by_value]
    places = {p: offset(p.index, part.strides[p.name]).elements | p.condition.elements for p in own}
    known = [p for p in loaded if not any(_is_late(ctx, at) for at in places[p])]
    return [p for p in known if not places[p]], [p for p in known if places[p]]


def _is_late(ctx: Context, element: Scalar) -> bool:
    """True if a place is made of a reduction, such as that of a maximum."""
    names, seen = [str(element.args[0])], set[str]()
    while names:
        name = names.pop()
        expr = ctx.part.producer.get(name)
        if expr is None or name in seen:
            continue
        if expr.row.kind in (OpKind.REDUCTION, OpKind.SCAN):
            return True
        seen.add(name)
        names += names_of(expr)
    return any(_is_late(ctx, at) for part in element.parts for at in part.elements)
