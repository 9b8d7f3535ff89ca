# SPDX-License-Identifier: Apache-2.0
"""Items of a trace -> the same, with the results of regions that must lie row-major.

    t1 = softmax(x), x a transposed matrix       torch: t1 is row-major; a region: t1 lies as x
    t2 = Tensor.view(t1, -1)                     of the second, torch refuses the view

A region's results lie in the order of its inputs, as those of most of torch's functions do. Some of
torch's are row-major whatever they are given. Two kinds of readers depend on that: a view of other
sizes, and a reshape of what is written in place, which would write to a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thunder.core.prims import PrimIDs

from thunder_fuser.executors.regions import Item, Region
from thunder_fuser.trace.memory import one_memory, written_in_place
from thunder_fuser.trace.op import Op

_VIEW = "torch.Tensor.view"


def with_row_major(ops: Sequence[Op], items: Sequence[Item]) -> list[Item]:
    """The items, regions with `row_major` filled in.

    ops: the trace that the items were claimed from.
    """
    reshaped = [op for op in ops if op.bsym.sym.id == _VIEW or PrimIDs.RESHAPE in op.kinds]
    if not reshaped:
        return [*items]
    memory, written = one_memory(ops), written_in_place(ops)
    viewed = {
        memory.get(name, name)
        for op in reshaped
        for name in op.read_names
        if op.bsym.sym.id == _VIEW or name in written
    }

    def of(item: Item) -> Item:
        if not isinstance(item, Region):
            return item
        names = (one.name for one in item.outputs)
        return replace(item, row_major=tuple(n for n in names if memory.get(n, n) in viewed))

    return [of(item) for item in items] if viewed else [*items]
