# SPDX-License-Identifier: Apache-2.0
"""`Plan`, which each pass over the regions of a trace takes and returns.

A region says what is computed; the memory plan says, by the region's number, what memory that reads
and writes, and in which order its results lie there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, ProxyTag
from thunder.core.trace import TraceCtx

from thunder_fuser.base.threads import cached_property
from thunder_fuser.errors import VerifyError
from thunder_fuser.executors.regions.region import Item, Region, made_by, read_by
from thunder_fuser.multi_device import LowerParams
from thunder_fuser.trace.dataflow import DataFlow
from thunder_fuser.trace.prepared import type_of
from thunder_fuser.trace.proxies import COLLECTIVES

Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """An input that a region writes in place. target: its name.

    value: the name of the last written value; names: the outputs that alias the input after the
    write; is_checked: the write raises for a leaf of autograd that requires a gradient.
    """

    target: str
    value: str
    names: frozenset[str]
    is_checked: bool


@dataclass(frozen=True, slots=True)
class RegionMemory:
    """What a region does to memory.

    donated: inputs that results may be written over; donated_if_freed: those that autograd kept,
    which results may overwrite if autograd is about to free them. row_major: outputs that are
    row-major for inputs in any order. hidden: the outputs whose strides the user never sees, each
    with the stride order that its readers wish for, or (). writes: the inputs written in place.
    """

    donated: tuple[str, ...] = ()
    donated_if_freed: tuple[str, ...] = ()
    row_major: tuple[str, ...] = ()
    hidden: Mapping[str, Order] = field(default_factory=dict)
    writes: tuple[Write, ...] = ()


NO_MEMORY = RegionMemory()


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of each region, by its number. visible: the values whose strides the user sees."""

    regions: Mapping[int, RegionMemory] = field(default_factory=dict)
    visible: frozenset[str] = frozenset()

    def of(self, item: Item) -> RegionMemory:
        """The memory of a region; nothing for what torch runs."""
        return self.regions.get(item.number, NO_MEMORY) if isinstance(item, Region) else NO_MEMORY



@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the passes over regions may do.

    donation: results may overwrite arguments. joins_writes: regions may write arguments. in_graphs:
    only parameters and buffers, which stay where they are, since a call that writes another
    argument is in no CUDA graph. checks_reads: a read of a tensor by the name that it had before a
    write is refused. prefix: begins the names of fusions. executor: owns the symbols of new calls.
    """

    donation: bool
    joins_writes: bool
    in_graphs: bool
    checks_reads: bool
    prefix: str
    lower: LowerParams
    executor: Any


@dataclass(frozen=True)
class Plan:
    """A claimed trace between two passes.

    trace: it gives new values their names. flow: answers about the ops that were claimed. items:
    regions, and the bound symbols that torch runs, in order.
    """

    trace: TraceCtx
    flow: DataFlow
    items: tuple[Item, ...]
    options: PlanOptions
    memory: MemoryPlan = field(default_factory=MemoryPlan)

    def with_items(self, items: Iterable[Item], memory: MemoryPlan | None = None) -> Plan:
        return replace(self, items=tuple(items), memory=self.memory if memory is None else memory)

    def noting(self, facts: Mapping[int, Mapping[str, Any]]) -> Plan:
        """The plan with facts about memory: {a region's number: {a field: its value}}."""
        regions = {**self.memory.regions}
        for number, fields in facts.items():
            regions[number] = replace(regions.get(number, NO_MEMORY), **fields)
        return replace(self, memory=replace(self.memory, regions=regions)) if facts else self

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(item for item in self.items if isinstance(item, Region))

    @cached_property
    def makers(self) -> dict[str, int]:
        """{value: the place of the item that makes it}"""
        return {proxy.name: at for at, item in enumerate(self.items) for proxy in made_by(item)}

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """{value: the places of the items that read it, in order}"""
        readers: dict[str, list[int]] = {}
        for at, item in enumerate(self.items):
            for name in dict.fromkeys(proxy.name for proxy in read_by(item)):
                readers.setdefault(name, []).append(at)
        return readers

    def may_write(self, name: str) -> bool:
        """True if a region may write the memory of a value."""
        return not self.options.in_graphs or self.flow.memory_behind_fences.of(name) in self._static

    @cached_property
    def _static(self) -> frozenset[str]:
        of, static = self.flow.memory_behind_fences.of, ProxyTag.STATIC_MEMORY_LOCATION
        args = (arg for arg in self.trace.args or () if isinstance(arg, Proxy))
        return frozenset(of(arg.name) for arg in args if static in arg.tags)

    @property
    def has_collectives(self) -> bool:
        """True if Thunder will move calls, to overlap these with collectives."""
        return any(not COLLECTIVES.isdisjoint(op.kinds) for op in self.flow.ops)

    @property
    def returned(self) -> list[Proxy]:
        """What the trace returns."""
        return [
            proxy for item in self.items
            if not isinstance(item, Region) and item.sym.id is PrimIDs.RETURN
            for proxy in read_by(item)
        ]  # fmt: skip

    def verify(self, name: str, before: Plan) -> None:
        """VerifyError unless values are made before they are read, as many are returned as before,
        and the memory plan names only operands and results of its regions."""
        known = before.makers.keys()
        ready: set[str] = set()
        for item in self.items:
            for proxy in read_by(item):
                if proxy.name not in ready and (proxy.name in self.makers or proxy.name in known):
                    _refuse(name, proxy.name, "made before it is read")
            ready.update(proxy.name for proxy in made_by(item))
        if [*map(type_of, before.returned)] != [*map(type_of, self.returned)]:
            _refuse(name, "the result", "returned as before")
        for region in self.regions:
            if region.makes_views:  # of these a pass may leave a part, with the number of all
                continue
            memory = self.memory.of(region)
            targets = {write.target for write in memory.writes}
            written = {*memory.donated, *memory.donated_if_freed, *targets}
            for value in written - {proxy.name for proxy in region.inputs}:
                _refuse(name, value, "an input of the region that writes over it")
            ordered = {*memory.row_major, *memory.hidden}
            for value in ordered - {proxy.name for proxy in region.outputs}:
                _refuse(name, value, "an output of the region that has a stride order of it")


def _refuse(name: str, value: str, expected: str) -> None:
    raise VerifyError(f"{value} after the region pass {name}", expected=expected)
