# SPDX-License-Identifier: Apache-2.0
"""A trace -> the same with fewer stored casts, and fewer casts that round.

expand_casts takes composites apart, so that their casts are ops; recompute_casts repeats casts to
wider types, so that regions store the narrow value; drop_roundings lets a chain of 16-bit ops
keep float32 inside a region, as torch.compile does too.
"""

from __future__ import annotations

from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol

from thunder_fuser.trace.dataflow import DataFlow, with_what_they_view
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.repeat import Repeater

_STEPS = (PrimIDs.TRUNC, PrimIDs.FLOOR, PrimIDs.CEIL, PrimIDs.ROUND)


def expand_casts(prepared: Prepared) -> Prepared:
    """Takes fusible composites that round apart, so that their casts are ops of the trace.

    y = gelu(x: bf16)  ->  a = convert(x, f32); b = erf(a); ...; y = convert(e, bf16)
    """
    ops: list[Op] = []
    for op in prepared.ops:
        # lerp stays whole: torch runs it as this composite only.
        is_whole = op.leaves[0] is op.bsym or PrimIDs.LERP in {leaf.sym.id for leaf in op.leaves}
        rounds = not is_whole and any(map(_is_cast, op.leaves))
        ops += prepared.rules.apart(op) if rounds else [op]
    return prepared.with_ops(ops)


def recompute_casts(prepared: Prepared) -> Prepared:
    """Recomputes a cast to a wider type in each region that reads it.

        m = lt(u, 0.9)                m = lt(u, 0.9)          1 byte an element: stored
        f = convert(m, f32)           f = convert(m, f32)     4 bytes: stored no more
        a = mul(x, f)                 a = mul(x, f)
        b = matmul(a, a)         ->   b = matmul(a, a)
                                      fr = convert(m, f32)
        y = mul(b, f)                 y = mul(b, fr)

    A value that one region reads of another is written to memory and read again. If torch or the
    caller reads a cast or a view of it, it is stored in any case, so it is not repeated.
    Rematerialization decides about the casts that the backward reads of the forward.
    """
    casts = _casts(prepared.flow)
    crossing = {
        name
        for op in prepared.ops for name in op.read_names
        if name in casts and _crosses(casts[name], op)
    }  # fmt: skip
    return prepared.with_ops(Repeater(prepared, crossing, _crosses).ops()) if crossing else prepared


def _crosses(cast: Op, reader: Op) -> bool:
    return cast.region != reader.region and cast.is_backward == reader.is_backward


def _casts(flow: DataFlow) -> dict[str, Op]:
    """Casts to wider types that only fusible ops read, by the names of their results."""
    ops = flow.ops
    casts = {op.makes[0].name: op for op in ops if op.is_fusible and op.widens}
    if not casts:
        return casts
    read_by_torch = {name for op in ops if not op.is_fusible for name in op.read_names}
    stored = flow.written | with_what_they_view(ops, read_by_torch)
    return {
        name: op for name, op in casts.items()
        if name not in stored and op.reads[0].name not in flow.written
    }  # fmt: skip


def drop_roundings(prepared: Prepared) -> Prepared:
    """Drops casts from 16 bits back to the type that the value had before, in the same region.

        n = convert(u, bf16)     # n is read in this region alone
        w = convert(n, f32)      # dropped: what reads w reads u instead
        v = mul(w, 2.0)     ->     v = mul(u, 2.0)

    If n must be stored for others (torch, another region, the caller), all readers read what is
    stored. This pass decides for the whole trace before the backward's cut is chosen, so no choice
    of the cut changes a bit. It drops no rounding between forward and backward, from float64, or
    to 8 bits: chains of ops make no such casts, so the program asked for them. Nor does it
    drop one before trunc, floor, ceil or round: 17.97 is 18 as bfloat16, of another whole part.
    """
    ops: list[Op] = []
    stored = prepared.flow.crossing | _before_steps(prepared)
    returned = set(prepared.ops[-1].read_names)
    rounded: dict[str, tuple[Proxy, int | None]] = {}  # the value before its rounding; the region
    swaps: dict[Variable, Proxy] = {}
    for op in prepared.ops:
        op = prepared.rules.reading(op, swaps)
        if op.is_fusible and _is_cast(op.bsym):
            source, result = op.bsym.args[0], op.bsym.output
            origin, region = rounded.get(source.name, (None, None))
            same = origin is not None and region == op.region and origin.dtype == result.dtype
            if same and result.name not in returned:
                swaps[variableify(result)] = origin
                continue
            # The rounding that each op of a 16-bit chain does.
            is_rounding = (source.dtype.bytes, result.dtype.bytes) == (4, 2)
            if is_rounding and result.name not in stored:
                rounded[result.name] = (source, op.region)
        ops.append(op)
    return prepared.with_ops(ops)


def _before_steps(prepared: Prepared) -> set[str]:
    """The values of 16 bits of which, as wider ones, the whole part is taken."""
    casts = (op for op in prepared.ops if op.is_fusible and op.widens)
    widened = {op.makes[0].name: op.read_names[0] for op in casts}
    return {
        widened[name]
        for op in prepared.ops if any(leaf.sym.id in _STEPS for leaf in op.leaves)
        for name in op.read_names if name in widened
    }  # fmt: skip


def _is_cast(bsym: BoundSymbol) -> bool:
    """True for a cast between types of floats."""
    return bsym.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE and all(
        isinstance(proxy, TensorProxy) and dtypes.is_float_dtype(proxy.dtype)
        for proxy in (bsym.args[0], bsym.output)
    )
