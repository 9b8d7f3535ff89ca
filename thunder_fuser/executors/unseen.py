# SPDX-License-Identifier: Apache-2.0
"""A claimed trace -> the results whose strides the user never sees, which may lie as is fastest.

    a = fusion0(x); b = linear(a, w); c, d = fusion1(b); e = sort(d); return c, e
->  seen: c, e, and d, whose strides sort may pass on, and b; not a, for a product is contiguous
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.symbol import BoundSymbol, has_tags

from thunder_fuser.executors.channels_last import is_convolution, makes_weights, runs_last
from thunder_fuser.executors.regions import Item, Region, read_by
from thunder_fuser.executors.result_orders import origins
from thunder_fuser.trace.proxies import makes, parts

_LOOKUPS = frozenset({PrimIDs.EMBEDDING, PrimIDs.EMBEDDING_BACKWARD})


def seen_results(items: Sequence[Item]) -> set[str]:
    """The names of results of the trace, and of what those get their strides from."""
    seen, are_last = set[str](), runs_last(items)
    for item in reversed(items):
        if isinstance(item, Region):
            found = origins(item.leaves, item.inputs)
            seen.update(*(found[out.name] for out in item.outputs if out.name in seen))
        elif are_last and is_convolution(item) and makes_weights(item):
            continue  # its results lie as the weights
        elif item.sym.id is PrimIDs.RETURN or _passes_on(item, seen):
            seen.update(proxy.name for proxy in read_by(item))
    return seen


def with_unseen(items: Sequence[Item], seen: Set[str]) -> list[Item]:
    """The items, each region with the names of its results whose strides the user never sees."""
    products = (one for one in items if isinstance(one, BoundSymbol) and _is_product(one))
    read = {proxy.name for one in products for proxy in read_by(one)}
    return [_told(item, seen, read) if isinstance(item, Region) else item for item in items]


def _told(region: Region, seen: Set[str], read: Set[str]) -> Region:
    unseen = tuple(out.name for out in region.outputs if out.name not in seen)
    of_products = tuple(name for name in unseen if name in read)
    return replace(region, unseen=unseen, of_products=of_products)


def _passes_on(item: BoundSymbol, seen: Set[str]) -> bool:
    """True for an op of torch that makes a seen result, whose strides its operands may decide."""
    if not any(made.name in seen for made in makes(item)):
        return False
    return not _is_product(item) and not all(one.sym.id in _LOOKUPS for one in parts(item))


def _is_product(item: BoundSymbol) -> bool:
    return all(has_tags(one, {OpTags.MATMUL_OP}) for one in parts(item))
