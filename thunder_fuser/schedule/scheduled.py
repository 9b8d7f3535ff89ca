# SPDX-License-Identifier: Apache-2.0
"""A part with its schedule: the transforms of the kernel's axes, and the values kept on chip.

The axes are those of the reference domain: first the kept ones, then the reduced ones. Scheduling
transforms them once. The same transforms, replayed on the axes of a tensor, give its loop domain.

    axes [i0{4096}, i1{8192}]
    split("i1", 8); split("i1.o", 256); parallelize("i0", "blockIdx.x"); ...
    T2  logical[i0, i1]  loop[i0@blockIdx.x, i1.o.o, i1.o.i@threadIdx.x, i1.i@vectorize]
    T3  logical[i0, r1]  loop[i0@blockIdx.x, ...]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.analysis.part import Part
from thunder_fuser.base.threads import cached_property
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import (
    Domain,
    IterDomain,
    IterType,
    Merge,
    Parallelize,
    ParallelType,
    Reorder,
    Split,
    Transform,
    apply,
    merged_name,
    replay,
)
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.target import Target


@dataclass(frozen=True, slots=True)
class HeuristicParams:
    """What a scheduler decided. Frozen, so that it can be part of a key.

    vectorize: elements that a thread loads at once; threads: of a block, (x, y); unroll: vectors
    that a thread has under way; memory: where persistent buffers are (registers, shared or none);
    cluster: blocks that share a row; blocks: how many an SM shall hold at once, 0 if any number.
    """

    scheduler: str
    vectorize: int = 1
    threads: tuple[int, int] = (1, 1)
    unroll: int = 1
    inner: bool = True
    memory: str = "none"
    cluster: int = 1
    blocks: int = 0

    def __str__(self) -> str:
        x, y = self.threads
        words = [f"vectorize={self.vectorize}", f"threads={x}x{y}", f"unroll={self.unroll}"]
        if self.cluster > 1:
            words.append(f"cluster={self.cluster}")
        if self.blocks > 1:
            words.append(f"blocks={self.blocks}")
        if self.memory != "none":
            words.append(f"persistent in {self.memory}")
        return f"{self.scheduler}({', '.join(words)})"


@dataclass(frozen=True, slots=True)
class PersistentBuffer:
    """A value kept on chip between nests: its point, the bytes of one row of it, and where.

    filled: the nest that computes it; last: the last nest that reads it. Registers hold the dtype
    of memory, because ptxas converts 16-bit elements to float in each nest.
    """

    point: Point
    bytes: int
    memory: str = ""
    filled: int = 0
    last: int = 0


@dataclass(frozen=True)
class Tile:
    """The tensors that pass through shared memory, a tile for each block; see transpose.py.

    loads: points of inputs, which are read before the computation; stores: results, which are
    written after it; both by the loops that `transforms` make. elements: of each tensor's tile;
    computed, moved: an element's place in it, from the loops of the schedule and from these loops.
    """

    loads: tuple[Point, ...]
    stores: tuple[str, ...]
    transforms: tuple[Transform, ...]
    elements: int
    computed: Scalar
    moved: Scalar


@dataclass(frozen=True)
class ScheduledFusion:
    """A part, the transforms of its axes, its persistent buffers, and its tile.

    rows: the kept axes that are the rows of a group, if a block reduces groups (nested.py).
    pieces: the schedules among which the blocks are divided, if there are several (joined.py).
    """

    part: Part
    target: Target
    options: CompileOptions
    kept: tuple[str, ...]
    reduced: tuple[str, ...]
    params: HeuristicParams
    transforms: tuple[Transform, ...]
    alignment: tuple[tuple[str, int], ...]
    persistent: tuple[PersistentBuffer, ...] = ()
    tile: Tile | None = None
    rows: tuple[str, ...] = ()
    pieces: tuple[ScheduledFusion, ...] = ()

    @cached_property
    def axes(self) -> Domain:
        """The reference domain before any transform."""
        return reference(self.part, self.kept, self.reduced)

    @cached_property
    def loop(self) -> Domain:
        """The reference domain after all transforms: the loops of the kernel, outermost first."""
        return reduce(apply, self.transforms, self.axes)

    @cached_property
    def carried(self) -> tuple[str, ...]:
        """The partial results that a block or cluster adds up over its rows, if it reduces rows."""
        partial = self.part.partial
        return partial if len(partial) < len(self.part.reductions) else ()

    @cached_property
    def column_sums(self) -> tuple[str, ...]:
        """The sums over the rows of a group that keep the columns."""
        return self.part.reductions_that_keep(self.reduced) if self.rows else ()

    def loop_of(self, name: str) -> Domain:
        """The loop domain of one tensor: its axes in the reference's order, then the transforms."""
        view = self.part.tensors[name]
        of = self.part.domain_map.axis
        runs = self.part.chunked.axis if self.part.chunked else None  # made of the reduced axes
        logical = [a for a in view.domain.logical if not a.is_broadcast and of(a) != runs]
        axes = [IterDomain(of(a), a.extent, a.kind) for a in logical]
        order = {axis.name: at for at, axis in enumerate(self.axes)}
        axes.sort(key=lambda axis: order.get(axis.name, len(order)))
        return replay(tuple(axes), self.transforms)

    def __str__(self) -> str:
        if self.pieces:
            return "\n".join(map(str, self.pieces))
        lines = [f"def schedule(s):  # {self.params}"]
        lines += [f"    s.{_transform_text(t)}" for t in self.transforms]
        if self.params.blocks:
            lines.append(f"    s.blocks({self.params.blocks})")
        cached = {buffer.point.name: buffer for buffer in self.persistent}
        for name, buffer in cached.items():
            dtype = self.part.tensors[name].dtype.short
            comment = f"  # {dtype}, {buffer.bytes} bytes a row"
            lines.append(f'    s.cache("{name}", "{buffer.memory}"){comment}')
        lines += ["    pass"] * (len(lines) == 1)
        for name in self.part.producer:
            loop = ", ".join(str(axis) for axis in self.loop_of(name))
            lines.append(f"    # {name:<4} loop[{loop}]")
        if self.tile is not None:
            lines += _tile_text(self.tile)
        return "\n".join(lines) + "\n"


def _tile_text(tile: Tile) -> list[str]:
    names = [point.name for point in tile.loads]
    moves = [f"read {', '.join(names)} before"] * bool(names)
    moves += [f"write {', '.join(tile.stores)} after"] * bool(tile.stores)
    lines = [f"def move(s):  # {', '.join(moves)}; {tile.elements} elements each in shared memory"]
    lines += [f"    s.{_transform_text(t)}" for t in tile.transforms]
    return [*lines, f"    # element {tile.moved}, computed at {tile.computed}"]


def _transform_text(transform: Transform) -> str:
    if isinstance(transform, Split):
        shift = "" if transform.shift is None else f', shift="{transform.shift}"'
        return f'split("{transform.axis}", {transform.factor}{shift})'
    if isinstance(transform, Merge):
        return f'merge("{transform.outer}", "{transform.inner}")'
    if isinstance(transform, Reorder):
        return f"reorder({list(transform.order)})"
    return f'parallelize("{transform.axis}", "{transform.parallel.value}")'


def params_of(like: HeuristicParams, loop: Domain, blocks: int) -> HeuristicParams:
    """The parameters of a schedule with these loops. like: those of another schedule."""
    bound = {axis.parallel: axis for axis in loop}

    def extent(parallel: ParallelType) -> int:
        return int(bound[parallel].extent.value) if parallel in bound else 1

    walks = bound.get(ParallelType.TIDX) or bound.get(ParallelType.VECTORIZE)
    reduces = any(axis.is_reduction for axis in loop)
    return HeuristicParams(
        like.scheduler,
        extent(ParallelType.VECTORIZE),
        (extent(ParallelType.TIDX), extent(ParallelType.TIDY)),
        extent(ParallelType.UNROLL),
        walks.is_reduction if reduces and walks else like.inner,
        cluster=extent(ParallelType.CLUSTER),
        blocks=blocks,
    )


class Transforms:
    """Collects transforms on a reference domain, as a scheduler makes them."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.applied: list[Transform] = []

    def split(self, axis: str, factor: int, shift: Scalar | None = None) -> tuple[str, str]:
        """axis -> (axis.o, axis.i), axis.i of extent `factor`."""
        self.add(Split(axis, factor, shift=shift))
        return axis + ".o", axis + ".i"

    def merge(self, names: tuple[str, ...]) -> str:
        """Merges neighbours, the first outermost, into one axis. A single axis stays as it is."""
        merged = names[0]
        for name in names[1:]:
            self.add(Merge(merged, name))
            merged = merged_name(merged, name)
        return merged

    def reorder(self, *order: str) -> None:
        self.add(Reorder(order))

    def bind(self, **loops: str) -> None:
        """Says what iterates over loops: bind(BIDX=block, VECTORIZE=lane)."""
        for parallel, axis in loops.items():
            self.add(Parallelize(axis, ParallelType[parallel]))

    def deal(self, vectors: str, threads: int, cluster: int = 1) -> str:
        """Deals the vectors of a row in turn to the threads of `cluster` blocks; returns the axis
        of threads.

        v -> v.o, v.i                with a cluster: v -> v.o, v.i.o@cluster, v.i.i
        """
        _, thread = self.split(vectors, threads * cluster)
        if cluster > 1:
            rank, thread = self.split(thread, threads)
            self.bind(CLUSTER=rank)
        return thread

    def extent(self, axis: str) -> int:
        """The extent of an axis now."""
        return next(a.extent.value for a in self.domain if a.name == axis)

    @property
    def lanes(self) -> IterDomain:
        """The vectorized axis."""
        return next(a for a in self.domain if a.parallel is ParallelType.VECTORIZE)

    def add(self, transform: Transform) -> None:
        """Applies one more transform; ScheduleError if an axis that it names does not exist."""
        self.domain = apply(self.domain, transform)
        self.applied.append(transform)


def reference(part: Part, kept: tuple[str, ...], reduced: tuple[str, ...]) -> Domain:
    """The axes that a scheduler starts from. A part without axes gets one of extent 1."""
    extents = part.extents
    domain = [IterDomain(name, extents[name]) for name in kept]
    domain += [IterDomain(name, extents[name], IterType.REDUCTION) for name in reduced]
    return tuple(domain) or (IterDomain("i", const(1)),)
