# SPDX-License-Identifier: Apache-2.0
"""A joint trace -> the same, whose backward reads copies of what the forward has overwritten.

    y = mul(h, g)                     y = mul(h, g)
    t = copy_(y, h)                   c = clone(h)
    ...                         ->    h2, c2 = update_aliases((h, c))
    d = mul(gradient, h)              t = copy_(y, h2)
                                      ...
                                      d = mul(gradient, c2)

Names are values: the backward means what h was when it was computed with. Eager torch makes this
copy too. It is made of all that shares its memory with what is written. The fence binds the copy to
the forward: Thunder lets the backward make what only the backward reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from thunder.core import prims
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace, tracectx

from thunder_fuser.rematerialization.apply import is_backward
from thunder_fuser.rematerialization.proxies import makes, reads
from thunder_fuser.rematerialization.sharing import one_memory, overwritten


def copied_before_writes(trace: TraceCtx) -> TraceCtx:
    """The trace itself where the backward reads nothing that was overwritten."""
    bsyms = trace.bound_symbols
    if not any(True for bsym in bsyms for _ in overwritten(bsym)):
        return trace
    new = from_trace(trace)
    new.bound_symbols = [*_Copier(new, bsyms).bsyms()]
    return new


class _Copier:
    def __init__(self, trace: TraceCtx, bsyms: list[BoundSymbol]) -> None:
        self.trace, self.all = trace, bsyms
        self.memory = one_memory([bsym for bsym in bsyms if not is_backward(bsym)])
        self.read = {p.name for bsym in bsyms if _reads(bsym) for p in reads(bsym)}
        self.swaps: dict[Variable, Proxy] = {}
        self.fenced: dict[Variable, Proxy] = {}  # what the write at hand writes to

    def bsyms(self) -> Iterator[BoundSymbol]:
        before: dict[str, list[TensorProxy]] = {}  # tensors the backward reads, by their memory
        for bsym in self.all:
            if _reads(bsym):
                yield bsym.from_bsym_swap_proxies(self.swaps, skip_output=True)
                continue
            targets = [*overwritten(bsym)]
            stale = [p for target in targets for p in before.pop(self._place(target), ())]
            if stale:
                yield from self._kept(targets, stale)
                bsym = bsym.from_bsym_swap_proxies(self.fenced, skip_output=True)
            yield bsym
            for out in makes(bsym):
                if out.name in self.read and isinstance(out, TensorProxy):
                    before.setdefault(self._place(out), []).append(out)

    def _place(self, proxy: Proxy) -> str:
        return self.memory.get(proxy.name, proxy.name)

    def _kept(self, targets: list[Proxy], stale: list[TensorProxy]) -> Iterator[BoundSymbol]:
        """Copies of what is about to be overwritten, and the fence before that is."""
        copies = [self._renamed(proxy) for proxy in stale]
        for proxy, copy in zip(stale, copies, strict=True):
            yield prims.clone.bind(proxy, output=copy)
        given = (*targets, *copies)
        results = tuple(map(self._renamed, given))
        yield prims.update_aliases.bind(given, output=results)
        self.fenced = dict(zip(map(variableify, targets), results, strict=False))
        kept = results[len(targets):]
        self.swaps.update(zip(map(variableify, stale), kept, strict=True))

    def _renamed(self, proxy: Proxy) -> Proxy:
        with tracectx(self.trace):
            return proxy.replace_name(f"{proxy.name}c", disambiguate=True)


def _reads(bsym: BoundSymbol) -> bool:
    """True for an op of the backward; get_grad only names a value of the forward."""
    return is_backward(bsym) and bsym.sym.id is not prims.PrimIDs.GET_GRAD
