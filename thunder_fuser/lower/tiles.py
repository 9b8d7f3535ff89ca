# SPDX-License-Identifier: Apache-2.0
"""The phases of a kernel whose tensors cross a tile in shared memory, each with its own loops.

read:     for tile of T0, in T0's order:   T0_t[moved] = T0[...]          barrier
compute:  for tile, in the schedule's:     T1[...] = relu(T0_t[computed])
write:    for results in the other order, after a barrier:  T2[...] = T2_t[moved]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder_fuser.analysis.demand import Demand, Point
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.lower.context import Context
from thunder_fuser.schedule.scheduled import ScheduledFusion, Tile


@dataclass(frozen=True, slots=True)
class Window:
    """A shared array and the position of this thread's element in it, lane and all."""

    array: str
    position: Scalar


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: what it does, its loops, the points it finds in tiles, the results it puts."""

    what: str
    ctx: Context
    kept: dict[Point, Window]
    put: dict[str, Window]


def phases(scheduled: ScheduledFusion, tile: Tile) -> list[Phase]:
    """What is read, computed and written, in that order."""
    compute = Context(scheduled)
    loaded = [(p.name, Window(f"{p.name}_t", tile.moved)) for p in tile.loads]
    kept = {_at(p, compute): Window(f"{p.name}_t", tile.computed) for p in tile.loads}
    put = {name: Window(f"{name}_t", tile.computed) for name in tile.stores}
    found = [Phase("compute", compute, kept, put)]
    if tile.loads:
        found.insert(0, Phase("read", _moving(scheduled, tile, tile.loads), {}, dict(loaded)))
    if tile.stores:
        points = tuple(scheduled.part.demand.results[name] for name in tile.stores)
        ctx = _moving(scheduled, tile, points)
        windows = {_at(p, ctx): Window(f"{p.name}_t", tile.moved) for p in points}
        found.append(Phase("write", ctx, windows, {}))
    return found


def _at(point: Point, ctx: Context) -> Point:
    """A point over plain axis symbols, over the loops of a phase."""
    index = tuple(x.substitute(ctx.loops.index) for x in point.index)
    return Point(point.name, index, point.condition.substitute(ctx.loops.index))


def _moving(scheduled: ScheduledFusion, tile: Tile, points: tuple[Point, ...]) -> Context:
    """A phase that only moves these points, in the tile's own loops."""
    ctx = Context(replace(scheduled, transforms=tile.transforms))
    moved = {point.name: _at(point, ctx) for point in points}
    level = dict.fromkeys(moved.values(), 0)
    ctx.demand = Demand({}, level, tuple(level), moved, {})
    return ctx
