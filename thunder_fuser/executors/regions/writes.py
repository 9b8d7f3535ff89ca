# SPDX-License-Identifier: Apache-2.0
"""In-place writes: to a part of a tensor by one call; between regions a check, and both joined.

    t9 = index_copy(t8, 1, i, k)     all of t8 is copied         t10 = index_copy_(t8, 1, i, k)
    t10 = copy_(t9, t8)              and copied back       ->

So an update of a key-value cache moves only the written bytes, not four times the whole cache.

    [t1] = Region(mul(p, 0.9));  t2 = copy_(t1, p)
    [t3] = Region(add(t2, g));   t4 = copy_(t3, t2)      ->    [t4] = Region(mul, copy_, add, copy_)

So a step of an optimizer is one kernel that writes its arguments, and a batch norm one region that
writes its running statistics. The region computes everything from the inputs' old contents, and
writes each argument once, at the end. Its ops one by one would do the same, unless a written
argument shares memory with another input. Each call checks that (host/call/dispatch.py), and
torch then runs the ops one by one.

An argument qualifies if the trace has no view of it. Its writes must replace all of it. Between the
regions of one group stand only such writes, fences, and views of what the group does not make. The
views go before the region. Nothing is joined that is not apart for the sake of a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.extend import OperatorExecutor
from thunder.torch.experimental.dtensor_proxy import is_dtensor_proxy

from thunder_fuser.errors import AliasError
from thunder_fuser.executors.regions.plan import MemoryPlan, Plan, RegionMemory, Write
from thunder_fuser.executors.regions.region import Item, Region, boundary, made_by, only, read_by
from thunder_fuser.trace.dataflow import DataFlow
from thunder_fuser.trace.op import MOST_OPS
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import (
    COPIES,
    FENCES,
    RENAMES,
    VIEWS,
    makes,
    overwritten,
    parts,
    reads,
    renamed_by,
    replaces,
)

IN_PLACE = OperatorExecutor("thunder_fuser_in_place")


def refuse_stale_reads(plan: Plan) -> Plan:
    """Raises AliasError if a region reads a tensor by its old name after an in-place write.

    Thunder gives a written tensor a new name, and a region must read the contents that the name
    stands for: by the old name it would read the new contents. Thunder's own check looks only at
    fusions called nvFusion.
    """
    if not plan.options.checks_reads:
        return plan
    written: dict[str, BoundSymbol] = {}
    count = 0
    for item in plan.items:
        if isinstance(item, Region):
            name = "a view" if item.makes_views else f"{plan.options.prefix}{count}"
            for proxy in item.inputs:
                if (copy := written.get(proxy.name)) is not None:
                    operands = ", ".join(operand.name for operand in reads(copy))
                    call = f"{makes(copy)[0].name} = {copy.sym.name}({operands})"
                    raise AliasError(
                        f"{name} reads {proxy.name} after {call} has written it",
                        expected="the value that was written",
                        got=f"{proxy.name}, the tensor written to",
                        do="use the result of the in-place op, or set"
                        " disable_inplace_copy_check=True",
                    )
            count += not item.makes_views
        else:
            written |= {proxy.name: item for proxy in overwritten(item)}
    return plan


def join_across_writes(plan: Plan) -> Plan:
    """Joins regions and the in-place writes between them to one region that writes."""
    fits = plan.options.joins_writes and not plan.has_collectives
    arguments = _arguments(plan) if fits else frozenset()
    if not arguments:
        return plan
    last = {name: places[-1] for name, places in plan.readers.items()}
    items: list[Item] = []
    memory: dict[int, RegionMemory] = {**plan.memory.regions}

    def close(group: _Group) -> _Group:
        after, joined = group.items(plan.memory)
        items.extend(after)
        memory.update(joined)
        return _Group(arguments, last)

    group = _Group(arguments, last)
    for at, item in enumerate(plan.items):
        if not group.takes(at, item):
            group = close(group)
            if not group.takes(at, item):
                items.append(item)
    close(group)
    return plan.with_items(items, replace(plan.memory, regions=memory))


def _arguments(plan: Plan) -> frozenset[str]:
    """The names of the written arguments that have no views outside of regions."""
    items, memory = plan.items, plan.flow.memory_behind_fences
    written = {memory.of(name) for op in plan.flow.ops for group in op.writes for name in group}
    computed = (item for item in items if isinstance(item, Region) or read_by(item))  # else given
    makers = {proxy.name: item for item in computed for proxy in made_by(item)}
    renamed = {
        name
        for name, item in makers.items()
        if not isinstance(item, Region) and only(item, RENAMES)
    }
    names_of: dict[str, set[str]] = {}
    for name in plan.readers.keys() | makers.keys():
        if (place := memory.of(name)) in written:
            names_of.setdefault(place, set()).add(name)
    fit = (n for n in names_of.values() if len(n - makers.keys()) == 1 and plan.may_write(min(n)))
    return frozenset(name for names in fit if names & makers.keys() <= renamed for name in names)


class _Group:
    """The items of one group so far. `last`: the place of the last reader of each name."""

    def __init__(self, arguments: frozenset[str], last: Mapping[str, int]) -> None:
        self._arguments, self._last = arguments, last
        self._all: list[Item] = []
        self._inside: list[Region | BoundSymbol] = []
        self._views: list[Item] = []
        self._made: set[str] = set()
        self._end = -1

    def takes(self, at: int, item: Item) -> bool:
        """Adds the item if it may be part of the group; False if it may not."""
        if isinstance(item, Region):
            fits = self._takes_region(item)
        elif only(item, FENCES):
            fits = self._arguments.issuperset(proxy.name for proxy in reads(item))
        elif only(item, COPIES):
            source, target = reads(item)[0], reads(item)[-1]
            is_computed = source.name in self._made and source.name not in self._arguments
            fits = is_computed and target.name in self._arguments and replaces(source, target)
        elif self._inside and only(item, VIEWS):
            return self._takes_view(at, item)
        else:
            return False
        if fits:
            self._inside.append(item)
            self._take(at, item)
        return fits

    def _take(self, at: int, item: Item) -> None:
        self._all.append(item)
        self._made.update(proxy.name for proxy in made_by(item))
        self._end = at

    def _takes_region(self, region: Region) -> bool:
        """True unless the last item is a region too, or it moves only: partition kept it apart."""
        regions = [item for item in self._inside if isinstance(item, Region)]
        follows = bool(regions) and self._inside[-1] is regions[-1]
        if region.moves_only or region.is_backward or follows:
            return False
        places = {*map(_place, (*regions, region))}
        size = sum(len(each.leaves) for each in (*regions, region))
        return len(places) == 1 and None not in places and size <= MOST_OPS

    def _takes_view(self, at: int, view: BoundSymbol) -> bool:
        names = {proxy.name for proxy in reads(view)}
        # Where torch may have to copy, the view reads memory that the group may write.
        may_copy = any(
            [size for size in reads(part)[0]._shape if size != 1]
            != [size for size in makes(part)[0]._shape if size != 1]
            for part in parts(view)
            if part.sym.id is PrimIDs.RESHAPE
        )
        if names.isdisjoint(self._made | self._arguments) and not may_copy:
            self._views.append(view)
            self._all.append(view)
            return True
        if only(view, frozenset({PrimIDs.SHALLOW_COPY})) and names <= self._made - self._arguments:
            self._inside.append(view)
            self._take(at, view)
            return True
        return False

    def items(self, memory: MemoryPlan) -> tuple[list[Item], dict[int, RegionMemory]]:
        """The views, the region of all other items, and the fences behind it, with that region's
        memory; or all unchanged."""
        end = len(self._inside)  # fences may follow the last copy or region
        while end and not isinstance(item := self._inside[end - 1], Region):
            if only(item, COPIES):
                break
            end -= 1
        inside, behind = self._inside[:end], self._inside[end:]
        if not any(not isinstance(item, Region) and only(item, COPIES) for item in inside):
            return self._all, {}
        leaves = [
            leaf
            for item in inside
            for leaf in (item.leaves if isinstance(item, Region) else parts(item))
        ]
        # A leaf may repeat a view that torch makes before: the user gets torch's.
        results = {proxy.name for item in inside for proxy in made_by(item)}
        wanted = {name for name in results if self._last.get(name, -1) > self._end}
        wanted.update(proxy.name for item in behind for proxy in read_by(item))
        writes = _writes(leaves, self._arguments, wanted)
        if writes is None:
            return self._all, {}
        regions = [item for item in inside if isinstance(item, Region)]
        inputs, outputs = boundary(leaves, frozenset(wanted & results))
        whole = replace(
            regions[0], leaves=tuple(leaves), inputs=inputs, outputs=outputs,
            where=next(filter(None, (region.where for region in regions)), ""),
        )  # fmt: skip
        # None of them overwrites what autograd kept: only regions of a backward do.
        donated = (name for region in regions for name in memory.of(region).donated)
        row_major = (name for region in regions for name in memory.of(region).row_major)
        operands = {proxy.name for proxy in inputs}
        returned = {proxy.name for proxy in outputs}
        of_whole = RegionMemory(
            donated=tuple(name for name in donated if name in operands),
            row_major=tuple(name for name in row_major if name in returned),
            writes=writes,
        )
        return [*self._views, whole, *behind], {whole.number: of_whole}


def _place(region: Region) -> object:
    """The device of a region's tensors; None if it has several, or DTensors."""
    tensors = [p for p in (*region.inputs, *region.outputs) if isinstance(p, TensorProxy)]
    devices = {proxy.device for proxy in tensors}
    return devices.pop() if len(devices) == 1 and not any(map(is_dtensor_proxy, tensors)) else None


def _writes(
    leaves: Sequence[BoundSymbol], arguments: frozenset[str], wanted: Iterable[str]
) -> tuple[Write, ...] | None:
    """The writes of the primitives. None if a wanted name is not an argument's final contents."""
    target: dict[str, str] = {}
    newest: dict[str, set[str]] = {}
    value: dict[str, str] = {}
    checked: set[str] = set()
    for leaf in leaves:
        if leaf.sym.id in FENCES:
            for old, new in renamed_by(leaf):
                target[new.name] = target.get(old.name, old.name)
                newest.setdefault(target[new.name], set()).add(new.name)
        elif leaf.sym.id in COPIES:
            source, old = reads(leaf)[0], reads(leaf)[-1]
            name = target.get(old.name, old.name)
            (new,) = makes(leaf)
            target[new.name], value[name], newest[name] = name, source.name, {new.name}
            if leaf.kwargs.get("grad_enabled", True):
                checked.add(name)
    asked = {name for name in wanted if name in arguments}
    if not asked <= {name for argument in value for name in newest[argument]}:
        return None
    return tuple(
        Write(name, value[name], frozenset(newest[name]), name in checked) for name in value
    )


# --------------------------------------------------------------------- writes to a part of a tensor


def _of(name: str, function: Callable[..., Any]) -> Symbol:
    def write(a: torch.Tensor, *args: Any, grad_enabled: bool = True) -> torch.Tensor:
        if grad_enabled and a.is_leaf and a.requires_grad:
            raise RuntimeError(f"{name}: a leaf that requires grad cannot be written in place")
        function(a, *args)
        return a

    def result(a: TensorProxy, *args: Any, grad_enabled: bool = True) -> TensorProxy:
        return TensorProxy(like=a)

    return IN_PLACE.register_operator(name, meta=result, fn=write, tags=(OpTags.DONT_DCE,))


# {a symbol that copies its first operand and writes to the copy: one that writes to the operand}
_WRITES = {
    "copy_with_setitem_impl": _of("setitem_", torch.Tensor.__setitem__),
    "torch.index_copy": _of("index_copy_", torch.Tensor.index_copy_),
    "torch.index_add": _of("index_add_", torch.Tensor.index_add_),
    "torch.scatter_add": _of("scatter_add_", torch.Tensor.scatter_add_),
}


def write_in_place(prepared: Prepared) -> Prepared:
    """Writes a part of a tensor by one call, instead of copying the tensor there and back."""
    if not any(op.only(COPIES) for op in prepared.ops):
        return prepared
    calls = dict(_pairs(prepared.flow))
    if not calls:
        return prepared
    gone = {*calls.values()}
    return prepared.with_ops(
        prepared.rules.op(_written(prepared.ops[calls[at]].bsym, op.bsym)) if at in calls else op
        for at, op in enumerate(prepared.ops) if at not in gone
    )  # fmt: skip


def _pairs(flow: DataFlow) -> Iterator[tuple[int, int]]:
    """The place of each in-place copy that is the only reader of a call, and that call's place.

    The call may move to the copy if nothing is written in place between them, and if no other
    operand shares the memory of its first one: torch refuses to write what it also reads.
    """
    ops, users = flow.ops, flow.readers
    memory = flow.without(_WRITES).memory
    last_write = -1
    makers: dict[str, int] = {}
    for at, op in enumerate(ops):
        if op.only(COPIES):
            ((source, _),), (target,) = renamed_by(op.bsym), overwritten(op.bsym)
            call = makers.get(source.name, -1)
            if call > last_write and users[source.name] == [at]:
                first, *others = ops[call].read_names
                places = [memory.of(name) for name in (first, *others)]
                if first == target.name and places.count(places[0]) == 1:
                    yield at, call
        if op.kinds & COPIES:
            last_write = at
        elif op.bsym.sym.id in _WRITES:
            makers[op.makes[0].name] = at


def _written(call: BoundSymbol, copy: BoundSymbol) -> BoundSymbol:
    """One bound symbol for both, which are its parts."""
    enabled = copy.kwargs.get("grad_enabled", True)
    both = _WRITES[call.sym.id].bind(
        *call.args, grad_enabled=enabled, output=copy.output, subsymbols=(call, copy)
    )
    both.tags |= copy.tags
    both.header = call.header
    return both
