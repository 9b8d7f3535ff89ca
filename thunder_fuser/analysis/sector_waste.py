# SPDX-License-Identifier: Apache-2.0
"""What a kernel with reductions pays on a GPU for tensors that lie in another memory order.

    T0: bf16[n, c, h, w]; T1: the same, channels last; T2 = sum(mul(T0, T1))

Threads side by side read elements side by side, either of T0 or of T1. Of the other tensor each
reads 2 bytes of a sector of its own, and memory gives 32. On an H200 this kernel took 72 us for 40
MiB, where a clone takes 8. A sum over (n, h, w) whose threads are side by side along c took 32 us
for 60 MiB, where a clone takes 12: a thread's next steps find the rest of their sectors in the
first-level cache. A copy in the other order moves the tensor twice and no more, for
schedule/transpose.py takes it, as it takes all pointwise work; only reductions have a price here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thunder_fuser.analysis.domain_map import Pattern
from thunder_fuser.analysis.part import Part
from thunder_fuser.target import Target

SECTOR = 32  # bytes that memory gives at once: a single element costs as many
# Elements that a warp reads at once: beside an axis so short it uses whole sectors of another.
WARP = 128
CACHED = 12  # what an element costs if its sector is in the first-level cache, measured as above


@dataclass(frozen=True, slots=True)
class StoredOrder:
    """The order of a tensor in memory: its fastest axis, all its axes, the bytes of an element. An
    axis that a reshape splits or makes is given as its pieces."""

    fast: str
    axes: frozenset[str]
    itemsize: int


class SectorWaste:
    """The prices of the values of a part that are large enough to have one.

    is_mixed: False if all large values have the same fastest axis, so that nothing has a price.
    """

    def __init__(self, whole: Part, target: Target) -> None:
        self._extents = whole.extents
        ways = whole.merged_axes
        self._pieces = {axes[0]: pieces for axes, pieces in ways if len(axes) == 1 < len(pieces)}
        self._orders: dict[str, StoredOrder] = {}
        for name in () if target.is_cpu else dict.fromkeys((*whole.inputs, *whole.producer)):
            view = whole.tensors[name]
            size = 0 if view.by_value else whole.bytes_of(name)
            if size * SECTOR > target.launch_bytes * max(view.dtype.bytes, 1):
                axes = [leaf for axis in whole.memory_axes(name) for leaf in self._leaves(axis)]
                if axes:
                    self._orders[name] = StoredOrder(axes[-1], frozenset(axes), view.dtype.bytes)
        self.is_mixed = len({layout.fast for layout in self._orders.values()}) > 1

    def price(self, moved: Mapping[str, int], patterns: Iterable[Pattern]) -> int:
        """The bytes of sectors that a kernel with reductions does not use, if it moves so many
        bytes of each value. The order of most bytes is free.

        T0 and T1 above, 20 MiB each: 20 * (32 / 2 - 1) = 300 MiB
        """
        weights: dict[str, int] = {}
        for name in (name for name in moved if name in self._orders):
            fast = self._orders[name].fast
            weights[fast] = weights.get(fast, 0) + moved[name]
        if len(weights) < 2:
            return 0
        along = max(weights, key=lambda axis: weights[axis])
        reduced = {leaf for p in patterns for axis in p.reduced for leaf in self._leaves(axis)}
        is_row = along in reduced
        return sum(self.wasted(name, size, along, is_row) for name, size in moved.items())

    def wasted(self, name: str, size: int, axis: str, is_row: bool) -> int:
        """The same for one value, if threads side by side are at neighbours along an axis. is_row:
        that axis is reduced, so other blocks read the rest of their sectors."""
        order, along = self._orders.get(name), self._leaves(axis)[-1]
        if order is None or order.fast == along or along not in order.axes:
            return 0
        sector = SECTOR // order.itemsize
        if self._extents[along].value * sector <= WARP:
            return 0
        times = min(sector if is_row else CACHED // order.itemsize, self._extents[order.fast].value)
        return size * max(times - 1, 0)

    def _leaves(self, axis: str) -> list[str]:
        """The axis, or the pieces that reshapes make of it, slowest first."""
        pieces = [axis]
        for _ in self._pieces:  # each is taken apart once at most
            if self._pieces.keys().isdisjoint(pieces):
                break
            pieces = [part for piece in pieces for part in self._pieces.get(piece, (piece,))]
        return pieces
