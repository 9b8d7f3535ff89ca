# SPDX-License-Identifier: Apache-2.0
"""A trace -> the same in which a value of 16 bits is rounded where it is stored, and only there.

    n = convert(u, bf16)     # n is read in this run of fusible ops alone
    w = convert(n, f32)      # dropped: whoever reads w reads u
    v = mul(w, 2.0)     ->     v = mul(u, 2.0)

A chain of 16-bit ops so keeps float32 inside a region, as torch.compile does too. Where n has to be
stored for others (torch, later regions, the caller), all read what is stored. This is settled here,
for the whole trace and before anything is decided on what to keep for the backward: so no decision
of that kind changes a bit. Between forward and backward no rounding is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace

from thunder_fuser.rematerialization.apply import runs_of
from thunder_fuser.rematerialization.proxies import makes, reads

Supported = Callable[[BoundSymbol], bool]
Leaves = Callable[[BoundSymbol], Iterator[BoundSymbol]]


def casts_apart(trace: TraceCtx, supported: Supported, leaves_of: Leaves) -> TraceCtx:
    """The trace with fusible composites that round taken apart, so that their casts are seen."""
    new = from_trace(trace)
    new.bound_symbols = [
        part for bsym in trace.bound_symbols
        for part in (_apart(bsym, leaves_of) if supported(bsym) else (bsym,))
    ]  # fmt: skip
    return new


def rounded_where_stored(trace: TraceCtx, supported: Supported) -> TraceCtx:
    """The trace, whose casts are apart, with needless roundings dropped."""
    bsyms = trace.bound_symbols
    new = from_trace(trace)
    new.bound_symbols = _without_roundings(bsyms, [supported(bsym) for bsym in bsyms])
    return new


def _apart(bsym: BoundSymbol, leaves_of: Leaves) -> Iterator[BoundSymbol]:
    """Its primitives if it rounds. Torch has functions for most composites; for lerp, no other."""
    leaves = [*leaves_of(bsym)]
    ids = {leaf.sym.id for leaf in leaves}
    if leaves[0] is bsym or PrimIDs.LERP in ids or not any(map(_is_rounding, leaves)):
        yield bsym
        return
    for leaf in leaves:
        yield leaf.from_bsym(tags=leaf.tags | bsym.tags)


def _is_rounding(bsym: BoundSymbol) -> bool:
    return bsym.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE and _between_floats(bsym)


def _without_roundings(bsyms: Sequence[BoundSymbol], fusible: Sequence[bool]) -> list[BoundSymbol]:
    runs = runs_of(bsyms, fusible)
    stored = _stored(bsyms, runs)
    rounded: dict[str, tuple[Proxy, int]] = {}  # the value before its rounding, and the run
    returned = {proxy.name for proxy in reads(bsyms[-1])}
    swaps: dict[Variable, Proxy] = {}
    kept = []
    for bsym, run in zip(bsyms, runs, strict=True):
        if swaps and any(variableify(arg) in swaps for arg in reads(bsym)):
            bsym = bsym.from_bsym_swap_proxies(swaps, skip_output=True)
        if _is_rounding(bsym):
            source, result = bsym.args[0], bsym.output
            origin, where = rounded.get(source.name, (None, -1))
            same = origin is not None and where == run and origin.dtype == result.dtype
            if same and result.name not in returned:
                swaps[variableify(result)] = origin
                continue
            if source.dtype.bytes > result.dtype.bytes and result.name not in stored:
                rounded[result.name] = (source, run)
        kept.append(bsym)
    return kept


def _between_floats(bsym: BoundSymbol) -> bool:
    proxies = (bsym.args[0], bsym.output)
    return all(
        isinstance(proxy, TensorProxy) and dtypes.is_float_dtype(proxy.dtype) for proxy in proxies
    )


def _stored(bsyms: Sequence[BoundSymbol], runs: Sequence[int]) -> set[str]:
    """Values that another run reads, or torch, or the caller."""
    run = {o.name: number for b, number in zip(bsyms, runs, strict=True) for o in makes(b)}
    return {
        proxy.name
        for bsym, number in zip(bsyms, runs, strict=True)
        for proxy in reads(bsym)
        if run.get(proxy.name, number) != number
    }
