# SPDX-License-Identifier: Apache-2.0
"""Persistent buffers: arrays in registers or shared memory, which one nest fills and others read.

nest 0:  T0_p[s] = ldv<8>(T0, ...)         an input, in whole vectors
nest 1:  ... T0_p[s].v[v] ...              replaces a load
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.analysis.part import offset
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import Array, Lane, Let, Load, Set, Store
from thunder_fuser.lower.scope import Computed, Names, Needs, Scope, SharedMemory

BEFORE = -1  # a nest before all others: every nest can read what was filled there


@dataclass(frozen=True, slots=True)
class Window:
    """A shared array, and the position of this lane's element in it."""

    array: str
    position: Scalar


@dataclass
class Buffer:
    """A persistent buffer: its array, whether its elements are Vecs, the nest that fills it.

    position: of this lane's element, if the array is shared.
    """

    array: str
    shared: bool
    vector: bool
    position: Scalar
    filled_in: int | None = None


class Buffers:
    """The buffers of one kernel, by the points they hold. nest: the number of the current nest."""

    def __init__(self, ctx: Context, shared: SharedMemory, names: Names) -> None:
        self.ctx, self.shared, self._name = ctx, shared, names
        self._buffers: dict[Point, Buffer] = {}
        self.nest = 0

    # ---- what is kept

    def declare(self, scope: Scope) -> None:
        """Declares an array for each buffer of the schedule."""
        for buffer in self.ctx.scheduled.persistent:
            self._declare(self.ctx.at_loops(buffer.point), buffer.memory == "shared", scope)

    def _declare(self, point: Point, shared: bool, scope: Scope) -> None:
        ctx, dtype = self.ctx, self.ctx.dtype_of(point.name)
        name = self._name(f"{point.name}_p", point)
        is_input = point.name not in ctx.part.producer
        position = offset(point.index, ctx.part.strides[point.name]) if is_input else const(0)
        vector = is_input and ctx.loads_vector(point, position)
        self._buffers[point] = Buffer(name, shared, vector, self._own_position())
        if shared:
            x, y = ctx.threads
            scope.put(self.shared.array(name, dtype, x * y * ctx.slots))
        elif vector:
            scope.put(Array(name, dtype, ctx.steps, ctx.width))
        else:
            scope.put(Array(name, dtype, ctx.slots))

    def _own_position(self) -> Scalar:
        """Each thread has its own place: ((y * steps + step) * threads.x + x) * lanes + lane."""
        ctx = self.ctx
        by = {a.parallel: ctx.loops.loops[a.name] for a in ctx.root_loops}
        x, y = by.get(ParallelType.TIDX, const(0)), by.get(ParallelType.TIDY, const(0))
        return ((y * ctx.steps + ctx.step) * ctx.threads[0] + x) * ctx.lanes + ctx.lane_symbol

    def keep(self, point: Point, window: Window) -> None:
        """Notes that an earlier phase has put a value into a shared array."""
        vector = self.ctx.is_vector(window.position, const(1), self.ctx.dtype_of(point.name))
        self._buffers[point] = Buffer(window.array, True, vector, window.position, BEFORE)

    def has(self, point: Point) -> bool:
        """True if a nest before this one has put the point into a buffer."""
        filled_in = self._buffers[point].filled_in if point in self._buffers else None
        return filled_in is not None and filled_in < self.nest

    @property
    def keeps_vectors(self) -> bool:
        """True if some inputs are kept in whole vectors."""
        return any(buffer.vector for buffer in self._buffers.values())

    def unfilled(self, *, vector: bool) -> dict[Point, Buffer]:
        """The buffers that are not filled yet: those of whole vectors, or the others.

        The others are filled again by another branch that does the work of the same step.
        """
        buffers = self._buffers.items()
        return {p: b for p, b in buffers if b.filled_in is None and b.vector == vector}

    # ---- filling and reading

    def fill(self, point: Point, value: Computed, scope: Scope, width: int = 1) -> None:
        """Stores an element or a vector in its buffer, if it has one that is not filled yet."""
        ctx, (operand, needs), buffer = self.ctx, value, self._buffers.get(point)
        if buffer is None or buffer.filled_in is not None:
            return
        buffer.filled_in, dtype = self.nest, ctx.dtype_of(point.name)
        at = buffer.position if buffer.shared else ctx.slot
        at = at - ctx.lane_symbol if width > 1 else at
        put = Store(buffer.array, at, operand, dtype, width)
        kept = put if buffer.shared else Set(Lane(buffer.array, at), operand, dtype)
        scope.put(kept, needs | at.symbols)

    def load_into(self, point: Point, load: Load, needs: Needs, scope: Scope) -> Computed | None:
        """Loads a vector directly into its buffer, if it has one in registers."""
        ctx, buffer = self.ctx, self._buffers.get(point)
        if buffer is None or buffer.shared or buffer.filled_in not in (None, self.nest):
            return None
        needs |= ctx.step.symbols | {ctx.home}
        if buffer.filled_in is None:
            scope.put(Set(Lane(buffer.array, ctx.step), load, load.dtype), needs)
            buffer.filled_in = self.nest
        return Lane(buffer.array, ctx.step, ctx.lane_symbol), needs | ctx.lane_symbol.symbols

    def read(self, point: Point, scope: Scope) -> Computed:
        """Reads the element of a buffer that an earlier nest has filled."""
        ctx, buffer, lane = self.ctx, self._buffers[point], self.ctx.lane_symbol
        if not buffer.shared:
            needs = ctx.step.symbols | lane.symbols | {ctx.home} | point.symbols
            if buffer.vector:
                return Lane(buffer.array, ctx.step, lane), needs
            return Lane(buffer.array, ctx.slot), needs
        aside = lane if buffer.vector else const(0)
        position, width = buffer.position - aside, ctx.width if buffer.vector else 1
        needs = position.symbols | {ctx.home} | (point.symbols - aside.symbols)
        name, dtype = self._name(f"{point.name}_s", point), ctx.dtype_of(point.name)
        scope.define(Let(name, dtype, Load(buffer.array, position, dtype, width), width), needs)
        return (Lane(name, None, lane), needs | lane.symbols) if buffer.vector else (name, needs)
