# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same with fewer views.

    t1 = broadcast_in_dim(x); t2 = Region(x): broadcast_in_dim, mul  ->  t2 = Region(x): ...

    x = Region(): [32]; t1 = unsqueeze(x, 1); t2 = reshape(t1, (32,)); return t2  ->  return x

The gradient of a vector that was broadcast is such a round trip: six calls for a group norm's bias.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.record.torch_function import views_for
from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item, Region, made_by, only, read_by
from thunder_fuser.executors.support.check import leaves_of
from thunder_fuser.trace.proxies import VIEWS


class _ViewChain(NamedTuple):
    """Views of a region's result, one of the other: base, and what made the last one of it."""

    base: Proxy
    leaves: tuple[BoundSymbol, ...] = ()

    def give_back(self, result: Proxy) -> bool:
        """True if the last one is the base itself: a vector, or any tensor that was not changed."""
        if all(leaf.sym.id is PrimIDs.SHALLOW_COPY for leaf in self.leaves):
            return True
        if not _is_vector(result) or not _is_vector(self.base) or result._shape != self.base._shape:
            return False
        vector = torch.empty(result._shape, device="meta")
        views = views_for(Region(self.leaves, (self.base,), (result,), is_backward=False), [vector])
        return views is not None and views(vector)[0].stride() == (1,)


def drop_identity_views(plan: Plan) -> Plan:
    """Reads a region's result itself where views would give it back."""
    known = {proxy.name: _ViewChain(proxy) for region in plan.regions for proxy in region.outputs}
    returned = {proxy.name for proxy in plan.returned}
    # The user gets a tensor once: a second result may share its memory, but is another one.
    once = plan.flow.written | (known.keys() & returned)
    swaps: dict[Variable, Proxy] = {}
    for item in plan.items:
        if isinstance(item, Region) or not only(item, VIEWS):
            continue
        if len(read_by(item)) != 1 or len(made_by(item)) != 1:
            continue
        (operand,), (result,) = read_by(item), made_by(item)
        if operand.name not in known:
            continue
        base, leaves = known[operand.name]
        views = known[result.name] = _ViewChain(base, (*leaves, *leaves_of(item)))
        readers = [plan.items[at] for at in plan.readers.get(result.name, ())]
        is_free = once.isdisjoint((base.name, result.name)) and not any(
            isinstance(reader, Region) for reader in readers
        )
        if is_free and views.give_back(result):
            swaps[variableify(result)] = base
            if result.name in returned:
                once.add(base.name)
    return plan.with_items(_swapped(item, swaps) for item in plan.items) if swaps else plan


def _is_vector(proxy: Proxy) -> bool:
    return type(proxy) is TensorProxy and proxy.ndim == 1 and type(proxy._shape[0]) is int


def _swapped(item: Item, swaps: dict[Variable, Proxy]) -> Item:
    if isinstance(item, Region) or not any(variableify(proxy) in swaps for proxy in read_by(item)):
        return item
    return item.from_bsym_swap_proxies(swaps, skip_output=True)


def drop_dead_views(plan: Plan) -> Plan:
    """Drops views whose only readers are regions that now repeat them."""
    needed: set[str] = set()
    kept: list[Item] = []
    for item in reversed(plan.items):
        if item.makes_views if isinstance(item, Region) else only(item, VIEWS):
            wanted = [proxy.name for proxy in made_by(item) if proxy.name in needed]
            if not wanted:
                continue
            item = item.narrowed(wanted) if isinstance(item, Region) else item
        kept.append(item)
        needed.update(proxy.name for proxy in read_by(item))
    return plan.with_items(reversed(kept))
