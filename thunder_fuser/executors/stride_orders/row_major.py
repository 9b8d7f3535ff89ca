# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same, with the results of regions that must lie row-major.

    t1 = softmax(x), x a transposed matrix       torch: t1 is row-major; a region: as x
    t2 = Tensor.view(t1, -1)                     torch refuses this view of the second

A region's results have the stride order of its inputs, as most of torch's functions have it. But
the results of some torch functions are row-major for any input. Two kinds of readers rely on that:
a view with other sizes, and a reshape of a tensor that is written in place, for a write to a copy
would be lost. Pointwise results have torch's order already, and keep it: torch's view may rely on
another order, and its reshape may be a copy.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from thunder.core.prims import PrimIDs

from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.stride_orders.visible import VIEW, reshapes
from thunder_fuser.executors.support.check import ROWS
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.proxies import VIEWS, makes

# Pointwise, but row-major in torch. Thunder makes a where of logsigmoid and others.
_MAYBE_ROW_MAJOR = {"torch.masked_fill", "torch.where", PrimIDs.WHERE}
_KEEPING = {row.id for row in ROWS.values() if row.computes} | VIEWS | {
    PrimIDs.CONVERT_ELEMENT_TYPE, PrimIDs.STRIDE_ORDER,
}  # fmt: skip


def keep_row_major(plan: Plan) -> Plan:
    """Notes the results that must be row-major, since torch takes a view of them."""
    flow = plan.flow
    viewed = {
        flow.memory.of(name)
        for op in reshapes(flow.ops)
        for name in op.read_names
        if op.bsym.sym.id == VIEW or name in flow.written
    }
    unlike = _unlike_torch(flow.ops) if viewed else set[str]()
    row_major = (
        (region.number, tuple(
            out.name for out in region.outputs
            if out.name in unlike and flow.memory.of(out.name) in viewed
        ))
        for region in plan.regions
    )  # fmt: skip
    return plan.noting({number: {"row_major": names} for number, names in row_major if names})


def _unlike_torch(ops: Sequence[Op]) -> Set[str]:
    """Results of regions that may be row-major in torch although their operands are not."""
    found = set[str]()
    for op in ops:
        if op.is_fusible and (op.reads_any(found) or not _keeps_order(op)):
            found.update(op.made_names)
            found.update(one.name for leaf in op.leaves for one in makes(leaf))
    return found


def _keeps_order(op: Op) -> bool:
    ids = {leaf.sym.id for leaf in op.leaves}
    return ids <= _KEEPING and op.bsym.sym.id not in _MAYBE_ROW_MAJOR
