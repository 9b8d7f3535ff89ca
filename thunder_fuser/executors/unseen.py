# SPDX-License-Identifier: Apache-2.0
"""A claimed trace -> the results whose strides the user never sees, so that any order will do.

    a = fusion0(x); b = linear(a, w); c, d = fusion1(b); e = sort(d); return c, e
->  seen: c and e; d, for sort may pass on its strides; b; not a, for a product is contiguous
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.channels_last import (
    is_convolution,
    laid_by,
    makes_weights,
    runs_last,
)
from thunder_fuser.executors.regions import Item, Region, read_by
from thunder_fuser.executors.result_orders import Orders, origins
from thunder_fuser.ir.strides import reshaped_order, stride_order_of
from thunder_fuser.trace.proxies import is_product, makes, parts, reads

HEADS_INSIDE = (3, 1, 2, 0)  # [B, H, L, E] in memory as [B, L, H, E]
IN_ORDER = "image_in_order_of_"  # the prefix of names of copies in eager's stride order
_LOOKUPS = frozenset({PrimIDs.EMBEDDING, PrimIDs.EMBEDDING_BACKWARD})


def seen_results(
    items: Sequence[Item], also: Set[str], hidden: Set[str] = frozenset()
) -> set[str]:
    """The names of the trace's results, and of the values that these may get their strides from.

    also: names of other values whose strides matter, such as those written in place through a
    reshape. hidden: names of results that the user gets as copies.
    """
    returned = {
        proxy.name
        for item in items if isinstance(item, BoundSymbol) and item.sym.id is PrimIDs.RETURN
        for proxy in read_by(item)
    }  # fmt: skip
    return deciding(items, also | (returned - hidden))


def deciding(items: Sequence[Item], names: Set[str]) -> set[str]:
    """The names, and those of the values that they may get their strides from."""
    seen, are_last = {*names}, runs_last(items)
    for item in reversed(items):
        if isinstance(item, Region):
            found = origins(item.leaves, item.inputs)
            seen.update(*(found[out.name] for out in item.outputs if out.name in seen))
        elif are_last and is_convolution(item) and makes_weights(item):
            continue  # its results have the order of the weights
        elif _passes_on(item, seen):
            operands = laid_by(item) if is_convolution(item) else read_by(item)
            seen.update(proxy.name for proxy in operands)
    return seen


def with_unseen(items: Sequence[Item], seen: Set[str]) -> list[Item]:
    """The items; each region notes its results whose strides the user never sees, and in which
    stride order their readers wish them to lie.

    A product or a reshape copies a tensor in another order; attention is faster with its own.
    """
    calls = [item for item in items if isinstance(item, BoundSymbol)]
    heads = (proxy for call in filter(_is_attention, calls) for proxy in reads(call)[:3])
    operands = (proxy for call in filter(is_product, calls) for proxy in reads(call))
    wishes = {
        **{one.name: HEADS_INSIDE for one in heads if _rank_of(one) == 4},
        **_merged(items),
        **{one.name: (*range(_rank_of(one)),)[::-1] for one in operands},
    }
    return [_told(item, seen, wishes) if isinstance(item, Region) else item for item in items]


def _told(region: Region, seen: Set[str], wishes: Orders) -> Region:
    names = (out.name for out in region.outputs if out.name not in seen)
    return replace(region, unseen={name: wishes.get(name, ()) for name in names})


def _rank_of(proxy: Proxy) -> int:
    return proxy.ndim if isinstance(proxy, TensorProxy) else 0


def _merged(items: Sequence[Item]) -> Orders:
    """The orders in which torch reshapes transposed tensors without a copy.

        t = permute(x, (1, 3, 0, 2, 4)); reshape(t, (N, L, 3 * H * E))      x: [3, N, H, L, E]
    ->  x in memory as t: (2, 4, 1, 3, 0)
    """
    found: dict[str, tuple[int, ...]] = {}
    transposed: dict[str, BoundSymbol] = {}
    for leaf in _run_by_torch(items):
        if leaf.sym.id is PrimIDs.TRANSPOSE:
            transposed[leaf.output.name] = leaf
        elif leaf.sym.id is PrimIDs.RESHAPE and leaf.args[0].name in transposed:
            source, axes = transposed[leaf.args[0].name].args
            order = tuple(source.ndim - 1 - axis for axis in axes)
            if reshaped_order(order, leaf.args[0]._shape, leaf.output._shape) is None:
                found[source.name] = stride_order_of(axes)
    return found


def _run_by_torch(items: Sequence[Item]) -> Iterator[BoundSymbol]:
    """The primitives of torch's calls, and of regions that are views."""
    for item in items:
        if not isinstance(item, Region):
            yield from parts(item)
        elif item.makes_views:
            yield from item.leaves


def _is_attention(item: BoundSymbol) -> bool:
    """True for torch's attention of a query, a key and a value, by any of its kernels."""
    return "attention" in item.sym.name and "backward" not in item.sym.name


def _passes_on(item: BoundSymbol, seen: Set[str]) -> bool:
    """True for a torch op with a seen result whose strides may depend on those of its operands."""
    if not any(made.name in seen for made in makes(item)):
        return False
    if is_product(item) or item.sym.name.startswith(IN_ORDER):
        return False
    return not all(one.sym.id in _LOOKUPS for one in parts(item))
