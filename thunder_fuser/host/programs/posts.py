# SPDX-License-Identifier: Apache-2.0
"""Writes the lines of a host program that communicate. They are the same on all ranks.

    T3_sent = all_reduce(T2, mesh=(0, 1), on='mesh_x', reduce='sum')
    T3 = wait(T3_sent, 'T3')
    del T3_sent
    T5 = matmul_reduce_scatter(T3, T4, mesh=(0, 1), on='mesh_x')
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.host.programs.overlap import Overlapped
from thunder_fuser.host.programs.statements import SENT
from thunder_fuser.ir.record import AttrValue, Literal, OpRecord, names_of
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.segment.plan import SegmentedFusion


def post_text(expr: OpRecord) -> str:
    """The line that posts a communication."""
    (name,) = names_of(expr)
    attrs = (f"{key}={literal(value)}" for key, value in expr.attrs)
    return f"{expr.outputs[0]}{SENT} = {expr.op}({name}, {', '.join(attrs)})"


def overlapped_lines(call: Overlapped | None) -> list[str]:
    """The line of a product with its communication; no line for the other segment of the two."""
    if call is None:
        return []
    a, b, *bias = call.reads
    attrs = ", ".join(f"{key}={literal(call.post.attr(key))}" for key in ("mesh", "on"))
    attrs += f", chunks={call.chunks}" * bool(call.chunks)
    operands = ", ".join([a, b + ".t()" * call.transposed, *(f"bias={one}" for one in bias)])
    return [f"    {call.result} = {call.name}({operands}, {attrs})"]


def waits(segmented: SegmentedFusion, under_way: list[str], wanted: Sequence[str]) -> list[str]:
    """The lines that wait for those wanted values that are under way; removes them from it."""
    found = [name for name in under_way if name in wanted]
    under_way[:] = [name for name in under_way if name not in found]
    return [
        line for name in found
        for line in (f"    {name} = {_wait(segmented, name)}", f"    del {name}{SENT}")
    ]


def _wait(segmented: SegmentedFusion, name: str) -> str:
    strides = segmented.strides[name]
    is_plain = strides == contiguous_strides(segmented.fusion.tensors[name].sizes)
    return f"wait({name}{SENT}, {name!r}{'' if is_plain else f', strides={strides!r}'})"


def literal(value: AttrValue) -> str:
    """An attribute as Python source, in which lists are tuples."""
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    return repr(value.value if isinstance(value, Literal) else value)
