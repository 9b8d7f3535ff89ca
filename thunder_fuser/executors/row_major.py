# SPDX-License-Identifier: Apache-2.0
"""Items of a trace -> the same, with the results of regions that must lie row-major.

    t1 = softmax(x), x a transposed matrix       torch: t1 is row-major; a region: t1 lies as x
    t2 = Tensor.view(t1, -1)                     of the second, torch refuses the view

A region's results lie in the order of its inputs, as those of most of torch's functions do. Some of
torch's are row-major whatever they are given. Two kinds of readers depend on that: a view of other
sizes, and a reshape of what is written in place, which would write to a copy. What pointwise
functions make of arguments, and of torch's results, lies as in torch, and stays so: there torch's
view may be one of another order, and its reshape a copy.
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


# Of pointwise primitives, but row-major in torch; a where is what logsigmoid and others become.
_MAYBE_ROW_MAJOR = {"torch.masked_fill", "torch.where", PrimIDs.WHERE}
_KEEPING = {row.id for row in ROWS.values() if row.computes} | VIEWS | {
    PrimIDs.CONVERT_ELEMENT_TYPE, PrimIDs.STRIDE_ORDER,
}  # fmt: skip


def written_views(ops: Sequence[Op]) -> set[str]:
    """What shares memory with what is written in place, if a reshape or a view reads any of it.

    Whether that is a copy depends on the order that all of it lies in.
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
    """Results of regions that may be row-major in torch, though what they are made of is not."""
    found = set[str]()
    for op in ops:
        if op.is_fusible and (op.reads_any(found) or not _keeps_order(op)):
            found.update(op.made_names)
            found.update(one.name for leaf in op.leaves for one in makes(leaf))
    return found


def _keeps_order(op: Op) -> bool:
    ids = {leaf.sym.id for leaf in op.leaves}
    return ids <= _KEEPING and op.bsym.sym.id not in _MAYBE_ROW_MAJOR
