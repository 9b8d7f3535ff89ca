# SPDX-License-Identifier: Apache-2.0
"""A trace -> the same, in which a cast to a wider type is recomputed in each region that reads it.

    m = lt(u, 0.9)                m = lt(u, 0.9)          1 byte an element: stored
    f = convert(m, f32)           f = convert(m, f32)     4 bytes: stored no more
    a = mul(x, f)                 a = mul(x, f)
    b = matmul(a, a)         ->   b = matmul(a, a)
                                  fw = convert(m, f32)
    y = mul(b, f)                 y = mul(b, fw)

What one region reads of another is written and read again. A cast is stored in any case, and stays
one, if torch or the caller reads it or a view of it. What the backward reads of the forward is left
to rematerialization.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from thunder.core.proxies import Proxy, Variable, variableify
from thunder.core.trace import tracectx

from thunder_fuser.trace.memory import written_in_place
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared


def recompute_casts(prepared: Prepared) -> Prepared:
    """The trace itself where no such cast crosses."""
    ops = prepared.ops
    casts = _casts(ops)
    crossing = {
        proxy.name: casts[proxy.name]
        for op in ops for proxy in op.reads
        if proxy.name in casts and _crosses(casts[proxy.name], op)
    }  # fmt: skip
    return prepared.with_ops(_repeated(prepared, crossing)) if crossing else prepared


def _crosses(cast: Op, reader: Op) -> bool:
    return cast.region != reader.region and cast.is_backward == reader.is_backward


def _casts(ops: Sequence[Op]) -> dict[str, Op]:
    """Casts to wider types that nothing but fusible ops read, by the names of their results."""
    found = {op.makes[0].name: op for op in ops if op.is_fusible and op.widens}
    if not found:
        return found
    written = written_in_place(ops)
    stored = written | _read_by_torch(ops)
    return {
        name: op for name, op in found.items()
        if name not in stored and op.reads[0].name not in written
    }  # fmt: skip


def _read_by_torch(ops: Sequence[Op]) -> set[str]:
    """What others than fusible ops read, itself or a view of it."""
    names: set[str] = set()
    for op in reversed(ops):
        if not op.is_fusible or (op.is_view and op.makes_any(names)):
            names.update(proxy.name for proxy in op.reads)
    return names


def _repeated(prepared: Prepared, casts: Mapping[str, Op]) -> Iterator[Op]:
    """The ops, with a copy of a cast in front of its first reader in each other region."""
    rules = prepared.rules
    swaps: dict[Variable, Proxy] = {}
    made: set[str] = set()  # in this region
    last: int | None = -1
    for op in prepared.ops:
        if op.region is None or op.region != last:
            last, swaps, made = op.region, {}, set()
        made.update(out.name for out in op.makes)
        for proxy in op.reads:
            cast = casts.get(proxy.name)
            if cast is None or proxy.name in made or cast.is_backward != op.is_backward:
                continue
            made.add(proxy.name)
            with tracectx(prepared.trace):
                swaps[variableify(proxy)] = proxy.replace_name(
                    f"{proxy.name}w", disambiguate=True
                )
            yield rules.fused(cast.bsym.from_bsym_swap_proxies(swaps), op.region)
        swapped = op.bsym.from_bsym_swap_proxies(swaps, skip_output=True) if swaps else op.bsym
        yield rules.rewritten(op, swapped)
