# SPDX-License-Identifier: Apache-2.0
"""Items of a trace -> the same, with the results of regions that must lie row-major.

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
from dataclasses import replace

from thunder.core.prims import PrimIDs

from thunder_fuser.executors.regions import Item, Region
from thunder_fuser.executors.support import ROWS
from thunder_fuser.trace.memory import one_memory, written_in_place
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.proxies import VIEWS, makes

_VIEW = "torch.Tensor.view"


# Pointwise, but row-major in torch. Thunder makes a where of logsigmoid and others.
_MAYBE_ROW_MAJOR = {"torch.masked_fill", "torch.where", PrimIDs.WHERE}
_KEEPING = {row.id for row in ROWS.values() if row.computes} | VIEWS | {
    PrimIDs.CONVERT_ELEMENT_TYPE, PrimIDs.STRIDE_ORDER,
}  # fmt: skip


def written_views(ops: Sequence[Op]) -> set[str]:
    """The tensors that share memory with one written in place, if a reshape or a view reads any.

    The stride order of these tensors decides whether the reshape copies.
    """
    reshaped = _reshaped(ops)
    if not reshaped:
        return set()
    memory, written = one_memory(ops), written_in_place(ops)
    places = {memory[name] for op in reshaped for name in op.read_names if name in written}
    return {name for name in written if memory[name] in places}


def with_row_major(ops: Sequence[Op], items: Sequence[Item]) -> list[Item]:
    """The items, regions with `row_major` filled in.

    ops: the trace that the items were claimed from.
    """
    reshaped = _reshaped(ops)
    if not reshaped:
        return [*items]
    memory, written = one_memory(ops), written_in_place(ops)
    viewed = {
        memory.get(name, name)
        for op in reshaped
        for name in op.read_names
        if op.bsym.sym.id == _VIEW or name in written
    }
    unlike = _unlike_torch(ops) if viewed else set[str]()

    def of(item: Item) -> Item:
        if not isinstance(item, Region):
            return item
        names = (one.name for one in item.outputs if one.name in unlike)
        return replace(item, row_major=tuple(n for n in names if memory.get(n, n) in viewed))

    return [of(item) for item in items] if unlike else [*items]


def _reshaped(ops: Sequence[Op]) -> list[Op]:
    return [op for op in ops if op.bsym.sym.id == _VIEW or PrimIDs.RESHAPE in op.kinds]


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
