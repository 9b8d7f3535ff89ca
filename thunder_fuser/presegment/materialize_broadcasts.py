# SPDX-License-Identifier: Apache-2.0
"""Expensive values that are broadcast get a kernel of their own, where that pays.

    T1 = cos(T0: [1, 1, t, d]);                  T2 = mul(T1, T3: [b, h, t, d])
->  T4 = cos(T0);         T1 = segment_set(T4);  T2 = mul(T1, T3)

A kernel over [b, h, t, d] would compute the cosines b*h times. A kernel over [t, d] computes each
once and stores it.

`materialize_straddled` does so for statistics of groups that vectors straddle.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from thunder_fuser.analysis.cost import INLINED, is_expensive, outer_repeats, work
from thunder_fuser.analysis.part import Part, Parts
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of, rename
from thunder_fuser.ir.rules.shapes import normalise_axes
from thunder_fuser.presegment.rewrite import RewriteRule, makers, with_attrs
from thunder_fuser.schedule.axes import MAX_BYTES, memory_order
from thunder_fuser.target import Target

STRADDLED_OPS = 16  # that find and load a value for each element, instead of for a vector
FEW = 16  # elements of a result for one that is stored


def materialize_broadcasts(fusion: Fusion, target: Target, options: CompileOptions) -> RewriteRule:
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
    moved = 2 * prod(tensors[name].sizes) * tensors[name].dtype.bytes
    expensive = [expr for expr in chain if is_expensive(expr.row)]
    once = sum(work(e.row, prod(tensors[e.outputs[0]].sizes), target) for e in expensive)
    return once * (times - 1) - moved


def _is_inlined(expr: OpRecord) -> bool:
    """True if a kernel that reads the value computes it: no boundary, lookup or reduction."""
    return expr.row.kind in INLINED and expr.op != "segment_set"


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


# ---- values of groups that vectors straddle


def materialize_straddled(fusion: Fusion, target: Target, options: CompileOptions) -> RewriteRule:
    """Stores statistics of groups once for each channel, where vectors straddle groups.

        T2 = mul(T0: bf16[n, hw, g, 10], T1: f32[n, 1, g, 1])
    ->  T3 = broadcast_in_dim(T1, shape=[n, 1, g, 10]); T4 = segment_set(T3); T2 = mul(T0, T4)

    A vector has 8 elements, of one group or of two. So each element would divide its place by 10
    to load its statistics, and compute what is left of these: 63 instructions, in a group norm
    with silu, not 35. Only values that wait for partial results are stored: others may be computed
    in the kernel that reads them.
    """
    whole = Parts(fusion).of(fusion.exprs)
    if target.is_cpu or not whole.partial:
        return {}
    stored, rule = dict[tuple[str, object], str](), dict[OpRecord, list[OpRecord]]()
    waiting = set(whole.partial)
    for expr in fusion.exprs:
        read = [name for name in names_of(expr) if name in waiting]
        waiting.update(expr.outputs if read else ())
        for name in read:
            shape = _straddled(whole, expr, name, target)
            if shape:
                written = rule.pop(expr, [expr])
                rule[expr] = [*written[:-1], *_each_channel(written[-1], name, shape, stored)]
    return rule


def _straddled(whole: Part, expr: OpRecord, name: str, target: Target) -> tuple[int, ...]:
    """The shape in which to store an operand for each channel; none if it is read as it is."""
    result, view = whole.tensors[expr.outputs[0]], whole.tensors[name]
    order = memory_order(whole, whole.axes(result.name))
    if not order or not _is_aligned(expr):
        return ()
    dims = _dims(expr, len(result.sizes))
    real = {
        dim for dim, axis in zip(dims, view.domain.no_reductions, strict=False)
        if not axis.is_broadcast
    }
    axes = [whole.domain_map.axis(axis) for axis in result.domain.no_reductions]
    last, elements = axes.index(order[-1]), prod(result.sizes)
    shape = tuple(n if at in real or at == last else 1 for at, n in enumerate(result.sizes))
    large = (n for n in whole.global_tensors if prod(whole.tensors[n].sizes) == elements)
    itemsizes = (max(whole.tensors[name].dtype.bytes, 1) for name in large)
    widest = MAX_BYTES // min(itemsizes, default=MAX_BYTES)
    pays = elements * STRADDLED_OPS / target.ops_per_byte > target.launch_bytes
    is_small = prod(shape) * FEW <= elements
    straddles = last not in real and len(real) > 0 and result.sizes[last] % widest > 0
    return shape if pays and is_small and straddles else ()


def _is_aligned(expr: OpRecord) -> bool:
    return expr.row.kind is OpKind.POINTWISE or expr.op == "broadcast_in_dim"


def _dims(expr: OpRecord, rank: int) -> tuple[int, ...]:
    """The axes of the result that an operand's axes are."""
    if expr.op != "broadcast_in_dim":
        return tuple(range(rank))
    return normalise_axes(expr.attr("broadcast_dims"), rank, expr.op)


def _each_channel(
    record: OpRecord, name: str, shape: tuple[int, ...], stored: dict[tuple[str, object], str]
) -> list[OpRecord]:
    """The record with an operand of this shape, behind what stores it if it is the first."""
    is_first = (name, shape) not in stored
    each = stored.setdefault((name, shape), f"{name}.each{len(stored)}")
    new, rank = rename(record, {name: each}), len(shape)
    if record.op == "broadcast_in_dim":
        new = with_attrs(new, broadcast_dims=tuple(range(rank)))
    attrs = (("shape", shape), ("broadcast_dims", _dims(record, rank)))
    wide = OpRecord("broadcast_in_dim", (name,), (each,), attrs)
    return [*with_boundary(wide), new] if is_first else [new]
