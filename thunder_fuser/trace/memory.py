# SPDX-License-Identifier: Apache-2.0
"""In-place writes: the tensors that they reach, and two passes that keep eager's meaning.

    v = reshape(x); t = copy_(a, v)  ->  written: v, t, x;  one memory: x, v, t
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder.core import prims
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify

from thunder_fuser.trace.op import Op, Reject
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import COPIES, FENCES, MOVES, Names, overwritten
from thunder_fuser.union_find import UnionFind

_WRITTEN_LATER = Reject("a view of a tensor that is written in place")


def one_memory(ops: Sequence[Op], *, fences_apart: bool = False) -> dict[str, str]:
    """For each tensor that may share memory with others, one name for all of them.

    fences_apart: the tensors of one fence share memory only with their own new names.
    """
    same: UnionFind[str] = UnionFind()
    groups: list[Names] = []
    for op in ops:
        if fences_apart and op.only(FENCES):
            groups += zip(op.read_names, op.made_names, strict=True)
        else:
            groups += filter(None, (*op.writes, *op.shares))
    for first, *others in groups:
        for name in others:
            same.join(first, name)
    return {name: same.find(name) for group in groups for name in group}


def replaces(source: Proxy, target: Proxy) -> bool:
    """True if a copy of one into the other replaces all of it and changes no element."""
    both = isinstance(source, TensorProxy) and isinstance(target, TensorProxy)
    return both and (source._shape, source.dtype, source.device) == (
        target._shape, target.dtype, target.device
    )  # fmt: skip


def written_in_place(ops: Sequence[Op]) -> set[str]:
    """The tensors that are written in place, and those that may share their memory.

    t2 = copy_(t1, x)  ->  x and t2, and the views of both; not t1, which is only read
    """
    names = {name for op in ops for group in op.writes for name in group}
    memory = one_memory(ops) if names else {}
    written = {memory[name] for name in names}
    return {name for name, place in memory.items() if place in written}


def leave_written_views(prepared: Prepared) -> Prepared:
    """Leaves the views of a tensor that is written in place to torch.

    v = reshape(x)       v = reshape(x), refused: the write must reach x
    t = copy_(a, v)  ->  t = copy_(a, v)
    """
    later = _written_later(prepared.ops)
    if not later:
        return prepared
    return prepared.with_ops(
        prepared.rules.known(op.bsym, _WRITTEN_LATER)
        if op.is_fusible and op.makes_any(later) and op.only(MOVES) else op
        for op in prepared.ops
    )  # fmt: skip


def _written_later(ops: Sequence[Op]) -> set[str]:
    """Names whose memory is written through them, or through a view of them."""
    names: set[str] = set()
    for op in reversed(ops):
        if op.bsym.sym.id in FENCES:
            names.update(op.read_names)
        elif op.bsym.sym.id in COPIES:
            names.add(op.read_names[1])
        elif op.makes_any(names) and op.only(MOVES):
            names.update(op.read_names)
    return names


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
        self.memory = one_memory([op for op in self.all if not op.is_backward])
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
        return self.memory.get(proxy.name, proxy.name)

    def _copied(self, targets: Sequence[Proxy], stale: Sequence[TensorProxy]) -> Iterator[Op]:
        """Copies of the values about to be overwritten, and the fence before the write."""
        copies = [self.prepared.renamed(proxy, "c") for proxy in stale]
        for proxy, copy in zip(stale, copies, strict=True):
            yield self.rules.op(prims.clone.bind(proxy, output=copy))
        given = (*targets, *copies)
        results = tuple(self.prepared.renamed(proxy, "c") for proxy in given)
        yield self.rules.op(prims.update_aliases.bind(given, output=results))
        self.fenced = dict(zip(map(variableify, targets), results, strict=False))
        saved = results[len(targets):]
        self.swaps.update(zip(map(variableify, stale), saved, strict=True))
