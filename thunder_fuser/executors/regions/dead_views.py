# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same without views whose only readers are regions that now repeat them.

    t1 = broadcast_in_dim(x); t2 = Region(x): broadcast_in_dim, mul  ->  t2 = Region(x): ...
"""

from __future__ import annotations

from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item, Region, made_by, only, read_by
from thunder_fuser.trace.proxies import VIEWS


def drop_dead_views(plan: Plan) -> Plan:
    """Drops views whose only readers are regions that now repeat them."""
    needed: set[str] = set()
    kept: list[Item] = []
    for item in reversed(plan.items):
        live = _needed(item, needed)
        if live is not None:
            kept.append(live)
            needed.update(proxy.name for proxy in read_by(live))
    return plan.with_items(reversed(kept))


def _needed(item: Item, names: set[str]) -> Item | None:
    """The item; of a region of views, the part that makes these names; None if it makes none."""
    if isinstance(item, Region) and item.makes_views:
        wanted = [proxy.name for proxy in item.outputs if proxy.name in names]
        return item.narrowed(wanted) if wanted else None
    if isinstance(item, Region) or not only(item, VIEWS):
        return item
    return item if any(out.name in names for out in made_by(item)) else None
