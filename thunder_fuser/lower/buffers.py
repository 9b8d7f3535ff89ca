# SPDX-License-Identifier: Apache-2.0
"""Persistent buffers: arrays that one nest fills and later ones read again, in registers or shared.

nest 0:  T0_p[s] = ldv<8>(T0, ...)         an input, in whole vectors
nest 1:  ... T0_p[s].v[v] ...              read where a load would be
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from thunder_fuser.analysis.demand import Point
from thunder_fuser.analysis.part import offset
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import (
    Array,
    Lane,
    Let,
    Set,
    SharedLoad,
    SharedStore,
)
from thunder_fuser.lower.scope import Found, Names, Scope
from thunder_fuser.lower.shared import SharedMemory
from thunder_fuser.lower.tiles import Window

BEFORE = -1  # the number of no nest: what was filled there is there for all


@dataclass
class Buffer:
    """A persistent buffer: its array, whether its elements are Vecs, the nest that fills it.

    position: where this lane's element is, if the array is shared.
    """

    array: str
    shared: bool
    vector: bool
    position: Scalar = field(default_factory=lambda: const(0))
    filled_in: int | None = None


class Buffers:
    """The buffers of one kernel, by the points they hold."""

    def __init__(self, ctx: Context, shared: SharedMemory, names: Names) -> None:
        self.ctx, self.shared, self._name = ctx, shared, names
        self._buffers: dict[Point, Buffer] = {}

    def get(self, point: Point) -> Buffer | None:
        """The buffer of a point, filled or not."""
        return self._buffers.get(point)

    def has(self, point: Point, nest: int) -> bool:
        """True if a nest before this one has put the point into a buffer."""
        buffer = self._buffers.get(point)
        return buffer is not None and buffer.filled_in is not None and buffer.filled_in < nest

    def declare(self, scope: Scope) -> None:
        """Arrays for the buffers of the schedule."""
        axes = self.ctx.loops.index
        for buffer in self.ctx.scheduled.persistent:
            plain = buffer.point
            point = Point(
                plain.name,
                tuple(at.substitute(axes) for at in plain.index),
                plain.condition.substitute(axes),
            )
            self._declare(point, buffer.memory == "shared", scope)

    def _declare(self, point: Point, shared: bool, scope: Scope) -> None:
        ctx, view = self.ctx, self.ctx.part.tensors[point.name]
        name = self._name(f"{view.name}_p", point)
        is_input = point.name not in ctx.part.producer
        position = offset(point.index, ctx.part.strides[view.name]) if is_input else const(0)
        vector = is_input and self.ctx.loads_vector(point, position)
        self._buffers[point] = Buffer(name, shared, vector, self._own_position())
        if shared:
            x, y = ctx.threads
            scope.put(self.shared.array(name, view.dtype, x * y * ctx.steps * ctx.lanes))
        elif vector:
            scope.put(Array(name, view.dtype, ctx.steps, ctx.width))
        else:
            scope.put(Array(name, view.dtype, ctx.steps * self.ctx.lanes))

    def keep(self, point: Point, window: Window) -> None:
        """A value that an earlier pass has put into a shared array."""
        dtype = self.ctx.part.tensors[point.name].dtype
        vector = self.ctx.is_vector(window.position, const(1), dtype)
        self._buffers[point] = Buffer(window.array, True, vector, window.position, BEFORE)

    @property
    def keeps_vectors(self) -> bool:
        """True if there are inputs that are kept in whole vectors."""
        return any(buffer.vector for buffer in self._buffers.values())

    def vectors_to_fill(self) -> Iterator[Point]:
        """The inputs kept in whole vectors that have not been loaded."""
        return (p for p, b in self._buffers.items() if b.vector and b.filled_in is None)

    def unfilled(self) -> list[Buffer]:
        """The buffers that are filled element by element and have not been."""
        return [b for b in self._buffers.values() if b.filled_in is None and not b.vector]

    def refill(self, buffers: list[Buffer]) -> None:
        """Fills these buffers again: another branch does the work of the same step."""
        for buffer in buffers:
            buffer.filled_in = None

    def _own_position(self) -> Scalar:
        """Each thread keeps its own: ((y * steps + step) * threads.x + x) * lanes + lane."""
        ctx = self.ctx
        by = {a.parallel: ctx.loops.loops[a.name] for a in ctx.root_loops}
        x, y = by.get(ParallelType.TIDX, const(0)), by.get(ParallelType.TIDY, const(0))
        return ((y * ctx.steps + ctx.step) * ctx.threads[0] + x) * ctx.lanes + ctx.lane_symbol

    def fill(self, point: Point, found: Found, nest: int, scope: Scope) -> Found:
        """Puts a value made element by element into its buffer."""
        ctx, (operand, needs), buffer = self.ctx, found, self._buffers[point]
        view = ctx.part.tensors[point.name]
        buffer.filled_in = nest
        if buffer.shared:
            home = scope.home(needs | buffer.position.symbols | {ctx.home})
            home.put(SharedStore(buffer.array, buffer.position, operand, 1, view.dtype))
            return found
        flat = ctx.step * self.ctx.lanes + ctx.lane_symbol
        home = scope.home(needs | flat.symbols | {ctx.home})
        home.put(Set(Lane(buffer.array, flat), operand, view.dtype))
        return found

    def read(self, point: Point, scope: Scope) -> Found:
        """The element of a buffer that an earlier nest has filled."""
        ctx, view, buffer = self.ctx, self.ctx.part.tensors[point.name], self._buffers[point]
        lane = ctx.lane_symbol
        if not buffer.shared:
            needs = ctx.step.symbols | lane.symbols | {ctx.home} | point.symbols
            if buffer.vector:
                return Lane(buffer.array, ctx.step, lane), needs
            return Lane(buffer.array, ctx.step * self.ctx.lanes + lane), needs
        position, width = buffer.position, 1
        if buffer.vector:
            position, width = position - lane, ctx.width
        own = point.symbols - lane.symbols if buffer.vector else point.symbols
        needs = position.symbols | {ctx.home} | own
        name = self._name(f"{view.name}_s", point)
        load = SharedLoad(buffer.array, position, view.dtype, width)
        scope.put_once(needs, Let(name, view.dtype, load, width))
        if buffer.vector:
            return Lane(name, None, lane), needs | lane.symbols
        return name, needs
