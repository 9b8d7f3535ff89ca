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
        if item.makes_views if isinstance(item, Region) else only(item, VIEWS):
            wanted = [proxy.name for proxy in made_by(item) if proxy.name in needed]
            if not wanted:
                continue
            item = item.narrowed(wanted) if isinstance(item, Region) else item
        kept.append(item)
        needed.update(proxy.name for proxy in read_by(item))
    return plan.with_items(reversed(kept))
