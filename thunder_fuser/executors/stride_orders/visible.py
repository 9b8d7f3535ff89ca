# SPDX-License-Identifier: Apache-2.0
"""The results of a plan whose strides the user sees; for all others any order will do.

    a = fusion0(x); b = linear(a, w); c, d = fusion1(b); e = sort(d); return c, e
->  visible: c and e; d, for sort may pass on its strides; b; not a, for a product is contiguous
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from thunder.core.prims import PrimIDs
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item, Region, made_by, read_by
from thunder_fuser.executors.stride_orders.convolutions import (
    can_run_channels_last,
    is_convolution,
    makes_weights,
    order_operands,
)
from thunder_fuser.executors.stride_orders.orders import origins
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.proxies import is_product, makes, parts, reads

IN_ORDER = "image_in_order_of_"  # the prefix of names of copies in eager's stride order
VIEW = "torch.Tensor.view"
_LOOKUPS = frozenset({PrimIDs.EMBEDDING, PrimIDs.EMBEDDING_BACKWARD})


def visible_results(plan: Plan, copied: Set[str] = frozenset()) -> set[str]:
    """The values whose strides the user sees: results, and what these may get their strides from.

    Tensors that are written in place through a reshape count too. copied: the results that the user
    gets as copies.
    """
    flow, returned = plan.flow, {proxy.name for proxy in plan.returned}
    # The order of tensors that share memory with a written one decides whether a reshape copies.
    read = {name for op in reshapes(flow.ops) for name in op.read_names if name in flow.written}
    written = flow.memory.sharing(read) & flow.written if read else set()
    return deciding(plan.items, written | (returned - copied))


def reshapes(ops: Sequence[Op]) -> list[Op]:
    """The ops that give a tensor other sizes, where memory allows that without a copy."""
    return [op for op in ops if op.bsym.sym.id == VIEW or PrimIDs.RESHAPE in op.kinds]


def deciding(items: Sequence[Item], names: Set[str]) -> set[str]:
    """The names, and those of the values that they may get their strides from."""
    visible, are_last = {*names}, can_run_channels_last(convolutions_of(items))
    for item in reversed(items):
        if isinstance(item, Region):
            sources = origins(item.leaves, item.inputs)
            visible.update(*(sources[out.name] for out in item.outputs if out.name in visible))
        elif is_product(item) or item.sym.name.startswith(IN_ORDER):
            continue  # its strides do not depend on its operands
        elif are_last and is_convolution(item) and makes_weights(item):
            continue  # its results have the order of the weights
        elif any(result.name in visible for result in makes(item)) and not all(
            part.sym.id in _LOOKUPS for part in parts(item)
        ):
            operands = order_operands(item) if is_convolution(item) else read_by(item)
            visible.update(proxy.name for proxy in operands)
    return visible


# ----------------------------------------------------------------------------------- convolutions


def convolutions_of(items: Sequence[Item]) -> list[BoundSymbol]:
    """The convolutions among the items, and the parts of their gradients."""
    return [item for item in items if is_convolution(item)]


def hidden_convolutions(items: Sequence[Item], visible: Set[str]) -> list[BoundSymbol]:
    """The convolutions whose order the user does not see, if all of the trace may change theirs."""
    convolutions = convolutions_of(items)
    if not can_run_channels_last(convolutions):
        return []
    computed = {proxy.name for item in items if read_by(item) for proxy in made_by(item)}
    fixed = computed.intersection(visible)
    # The user sees the order in the results or, of a weight's gradient, in the operands.
    images = ((item, reads(item) if makes_weights(item) else makes(item)) for item in convolutions)
    return [item for item, seen in images if not any(proxy.name in fixed for proxy in seen)]
