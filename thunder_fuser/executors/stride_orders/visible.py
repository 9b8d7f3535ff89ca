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
from thunder_fuser.trace.dataflow import DataFlow
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
    returned = {proxy.name for proxy in plan.returned}
    return deciding(plan.items, written_views(plan.flow) | (returned - copied))


def written_views(flow: DataFlow) -> set[str]:
    """The tensors that share memory with one written in place, if a reshape or a view reads any.

    The stride order of these tensors decides whether the reshape copies.
    """
    read = {name for op in reshapes(flow.ops) for name in op.read_names if name in flow.written}
    return flow.memory.sharing(read) & flow.written if read else set()


def reshapes(ops: Sequence[Op]) -> list[Op]:
    """The ops that give a tensor other sizes, where memory allows that without a copy."""
    return [op for op in ops if op.bsym.sym.id == VIEW or PrimIDs.RESHAPE in op.kinds]


def deciding(items: Sequence[Item], names: Set[str]) -> set[str]:
    """The names, and those of the values that they may get their strides from."""
    visible, are_last = {*names}, can_run_channels_last(convolutions_of(items))
    for item in reversed(items):
        if isinstance(item, Region):
            found = origins(item.leaves, item.inputs)
            visible.update(*(found[out.name] for out in item.outputs if out.name in visible))
        elif are_last and is_convolution(item) and makes_weights(item):
            continue  # its results have the order of the weights
        elif _passes_on(item, visible):
            operands = order_operands(item) if is_convolution(item) else read_by(item)
            visible.update(proxy.name for proxy in operands)
    return visible


def _passes_on(item: BoundSymbol, visible: Set[str]) -> bool:
    """True for a torch op of whose visible results the strides may depend on its operands."""
    if not any(made.name in visible for made in makes(item)):
        return False
    if is_product(item) or item.sym.name.startswith(IN_ORDER):
        return False
    return not all(one.sym.id in _LOOKUPS for one in parts(item))


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
    return [item for item in convolutions if not _is_visible(item, fixed)]


def _is_visible(item: BoundSymbol, visible: Set[str]) -> bool:
    """True if the user sees its order: in its results or, for a weight's gradient, its operands."""
    images = reads(item) if makes_weights(item) else makes(item)
    return any(proxy.name in visible for proxy in images)
