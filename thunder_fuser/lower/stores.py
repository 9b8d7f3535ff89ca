# SPDX-License-Identifier: Apache-2.0
"""Results -> stores: one wide store after the lanes where positions allow it, else one a lane.

A result that crosses a tile goes to the tile's array; another pass writes it to memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from thunder_fuser.analysis.part import offset
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import Array, If, Lane, Set, SharedStore, Statement, Store
from thunder_fuser.lower.scope import Scope
from thunder_fuser.lower.tiles import Window
from thunder_fuser.lower.values import Values
from thunder_fuser.schedule.axes import MAX_BYTES


class Stores:
    """Writes the results of one kernel."""

    def __init__(self, ctx: Context, values: Values, tiles: Mapping[str, Window]) -> None:
        self.ctx, self.values, self.tiles = ctx, values, tiles

    def store(self, name: str, condition: Scalar, outer: Scope, inner: Scope) -> list[Statement]:
        """Stores a result in `inner`; returns what must follow the lane loop, in `outer`."""
        ctx = self.ctx
        point, view = ctx.demand.results[name], ctx.part.tensors[name]
        value = self.values.get(point, inner)
        tile = self.tiles.get(name)
        position = tile.position if tile else offset(point.index, ctx.part.strides[name])
        aligned = MAX_BYTES if tile else ctx.alignment(name)
        lane, width = ctx.lane_symbol, ctx.width
        if inner is not outer and ctx.is_vector(position, condition, view.dtype, aligned):
            vector = self.values.name(f"{name}_o", point)
            outer.put(Array(vector, view.dtype, 0, width))
            inner.put(Set(Lane(vector, None, lane), value, view.dtype))
            if tile:
                put = SharedStore(tile.array, position - lane, vector, width, view.dtype)
                return [self._where(condition, put)]
            return [Store(name, position - lane, vector, view.dtype, width, condition)]
        if tile:
            put = SharedStore(tile.array, position, value, 1, view.dtype)
            inner.put(self._where(condition, put))
            return []
        inner.put(Store(name, position, value, view.dtype, 1, condition))
        return []

    def _where(self, condition: Scalar, put: SharedStore) -> Statement:
        """Skips where a thread would take another's place in the tile.

        A place of its own may hold anything outside the tensors: nobody asks for it.
        """
        clamped = {str(guard.variable) for guard in self.ctx.loops.guards}
        if condition.is_const or not clamped & put.position.symbols:
            return put
        return If(condition, (put,))
