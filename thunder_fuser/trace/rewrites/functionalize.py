# SPDX-License-Identifier: Apache-2.0
"""In-place writes into memory that only the trace sees -> plain names of the written values.

    t2 = linear(x, w)                      t2 = linear(x, w)
    (t3,) = update_aliases((t2,))
    t4 = relu(t3)                    ->    t4 = relu(t2)
    t5 = copy_(t4, t3)
    (t6,) = update_aliases((t5,))
    t7 = mul(t6, 2.0)                      t7 = mul(t4, 2.0)

So relu(inplace=True) is fused like relu, and so is silu(inplace=True), which is one symbol with a
copy inside. A memory qualifies if one op of the trace made it, if each write replaces all of it by
a value of its type, and if no view from before a write is read after it. Arguments do not qualify:
the caller sees writes to them. Nor does a result to which another one is copied. Two more passes
keep eager's meaning of the writes that stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from thunder.core import prims
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import has_tags

from thunder_fuser.trace.dataflow import DataFlow, with_what_they_read
from thunder_fuser.trace.op import Op, Reject
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import COPIES, FENCES, MOVES, overwritten, renamed_by, replaces

_BY_NAME = frozenset({PrimIDs.RETURN, PrimIDs.GET_GRAD})  # what they read keeps its name
_WRITTEN_LATER = Reject("a view of a tensor that is written in place")


def functionalize(prepared: Prepared) -> Prepared:
    """Replaces in-place writes to memory that only the trace sees by the values written."""
    if not any(op.kinds & COPIES for op in prepared.ops):
        return prepared
    split = [_parts(prepared, op) for op in prepared.ops]
    values = _NameValues([*chain.from_iterable(split)]).of_names
    if not values:
        return prepared
    ops = [
        part
        for op, parts in zip(prepared.ops, split, strict=True)
        for part in (parts if any(p.name in values for p in overwritten(op.bsym)) else (op,))
    ]
    ops = [*_replaced(prepared, ops, values)]
    # Thunder would save the operands of what nothing reads now, for a backward without a place.
    stay = [
        at for at, op in enumerate(ops)
        if not op.reads or not op.makes or has_tags(op.bsym, {OpTags.DONT_DCE})
    ]  # fmt: skip
    live = with_what_they_read(ops, range(len(ops)), stay)
    return prepared.with_ops(ops[at] for at in sorted(live))


def _parts(prepared: Prepared, op: Op) -> tuple[Op, ...]:
    """t2 = silu(t1, inplace=True)  ->  t3 = ...; t2 = copy_(t3, t1)   if the rest can be fused."""
    if not op.kinds & COPIES or op.only(COPIES):
        return (op,)
    parts = [
        part for bsym in op.bsym.subsymbols
        for part in _parts(prepared, prepared.rules.op(bsym.from_bsym(tags=op.bsym.tags)))
    ]  # fmt: skip
    can = parts and all(part.is_fusible or part.only(COPIES) for part in parts)
    return tuple(parts) if can else (op,)


@dataclass(frozen=True, slots=True)
class _MemoryName:
    """A name of a memory that is written in place.

    value: a value with the same contents that nothing writes in place. before, seen: the number of
    writes before the value was made, and before the name was made; they differ for a view that a
    write has changed.
    """

    memory: str
    value: Proxy
    before: int
    seen: int
    is_view: bool = False


class _NameValues:
    """The values of the names of each memory that qualifies: `of_names`."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._memory = DataFlow(ops).memory_behind_fences
        computed = {
            name for op in ops if op.reads or op.is_fusible
            for name in {*op.made_names} - {*op.read_names}
        }  # fmt: skip
        of_inputs = {self._at(n) for op in ops for n in op.read_names if n not in computed}
        self._writes = {self._at(p.name): 0 for op in ops for p in overwritten(op.bsym)}
        self._unwritten = {
            name for name in computed
            if self._at(name) not in of_inputs and self._at(name) not in self._writes
        }  # fmt: skip
        self._returned = {self._at(name) for op in ops if op.is_return for name in op.read_names}
        self._unfit = of_inputs
        self._new: set[str] = set()
        self._names: dict[str, _MemoryName] = {}
        for op in ops:
            if op.only(FENCES):
                self._fence(op)
            elif op.only(COPIES):
                self._copy(op)
            else:
                self._read(op)
                self._make(op)
        names = self._names.items()
        self.of_names = {at: name.value for at, name in names if name.memory not in self._unfit}

    def _at(self, name: str) -> str:
        return self._memory.of(name)

    def _fence(self, op: Op) -> None:
        for old, new in zip(op.reads, op.makes, strict=True):
            if (name := self._names.get(old.name)) is not None:
                if not name.is_view:
                    self._expect_newest(name)
                self._names[new.name] = replace(name, seen=self._writes[name.memory])

    def _copy(self, op: Op) -> None:
        ((source, out),), (target,) = renamed_by(op.bsym), overwritten(op.bsym)
        memory, name = self._at(target.name), self._names.get(target.name)
        fits = name is not None and not name.is_view and source.name in self._unwritten
        if memory in self._returned:
            fits = fits and self._at(source.name) not in self._returned
            self._returned.add(self._at(source.name))
        if not (fits and replaces(source, target)):
            self._unfit.add(memory)
        count = self._writes[memory] = self._writes[memory] + 1
        self._names[out.name] = _MemoryName(memory, source, count, count)

    def _read(self, op: Op) -> None:
        """A memory with reads of outdated names is unfit; the backward may read older values."""
        for proxy in op.reads:
            if (name := self._names.get(proxy.name)) is not None:
                if not op.in_backward:
                    self._expect_newest(name)
                if name.before != name.seen:
                    self._unfit.add(name.memory)
        self._unfit.update(self._at(proxy.name) for proxy in overwritten(op.bsym))

    def _expect_newest(self, name: _MemoryName) -> None:
        if name.seen != self._writes[name.memory]:
            self._unfit.add(name.memory)

    def _make(self, op: Op) -> None:
        """A result that shares the memory of an operand is a view of it; else it is new memory."""
        for proxy in op.makes:
            memory = self._at(proxy.name)
            if memory not in self._writes or proxy.name in op.read_names:
                continue
            read = [self._names[name] for name in op.read_names if name in self._names]
            seen = [name.seen for name in read if name.memory == memory]
            if not seen and memory in self._new:
                self._unfit.add(memory)
            self._new.add(memory)
            at = max(seen, default=0)
            self._names[proxy.name] = _MemoryName(memory, proxy, at, at, is_view=bool(seen))


def _replaced(prepared: Prepared, ops: Sequence[Op], values: dict[str, Proxy]) -> Iterator[Op]:
    """The ops, reading these values instead of the names. A name that must stay becomes a view."""
    by_name = {name for op in ops if op.kinds & _BY_NAME for name in op.read_names}
    swaps: dict[Variable, Proxy] = {}
    for op in ops:
        if not op.only(COPIES | FENCES):
            yield op if op.kinds & _BY_NAME else prepared.rules.reading(op, swaps)
            continue
        # The copy or fence stays, less the results that have values; nothing if all have.
        left = [at for at, out in enumerate(op.makes) if out.name not in values]
        if len(left) == len(op.makes):
            yield prepared.rules.reading(op, swaps)
        elif left:
            operands, results = (tuple(all[at] for at in left) for all in (op.reads, op.makes))
            fence = op.bsym.from_bsym(args=(operands,), output=results)
            yield prepared.rules.reading(prepared.rules.op(fence), swaps)
        for out in op.makes:
            if out.name in values:
                swaps[variableify(out)] = value = values[out.name]
                if out.name in by_name:
                    view = prims.shallow_copy.bind(value, output=out)
                    yield prepared.rules.op(view.from_bsym(tags=op.bsym.tags))


# --------------------------------------------------------------------------------- writes that stay


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
