# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same, with views that stand side by side as one call.

    t2 = unsqueeze(t1, 0); t3 = unsqueeze(t2, 2); t4 = reshape(t3, (16,))
->  t4 = Region(t1): unsqueeze, unsqueeze, reshape

Torch would make them one by one, each by a call. Where the operand is contiguous, each result of
the region is one call (record/torch_function.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbolTag

from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item, Region, made_by, only, read_by
from thunder_fuser.executors.support.check import leaves_of
from thunder_fuser.trace.proxies import VIEWS

_TAG = BoundSymbolTag.BACKWARD


def join_views(plan: Plan) -> Plan:
    """Makes one call of views that stand side by side."""
    return plan.with_items(_joined(plan))


def _joined(plan: Plan) -> Iterator[Item]:
    back = {proxy.name for item in _of_backward(plan) for proxy in made_by(item)}
    kinds = [
        any(proxy.name in back for proxy in made_by(item)) if _is_view(item) else f"item {at}"
        for at, item in enumerate(plan.items)
    ]
    for is_backward, grouped in groupby(range(len(kinds)), kinds.__getitem__):
        places = [*grouped]
        if len(places) == 1:
            yield plan.items[places[0]]
            continue
        items = [plan.items[at] for at in places]
        leaves = tuple(
            leaf for item in items
            for leaf in (item.leaves if isinstance(item, Region) else leaves_of(item))
        )  # fmt: skip
        names = [out.name for item in items for out in made_by(item)]
        wanted = [name for name in names if not {*places}.issuperset(plan.readers.get(name, ()))]
        yield Region(leaves, (), (), is_backward is True).narrowed(wanted)


def _of_backward(plan: Plan) -> Iterator[Item]:
    """The items of the backward: those with its tag, and what reads their results."""
    names: set[str] = set()
    for item in plan.items:
        tagged = item.is_backward if isinstance(item, Region) else _TAG in item.tags
        if tagged or any(proxy.name in names for proxy in read_by(item)):
            names.update(proxy.name for proxy in made_by(item))
            yield item


def _is_view(item: Item) -> bool:
    """True if it only makes views of plain tensors."""
    plain = all(type(proxy) is TensorProxy for proxy in (*read_by(item), *made_by(item)))
    return plain and (item.makes_views if isinstance(item, Region) else only(item, VIEWS))
