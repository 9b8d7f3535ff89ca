# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same, with the stride orders that the results of regions must have, or may have.

    t1 = softmax(x), x a transposed matrix       torch: t1 is row-major; a region: as x
    t2 = Tensor.view(t1, -1)                     torch refuses this view of the second: row_major

    q = fusion0(x); y = attention(q, k, v)  ->  q: [B, H, L, E], in memory as [B, L, H, E]: hidden

A region's results have the stride order of its inputs, as most of torch's functions have it. But
the results of some torch functions are row-major for any input. Two kinds of readers rely on that:
a view with other sizes, and a reshape of a tensor that is written in place, for a write to a copy
would be lost. Pointwise results have torch's order already, and keep it: torch's view may rely on
another order, and its reshape may be a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item, Region
from thunder_fuser.executors.stride_orders.orders import Orders, row_major
from thunder_fuser.executors.stride_orders.visible import VIEW, reshapes, visible_results
from thunder_fuser.executors.support.check import ROWS
from thunder_fuser.ir.strides import reshaped_order, stride_order_of
from thunder_fuser.trace.proxies import VIEWS, is_product, makes, parts, reads

HEADS_INSIDE = (3, 1, 2, 0)  # [B, H, L, E] in memory as [B, L, H, E]
# Pointwise, but row-major in torch. Thunder makes a where of logsigmoid and others.
_MAYBE_ROW_MAJOR = {"torch.masked_fill", "torch.where", PrimIDs.WHERE}
_KEEPING = frozenset(row.id for row in ROWS.values() if row.computes) | VIEWS | {
    PrimIDs.CONVERT_ELEMENT_TYPE, PrimIDs.STRIDE_ORDER,
}  # fmt: skip


# ------------------------------------------------------------------------------ must be row-major


def keep_row_major(plan: Plan) -> Plan:
    """Notes the results that must be row-major, since torch takes a view of them."""
    flow = plan.flow
    viewed = {
        flow.memory.of(name)
        for op in reshapes(flow.ops)
        for name in op.read_names
        if op.bsym.sym.id == VIEW or name in flow.written
    }
    unlike = set[str]()  # may be row-major in torch although its operands are not
    for op in flow.ops if viewed else ():
        ids = {leaf.sym.id for leaf in op.leaves}
        is_kept = ids <= _KEEPING and op.bsym.sym.id not in _MAYBE_ROW_MAJOR
        if op.is_fusible and (op.reads_any(unlike) or not is_kept):
            unlike.update(op.made_names)
            unlike.update(out.name for leaf in op.leaves for out in makes(leaf))
    row_major = (
        (region.number, tuple(
            out.name for out in region.outputs
            if out.name in unlike and flow.memory.of(out.name) in viewed
        ))
        for region in plan.regions
    )  # fmt: skip
    return plan.noting({number: {"row_major": names} for number, names in row_major if names})


# -------------------------------------------------------------------------- the user sees, or not


def find_visible_results(plan: Plan) -> Plan:
    """Notes the values whose strides the user sees."""
    return replace(plan, memory=replace(plan.memory, visible=frozenset(visible_results(plan))))


def order_hidden_results(plan: Plan) -> Plan:
    """Notes in which stride order the readers of each hidden result wish it.

    A product or a reshape copies a tensor in another order; attention is faster with its own.
    """
    calls = [item for item in plan.items if isinstance(item, BoundSymbol)]
    attentions = (
        call for call in calls if "attention" in call.sym.name and "backward" not in call.sym.name
    )
    heads = (proxy for call in attentions for proxy in reads(call)[:3])  # query, key and value
    operands = (proxy for call in filter(is_product, calls) for proxy in reads(call))
    wishes = {
        **{proxy.name: HEADS_INSIDE for proxy in heads if _rank_of(proxy) == 4},
        **_merged(plan.items),
        **{proxy.name: row_major(_rank_of(proxy)) for proxy in operands},
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
    merged: dict[str, tuple[int, ...]] = {}
    transposed: dict[str, BoundSymbol] = {}
    leaves = (
        (item.leaves if item.makes_views else ()) if isinstance(item, Region) else parts(item)
        for item in items
    )
    for leaf in chain.from_iterable(leaves):
        if leaf.sym.id is PrimIDs.TRANSPOSE:
            transposed[leaf.output.name] = leaf
        elif leaf.sym.id is PrimIDs.RESHAPE and leaf.args[0].name in transposed:
            source, axes = transposed[leaf.args[0].name].args
            order = tuple(source.ndim - 1 - axis for axis in axes)
            if reshaped_order(order, leaf.args[0]._shape, leaf.output._shape) is None:
                merged[source.name] = stride_order_of(axes)
    return merged
