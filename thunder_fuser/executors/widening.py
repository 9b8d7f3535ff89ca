# SPDX-License-Identifier: Apache-2.0
"""A trace -> the same, in which a cast to a wider type is made again where it is read.

    m = lt(u, 0.9)                m = lt(u, 0.9)          1 byte an element: stored
    f = convert(m, f32)           f = convert(m, f32)     4 bytes: stored no more
    a = mul(x, f)                 a = mul(x, f)
    b = matmul(a, a)         ->   b = matmul(a, a)
                                  fw = convert(m, f32)
    y = mul(b, f)                 y = mul(b, fw)

What one run of fusible ops reads of another is written and read again. A cast that torch reads, or
the caller, or a view of which they read, is stored in any case, and stays one. What the backward
reads of the forward is left to rematerialization.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace, tracectx

from thunder_fuser.rematerialization.apply import Leaves, Reading, Supported, is_backward, is_view
from thunder_fuser.rematerialization.proxies import makes, reads


def widened_where_read(trace: TraceCtx, supported: Supported, leaves_of: Leaves) -> TraceCtx:
    """The trace itself where no such cast crosses."""
    reading = Reading(trace.bound_symbols, supported, leaves_of)
    casts = _casts(reading)
    if not casts:
        return trace
    home = {n: run for b, run in zip(reading.bsyms, reading.runs, strict=True) for n in _results(b)}
    crossing = {
        arg.name
        for bsym, run in zip(reading.bsyms, reading.runs, strict=True)
        for arg in reads(bsym)
        if arg.name in casts and home[arg.name] != run
        and is_backward(bsym) == is_backward(casts[arg.name])
    }
    if not crossing:
        return trace
    new = from_trace(trace)
    new.bound_symbols = [*_again(new, reading, {name: casts[name] for name in crossing})]
    return new


def _casts(reading: Reading) -> dict[str, BoundSymbol]:
    """Casts to wider types that nothing but fusible ops read, by the names of their results."""
    found = {
        makes(bsym)[0].name: bsym
        for bsym, can, leaves in _each(reading)
        if can and widens(leaves)
    }
    if not found:
        return found
    stay = reading.written | _read_by_torch(reading)
    return {
        name: bsym for name, bsym in found.items()
        if name not in stay and reads(bsym)[0].name not in reading.written
    }  # fmt: skip


def _each(reading: Reading) -> Iterator[tuple[BoundSymbol, bool, tuple[BoundSymbol, ...]]]:
    return zip(reading.bsyms, reading.fusible, reading.groups, strict=True)


def _read_by_torch(reading: Reading) -> set[str]:
    """What others than fusible ops read, itself or a view of it."""
    names: set[str] = set()
    for bsym, can, leaves in reversed([*_each(reading)]):
        if not can or (is_view(leaves) and names.intersection(_results(bsym))):
            names.update(arg.name for arg in reads(bsym))
    return names


def widens(leaves: Sequence[BoundSymbol]) -> bool:
    """True for nothing but a cast whose result has more bytes than its operand."""
    if len(leaves) != 1 or leaves[0].sym.id is not PrimIDs.CONVERT_ELEMENT_TYPE:
        return False
    source, result = leaves[0].args[0], leaves[0].output
    both = isinstance(source, TensorProxy) and isinstance(result, TensorProxy)
    return both and source.dtype.bytes < result.dtype.bytes


def _results(bsym: BoundSymbol) -> Iterator[str]:
    return (out.name for out in makes(bsym))


def _again(
    trace: TraceCtx, reading: Reading, casts: dict[str, BoundSymbol]
) -> Iterator[BoundSymbol]:
    """The bound symbols, with a copy of a cast in front of its first reader in each other run."""
    swaps: dict[Variable, Proxy] = {}
    made: set[str] = set()  # by this run
    last = -1
    for bsym, run in zip(reading.bsyms, reading.runs, strict=True):
        if run != last:
            last, swaps, made = run, {}, set()
        made.update(_results(bsym))
        for arg in reads(bsym):
            cast = casts.get(arg.name)
            if cast is None or arg.name in made or is_backward(cast) != is_backward(bsym):
                continue
            made.add(arg.name)
            with tracectx(trace):
                swaps[variableify(arg)] = arg.replace_name(f"{arg.name}w", disambiguate=True)
            yield cast.from_bsym_swap_proxies(swaps)
        yield bsym.from_bsym_swap_proxies(swaps, skip_output=True) if swaps else bsym
