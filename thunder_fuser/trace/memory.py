# SPDX-License-Identifier: Apache-2.0
"""In-place writes: two passes over a trace that keep eager's meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder.core import prims
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify

from thunder_fuser.trace.op import Op, Reject
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import COPIES, FENCES, MOVES, overwritten

_WRITTEN_LATER = Reject("a view of a tensor that is written in place")


def leave_written_views(prepared: Prepared) -> Prepared:
    """Leaves the views of a tensor that is written in place to torch.

    v = reshape(x)       v = reshape(x), refused: the write must reach x
    t = copy_(a, v)  ->  t = copy_(a, v)
    """
    later: set[str] = set()  # names whose memory is written through them, or through their views
    for op in reversed(prepared.ops):
        if op.bsym.sym.id in FENCES:
            later.update(op.read_names)
        elif op.bsym.sym.id in COPIES:
            later.add(op.read_names[1])
        elif op.makes_any(later) and op.only(MOVES):
            later.update(op.read_names)
    if not later:
        return prepared
    return prepared.with_ops(
        prepared.rules.known(op.bsym, _WRITTEN_LATER)
        if op.is_fusible and op.makes_any(later) and op.only(MOVES) else op
        for op in prepared.ops
    )  # fmt: skip


def save_before_writes(prepared: Prepared) -> Prepared:
    """Lets the backward read copies of what the forward has overwritten.

        y = mul(h, g)                     y = mul(h, g)
        t = copy_(y, h)                   c = clone(h)
        ...                         ->    h2, c2 = update_aliases((h, c))
        d = mul(gradient, h)              t = copy_(y, h2)
                                          ...
                                          d = mul(gradient, c2)

    A name in a trace stands for a value: the backward means the h that the forward computed with.
    Eager torch makes this copy too. The pass copies each value that the backward reads and that
    shares memory with the written tensor. The fence keeps the copy in the forward: without it,
    Thunder would move the copy to the backward, because only the backward reads it.
    """
    if not any(True for op in prepared.ops for _ in overwritten(op.bsym)):
        return prepared
    return prepared.with_ops(_Copier(prepared).ops())


class _Copier:
    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.rules, self.all = prepared, prepared.rules, prepared.ops
        self.memory = prepared.flow.of_forward.memory
        self.read = {name for op in self.all if op.in_backward for name in op.read_names}
        self.swaps: dict[Variable, Proxy] = {}
        self.fenced: dict[Variable, Proxy] = {}  # new names of the targets of the present write

    def ops(self) -> Iterator[Op]:
        before: dict[str, list[TensorProxy]] = {}  # tensors the backward reads, by their memory
        for op in self.all:
            if op.in_backward:
                yield self.rules.reading(op, self.swaps)
                continue
            targets = [*overwritten(op.bsym)]
            stale = [p for target in targets for p in before.pop(self._place(target), ())]
            if stale:
                yield from self._copied(targets, stale)
                op = self.rules.reading(op, self.fenced)
            yield op
            for out in op.makes:
                if out.name in self.read and isinstance(out, TensorProxy):
                    before.setdefault(self._place(out), []).append(out)

    def _place(self, proxy: Proxy) -> str:
        return self.memory.of(proxy.name)

    def _copied(self, targets: Sequence[Proxy], stale: Sequence[TensorProxy]) -> Iterator[Op]:
        """Copies of the values about to be overwritten, and the fence before the write."""
        copies = [self.prepared.renamed(proxy, "c") for proxy in stale]
        for proxy, copy in zip(stale, copies, strict=True):
            yield self.rules.op(prims.clone.bind(proxy, output=copy))
        fenced = (*targets, *copies)
        results = tuple(self.prepared.renamed(proxy, "c") for proxy in fenced)
        yield self.rules.op(prims.update_aliases.bind(fenced, output=results))
        self.fenced = dict(zip(map(variableify, targets), results, strict=False))
        saved = results[len(targets):]
        self.swaps.update(zip(map(variableify, stale), saved, strict=True))
