# SPDX-License-Identifier: Apache-2.0
"""A trace -> the same, whose backward reads copies of what the forward has overwritten.

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

from collections.abc import Iterator, Sequence

from thunder.core import prims
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.trace import tracectx

from thunder_fuser.trace.memory import one_memory
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.sharing import overwritten


def save_before_writes(prepared: Prepared) -> Prepared:
    """The trace itself where the backward reads nothing that was overwritten."""
    if not any(True for op in prepared.ops for _ in overwritten(op.bsym)):
        return prepared
    return prepared.with_ops(_Copier(prepared).ops())


class _Copier:
    def __init__(self, prepared: Prepared) -> None:
        self.trace, self.rules, self.all = prepared.trace, prepared.rules, prepared.ops
        self.memory = one_memory([op for op in self.all if not op.is_backward])
        self.read = {p.name for op in self.all if op.in_backward for p in op.reads}
        self.swaps: dict[Variable, Proxy] = {}
        self.fenced: dict[Variable, Proxy] = {}  # what the write at hand writes to

    def ops(self) -> Iterator[Op]:
        before: dict[str, list[TensorProxy]] = {}  # tensors the backward reads, by their memory
        for op in self.all:
            if op.in_backward:
                yield self._swapped(op, self.swaps)
                continue
            targets = [*overwritten(op.bsym)]
            stale = [p for target in targets for p in before.pop(self._place(target), ())]
            if stale:
                yield from self._copied(targets, stale)
                op = self._swapped(op, self.fenced)
            yield op
            for out in op.makes:
                if out.name in self.read and isinstance(out, TensorProxy):
                    before.setdefault(self._place(out), []).append(out)

    def _swapped(self, op: Op, swaps: dict[Variable, Proxy]) -> Op:
        swapped = op.bsym.from_bsym_swap_proxies(swaps, skip_output=True)
        return self.rules.rewritten(op, swapped)

    def _place(self, proxy: Proxy) -> str:
        return self.memory.find(proxy.name)

    def _copied(self, targets: Sequence[Proxy], stale: Sequence[TensorProxy]) -> Iterator[Op]:
        """Copies of what is about to be overwritten, and the fence before that."""
        copies = [self._renamed(proxy) for proxy in stale]
        for proxy, copy in zip(stale, copies, strict=True):
            yield self.rules.op(prims.clone.bind(proxy, output=copy))
        given = (*targets, *copies)
        results = tuple(map(self._renamed, given))
        yield self.rules.op(prims.update_aliases.bind(given, output=results))
        self.fenced = dict(zip(map(variableify, targets), results, strict=False))
        saved = results[len(targets):]
        self.swaps.update(zip(map(variableify, stale), saved, strict=True))

    def _renamed(self, proxy: Proxy) -> Proxy:
        with tracectx(self.trace):
            return proxy.replace_name(f"{proxy.name}c", disambiguate=True)
