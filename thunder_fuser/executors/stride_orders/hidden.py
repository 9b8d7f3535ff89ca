# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same; results whose strides the user never sees lie as their readers wish.

    q = fusion0(x); y = attention(q, k, v)  ->  q: [B, H, L, E], in memory as [B, L, H, E]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.record.result_orders import Orders
from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item, Region
from thunder_fuser.ir.strides import reshaped_order, stride_order_of
from thunder_fuser.trace.proxies import is_product, parts, reads

HEADS_INSIDE = (3, 1, 2, 0)  # [B, H, L, E] in memory as [B, L, H, E]


def order_hidden_results(plan: Plan) -> Plan:
    """Notes in which stride order the readers of each hidden result wish it.

    A product or a reshape copies a tensor in another order; attention is faster with its own.
    """
    calls = [item for item in plan.items if isinstance(item, BoundSymbol)]
    heads = (proxy for call in filter(_is_attention, calls) for proxy in reads(call)[:3])
    operands = (proxy for call in filter(is_product, calls) for proxy in reads(call))
    wishes = {
        **{one.name: HEADS_INSIDE for one in heads if _rank_of(one) == 4},
        **_merged(plan.items),
        **{one.name: (*range(_rank_of(one)),)[::-1] for one in operands},
    }
    visible = plan.memory.visible
    hidden = {
        region.number: {
            out.name: wishes.get(out.name, ()) for out in region.outputs if out.name not in visible
        }
        for region in plan.regions
    }
    return plan.noting({number: {"hidden": orders} for number, orders in hidden.items() if orders})


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
