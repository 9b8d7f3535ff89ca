# SPDX-License-Identifier: Apache-2.0
"""Expensive values that are broadcast get a kernel of their own, where that pays.

    T1 = cos(T0: [1, 1, t, d]);                  T2 = mul(T1, T3: [b, h, t, d])
->  T4 = cos(T0);         T1 = segment_set(T4);  T2 = mul(T1, T3)

A kernel over [b, h, t, d] would compute the cosines b*h times. A kernel over [t, d] computes each
once and stores it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from thunder_fuser.analysis.repeats import is_costly, outer_repeats
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.rules.shapes import normalise_axes
from thunder_fuser.presegment.rewrite import Rule, makers
from thunder_fuser.target import Target

_INLINED = (OpKind.POINTWISE, OpKind.MOVEMENT, OpKind.FACTORY, OpKind.RANDOM)


def materialize_broadcasts(fusion: Fusion, target: Target, options: CompileOptions) -> Rule:
    """Puts boundaries behind expensive values that are broadcast; these share one kernel."""
    savings = {
        fusion.producer[name]: _saving(fusion, name, times, target)
        for name, times in _broadcast(fusion).items()
    }
    stored = [expr for expr, saving in savings.items() if saving > 0]
    if sum(savings[expr] for expr in stored) <= target.launch_bytes:
        return {}
    return {expr: with_boundary(expr) for expr in stored}


def with_boundary(record: OpRecord) -> list[OpRecord]:
    """The record and a boundary behind it, which has its name."""
    (name,) = record.outputs
    computed = replace(record, outputs=(f"{name}.once",))
    return [computed, OpRecord("segment_set", computed.outputs, (name,))]


def _saving(fusion: Fusion, name: str, times: int, target: Target) -> float:
    """The bytes that memory moves in the time that is saved, without those of a store and a load.

    A value that depends on a reduction saves nothing: the loop that reduces computes it once.
    """
    chain = [*makers(fusion.producer, name, _is_inlined)]
    if any(expr.row.kind in (OpKind.REDUCTION, OpKind.SCAN) for expr in chain):
        return 0.0
    tensors = fusion.tensors
    work = sum(prod(tensors[e.outputs[0]].sizes) * e.row.cost for e in chain if is_costly(e.row))
    moved = 2 * prod(tensors[name].sizes) * tensors[name].dtype.bytes
    return work * (times - 1) / target.ops_per_byte - moved


def _is_inlined(expr: OpRecord) -> bool:
    """True if a kernel that reads the value computes it: no boundary, lookup or reduction."""
    return expr.row.kind in _INLINED and expr.op != "segment_set"


def _broadcast(fusion: Fusion) -> dict[str, int]:
    """{value that is broadcast: how often a kernel that reads it computes each element}"""
    times: dict[str, int] = {}
    broadcasts: list[str] = []
    for expr in reversed(fusion.exprs):
        here = times.get(expr.outputs[0], 1)
        for name in names_of(expr) if _is_inlined(expr) else ():
            repeats = _repeats(fusion, expr, name)
            times[name] = max(times.get(name, 1), here * repeats)
            if repeats > 1 and name in fusion.producer:
                broadcasts.append(name)
    return {name: times[name] for name in broadcasts}


def _repeats(fusion: Fusion, expr: OpRecord, name: str) -> int:
    """How often each element of an operand is read in a loop over the result's elements."""
    sizes, wanted = fusion.tensors[name].sizes, fusion.tensors[expr.outputs[0]].sizes
    if expr.op == "broadcast_in_dim":
        dims = normalise_axes(expr.attr("broadcast_dims"), len(wanted), expr.op)
        at = dict(zip(dims, sizes, strict=True))
        sizes = tuple(at.get(axis, 1) for axis in range(len(wanted)))
    is_aligned = expr.row.kind is OpKind.POINTWISE or expr.op in ("broadcast_in_dim", "expand")
    return outer_repeats(sizes, wanted) if sizes and is_aligned else 1
