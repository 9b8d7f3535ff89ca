# SPDX-License-Identifier: Apache-2.0
"""Slices that torch would write into a tensor are stored there by the region that computes them.

    [t3] = Region(q, cos: mul);  t4 = reshape(t3);  t6 = index_copy_(t5, 2, position, t4)
    ->  [t6] = Region(q, cos, position, t5: mul, reshape, index_copy, copy_)

So a token's keys and values reach their cache without calls of their own. The write happens
earlier than in the trace. So nothing between may read or write that memory. Two arguments of a
trace may share memory, such as a buffer with two names. So what stands between may read only what
the trace computes. What the region itself reads is compared at each call (host/call/dispatch.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder.core.proxies import Proxy, TensorProxy, variableify
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.regions.plan import Plan, RegionMemory, Write
from thunder_fuser.executors.regions.region import Item, Region, boundary, made_by, only, read_by
from thunder_fuser.trace.op import MOST_OPS
from thunder_fuser.trace.proxies import FENCES, VIEWS, makes, parts, reads, renamed_by

INDEX_COPY = "index_copy_"  # the call that writes.py makes


def store_in_regions(plan: Plan) -> Plan:
    """Lets regions store the slices that they compute into tensors that are written in place."""
    if not plan.options.joins_writes or plan.has_collectives:
        return plan
    stores = _Stores(plan)
    for at, item in enumerate(plan.items):
        if not isinstance(item, Region) and item.sym.id == INDEX_COPY:
            stores.take(at, item)
    return stores.plan() if stores.gone else plan


@dataclass(frozen=True, slots=True)
class _Slices:
    """What computes slices: the place of the item, -1 for an argument, and the views behind it with
    their places, from the last to the first."""

    maker: int
    views: tuple[BoundSymbol, ...]
    places: tuple[int, ...]


class _Stores:
    """The regions that store so far, and the places of the items that they replace."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._memory = memory = plan.flow.memory_behind_fences
        args = (arg for arg in plan.trace.args or () if isinstance(arg, Proxy))
        self._given = {memory.of(arg.name) for arg in args}
        self._added: dict[int, list[BoundSymbol]] = {}
        self._writes: dict[int, list[Write]] = {}
        self.gone: set[int] = set()

    def take(self, at: int, write: BoundSymbol) -> None:
        """Lets the region that computes the slices store them, if it may."""
        target, index, source = reads(write)[:3]
        slices = self._computed_by(source)
        maker = slices.maker
        region = self._plan.items[maker] if maker >= 0 else None
        if not isinstance(region, Region) or region.makes_views or region.is_backward:
            return
        old = self._before(target, maker)
        if old is None or self._plan.makers.get(index.name, -1) > maker:
            return
        if not self._may_move(maker, at, old) or not _are_together(region, old, index):
            return
        swap = {variableify(target): old}
        written = (part.from_bsym_swap_proxies(swap, skip_output=True) for part in parts(write))
        added = [*slices.views, *written]
        if len(region.leaves) + len(added) > MOST_OPS:
            return
        (result,), value = makes(write), makes(added[-2])[0].name
        is_checked = bool(write.kwargs.get("grad_enabled", True))
        self._added.setdefault(maker, []).extend(added)
        names = frozenset({result.name})
        self._writes.setdefault(maker, []).append(Write(old.name, value, names, is_checked))
        self.gone.add(at)
        for place in (*slices.places, self._plan.makers.get(target.name, -1)):
            if place > maker and self._is_dead(place):
                self.gone.add(place)

    def _computed_by(self, source: Proxy) -> _Slices:
        """The item that computes the slices, before views of them."""
        views, places, name = list[BoundSymbol](), list[int](), source.name
        while (maker := self._plan.makers.get(name, -1)) >= 0:
            item = self._plan.items[maker]
            leaves = item.leaves if isinstance(item, Region) else tuple(parts(item))
            if not all(leaf.sym.id in VIEWS for leaf in leaves):
                break
            places.append(maker)
            for leaf in reversed(leaves):
                if makes(leaf)[0].name == name:
                    views.insert(0, leaf)
                    name = reads(leaf)[0].name
        return _Slices(maker, tuple(views), tuple(places))

    def _before(self, target: Proxy, maker: int) -> Proxy | None:
        """The name that the written tensor has before the region; None if another item made it."""
        while (place := self._plan.makers.get(target.name, -1)) > maker:
            item = self._plan.items[place]
            if isinstance(item, Region) or not only(item, FENCES):
                return None
            target = next(old for old, new in renamed_by(item) if new.name == target.name)
        return target if place < maker else None

    def _may_move(self, maker: int, at: int, target: Proxy) -> bool:
        """True if a region may write the memory, this one does not have it, and items between have
        only memory that the trace made."""
        place = self._memory.of(target.name)
        between = (self._plan.items[k] for k in range(maker + 1, at) if k not in self.gone)
        return self._plan.may_write(target.name) and not any(
            self._memory.of(proxy.name) == place for proxy in self._plan.items[maker].inputs
        ) and not any(
            self._memory.of(proxy.name) in self._given
            for item in between if isinstance(item, Region) or not only(item, FENCES)
            for proxy in (*read_by(item), *made_by(item))
        )  # fmt: skip

    def _is_dead(self, at: int) -> bool:
        """True if nothing that stays reads what the item makes."""
        return not any(self._readers(proxy.name) for proxy in made_by(self._plan.items[at]))

    def _readers(self, name: str) -> set[int]:
        return {*self._plan.readers.get(name, ())} - self.gone

    def plan(self) -> Plan:
        """The plan in which regions store."""
        regions = {**self._plan.memory.regions}
        items = list[Item]()
        for at, item in enumerate(self._plan.items):
            if isinstance(item, Region) and at in self._added:
                item = self._storing(at, item)
                regions[item.number] = self._memory_of(at, item)
            if at not in self.gone:
                items.append(item)
        return self._plan.with_items(items, replace(self._plan.memory, regions=regions))

    def _storing(self, at: int, region: Region) -> Region:
        written = {name for write in self._writes[at] for name in write.names}
        wanted = written.union(p.name for p in region.outputs if self._readers(p.name))
        leaves = (*region.leaves, *self._added[at])
        inputs, outputs = boundary(leaves, frozenset(wanted))
        return replace(region, leaves=leaves, inputs=inputs, outputs=outputs)

    def _memory_of(self, at: int, region: Region) -> RegionMemory:
        before, new = self._plan.memory.of(self._plan.items[at]), self._writes[at]
        returned = {proxy.name for proxy in region.outputs}
        return replace(
            before, writes=(*before.writes, *new),
            row_major=tuple(name for name in before.row_major if name in returned),
        )  # fmt: skip


def _are_together(region: Region, *others: Proxy) -> bool:
    """True if all tensors, those of the region too, are on one device."""
    proxies = (*region.inputs, *region.outputs, *others)
    return len({proxy.device for proxy in proxies if isinstance(proxy, TensorProxy)}) == 1
