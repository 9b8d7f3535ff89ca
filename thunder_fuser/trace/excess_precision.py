# SPDX-License-Identifier: Apache-2.0
"""A trace -> the same in which a 16-bit value is rounded where it is stored, and nowhere else.

    n = convert(u, bf16)     # n is read in this region alone
    w = convert(n, f32)      # dropped: what reads w reads u instead
    v = mul(w, 2.0)     ->     v = mul(u, 2.0)

A chain of 16-bit ops so keeps float32 inside a region, as torch.compile does too. Where n has to be
stored for others (torch, another region, the caller), all read what is stored. This is settled for
the whole trace before the backward's cut is chosen, so no choice of that kind changes a bit.
Between forward and backward no rounding is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol

from thunder_fuser.trace.op import Op, Rules
from thunder_fuser.trace.prepared import Prepared


def expand_casts(prepared: Prepared) -> Prepared:
    """Takes fusible composites that round apart, so that their casts are ops of the trace.

    y = gelu(x: bf16)  ->  a = convert(x, f32); b = erf(a); ...; y = convert(e, bf16)
    """
    return prepared.with_ops(
        part for op in prepared.ops for part in _expanded(op, prepared.rules)
    )


def _expanded(op: Op, rules: Rules) -> Iterator[Op]:
    """Its primitives if it rounds. Torch has functions for most composites; for lerp, no other."""
    ids = {leaf.sym.id for leaf in op.leaves}
    if op.leaves[0] is op.bsym or PrimIDs.LERP in ids or not any(map(_is_cast, op.leaves)):
        yield op
        return
    for leaf in op.leaves:
        yield rules.fused(leaf.from_bsym(tags=leaf.tags | op.bsym.tags))


def drop_roundings(prepared: Prepared) -> Prepared:
    """Drops the casts from 16 bits back to the type that a value of the same region had."""
    return prepared.with_ops(_without_roundings(prepared.ops, prepared.rules))


def _without_roundings(ops: Sequence[Op], rules: Rules) -> Iterator[Op]:
    stored = _stored(ops)
    rounded: dict[str, tuple[Proxy, int | None]] = {}  # the value before its rounding; the region
    returned = {proxy.name for proxy in ops[-1].reads}
    swaps: dict[Variable, Proxy] = {}
    for op in ops:
        bsym = op.bsym
        if swaps and any(variableify(proxy) in swaps for proxy in op.reads):
            bsym = bsym.from_bsym_swap_proxies(swaps, skip_output=True)
        if op.is_fusible and _is_cast(bsym):
            source, result = bsym.args[0], bsym.output
            origin, region = rounded.get(source.name, (None, None))
            same = origin is not None and region == op.region and origin.dtype == result.dtype
            if same and result.name not in returned:
                swaps[variableify(result)] = origin
                continue
            if source.dtype.bytes > result.dtype.bytes and result.name not in stored:
                rounded[result.name] = (source, op.region)
        yield rules.rewritten(op, bsym)


def _is_cast(bsym: BoundSymbol) -> bool:
    """True for a cast between types of floats."""
    return bsym.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE and all(
        isinstance(proxy, TensorProxy) and dtypes.is_float_dtype(proxy.dtype)
        for proxy in (bsym.args[0], bsym.output)
    )


def _stored(ops: Sequence[Op]) -> set[str]:
    """Values of a region that another region reads, or torch, or the caller."""
    region = {out.name: op.region for op in ops if op.is_fusible for out in op.makes}
    return {
        proxy.name for op in ops for proxy in op.reads
        if region.get(proxy.name, op.region) != op.region
    }  # fmt: skip
