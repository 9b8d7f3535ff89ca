# SPDX-License-Identifier: Apache-2.0
"""Rows reduced along themselves, and what comes of the rows of a group reduced once more, in one
pass: the backward of a group norm.

    T4[n, g, c] = sum(T3[n, g, c, hw], hw);  T5[n, g] = sum(T4, c);  T6 = T3 - T5

CUDA [K@blockIdx.x, C.o, C.i@threadIdx.y, R.o.o, R.o.i@threadIdx.x, R.i@vectorize]
     large groups over the blocks of a cluster: C.o -> C.o.o@cluster, C.o.i
CPU  [K@blockIdx.x, C, R@vectorize]

K are the groups, C the rows of one, R the columns. A block, or a cluster, has a group and keeps
what it reads of it. Its threads reduce each row; one of each row puts what is reduced over rows
into shared memory, where all of them reduce it, each warp for itself. Sums over other axes, as
those of a weight's gradient over n and hw, are partial results by row here: see
presegment/rfactor.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder_fuser.analysis.part import Part
from thunder_fuser.analysis.pattern import Axes, Pattern, rows_and_groups
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.schedule.axes import size_of, summed_order
from thunder_fuser.schedule.persistence import MAX_ELEMENTS, MAX_STEPS, held_of, register_bytes
from thunder_fuser.schedule.pointwise import too_many_places
from thunder_fuser.schedule.repeatable import Row, row_of
from thunder_fuser.schedule.scheduled import (
    HeuristicParams,
    ScheduledFusion,
    Transforms,
    reference,
)
from thunder_fuser.schedule.scheduler import Made, Match, Reject, read_elsewhere
from thunder_fuser.target import Target

WARP = 32
MOST_THREADS = 512
MOST_CLUSTER = 8  # each block's threads of a row send to all blocks; rows have 8 at least
CPU_ROWS = 4096  # of a group: what is reduced over them is on the stack
CPU_GROUPS = 16  # are work enough for a CPU's threads


@dataclass(frozen=True, slots=True)
class GroupShape:
    """threads: (along a row, rows side by side); steps: rows one after another; cluster: blocks."""

    width: int
    threads: tuple[int, int]
    steps: int
    cluster: int

    @property
    def room(self) -> int:
        """The rows that there are threads for."""
        return self.cluster * self.steps * self.threads[1]


@dataclass(frozen=True)
class Nested(Match):
    """Reductions of rows, and of their results over the rows of a group.

    The axes of groups, of a group's rows and of columns, each in memory order.
    """

    name = "nested"

    groups: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> Nested | Reject:
        axes = _nest(part, options)
        if isinstance(axes, Reject):
            return axes
        found = cls(part, target, options, *axes)
        groups, rows, columns = (size_of(part, one) for one in axes)
        if not fits(groups, rows, columns, found.bytes_read, target=target, options=options):
            reason = f"a group of {rows} rows with {columns} columns does not fit on chip"
            return Reject(NAME, reason)
        elsewhere = read_elsewhere(part, part.reductions, NAME)
        return elsewhere or too_many_places(part, NAME) or found

    @property
    def bytes_read(self) -> int:
        """Bytes of what is read for each element."""
        return bytes_read(self.part, frozenset(self.columns))

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        made = _cpu(self) if self.target.is_cpu else _cuda(self)
        kept = (*self.groups, *self.rows)
        scheduled = self.scheduled(
            made, alignment, kept=kept, reduced=self.columns, rows=self.rows
        )
        held = held_of(scheduled, size_of(self.part, self.rows))
        memory = "none" if self.target.is_cpu and not held else "registers"
        return replace(scheduled, params=replace(made[0], memory=memory), persistent=held)


NAME = Nested.name


def bytes_read(part: Part, columns: Axes) -> int:
    """Bytes of what a part reads for each element of such rows."""
    return sum(part.tensors[n].dtype.bytes for n in part.inputs if columns <= set(part.axes(n)))


def fits(
    groups: int, rows: int, columns: int, itemsize: int, *, target: Target, options: CompileOptions
) -> bool:
    """True if a block keeps a group of which `itemsize` bytes are read for each element."""
    if target.is_cpu:
        return groups >= CPU_GROUPS and rows <= CPU_ROWS
    return group_shape(rows, columns, itemsize, target, options) is not None


def group_shape(
    rows: int, columns: int, itemsize: int, target: Target, options: CompileOptions
) -> GroupShape | None:
    """Who reduces a group, if its elements fit the registers of a block or a small cluster.

    The threads of a row, and the order in which rows are reduced, are those of their lengths
    (repeatable.py), so that another kernel gives a sum the same bits. Of clusters the one is best
    that leaves the fewest threads without a row.

    >>> from thunder_fuser.options import compile_options
    >>> from thunder_fuser.target import A100, H200
    >>> group_shape(8, 1024, 4, H200, compile_options())
    GroupShape(width=8, threads=(64, 8), steps=1, cluster=1)
    >>> group_shape(10, 4096, 4, H200, compile_options())
    GroupShape(width=8, threads=(256, 2), steps=1, cluster=5)
    >>> group_shape(10, 4096, 4, A100, compile_options())
    """
    row, over = row_of(columns, target), row_of(rows, target)
    if row.cluster > 1 or over.cluster > 1 or over.threads > WARP:
        return None
    made = (_shape(-(-rows // k), k, row) for k in range(1, _most_blocks(target) + 1))
    fitting = [shape for shape in made if _is_held(shape, columns, itemsize, options)]
    return min(fitting, key=lambda one: (one.cluster > 1, one.room, one.cluster), default=None)


def _most_blocks(target: Target) -> int:
    return min(target.max_cluster, MOST_CLUSTER)


def _shape(rows: int, cluster: int, row: Row) -> GroupShape:
    """For so many rows of each block."""
    steps = -(-rows // max(MOST_THREADS // row.threads, 1))
    side = -(-rows // steps)
    while side * row.threads % WARP:
        side += 1
    return GroupShape(row.width, (row.threads, side), steps, cluster)


def _is_held(shape: GroupShape, columns: int, itemsize: int, options: CompileOptions) -> bool:
    vectors = -(-columns // (shape.width * shape.threads[0])) * shape.steps
    share = vectors * shape.width
    limit = register_bytes(shape.threads[0] * shape.threads[1], options)
    return vectors <= MAX_STEPS and share <= MAX_ELEMENTS and share * itemsize <= limit


def _nest(
    part: Part, options: CompileOptions
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | Reject:
    """The axes of groups, rows and columns of all reductions, or why they do not nest."""
    if part.has_empty or part.chunked or part.scans:
        return Reject(NAME, "there is a scan, a partial result or a tensor without elements")
    if any(expr.row.kind is OpKind.EXTERNAL for expr in part.exprs):
        return Reject(NAME, "there is a torch call")
    first: dict[Pattern, str] = {}
    for name, pattern in part.patterns.items():
        first.setdefault(pattern, name)
    if len(first) != 2:
        return Reject(NAME, f"reductions of {len(first)} patterns, not of two")
    pair = rows_and_groups(first)
    if pair is None or not pair[1].kept:
        return Reject(NAME, "one pattern does not reduce what the other one keeps, in groups")
    row, group = pair
    for name, axes in part.stored_axes.items():
        if axes not in (group.kept, row.kept, row.walked):
            return Reject(NAME, f"result {name} is of no group, row or element")
    order = summed_order(part, part.producer[first[row]], row.walked, options)
    groups, columns = order[: len(group.kept)], order[len(row.kept) :]
    is_nested = set(groups) == group.kept and set(columns) == row.reduced
    if not is_nested or not are_innermost(part, row.reduced):
        return Reject(NAME, "a group's rows, or their columns, are not neighbours in memory")
    over = summed_order(part, part.producer[first[group]], row.kept, options)
    return groups, tuple(a for a in over if a in group.reduced), columns


def are_innermost(part: Part, columns: frozenset[str]) -> bool:
    """True if they are the fastest axes in memory of all that has them."""
    lies = [part.memory_axes(name) for name in part.global_tensors]
    ends = [set(axes[len(axes) - len(columns) :]) for axes in lies if columns <= set(axes)]
    return all(end == columns for end in ends)


def _cuda(found: Nested) -> Made:
    """[K, C, R] -> [K@bx, C.o, C.i@ty, R.o.o, R.o.i@tx, R.i@vectorize]"""
    part, target, options = found.part, found.target, found.options
    rows, columns = size_of(part, found.rows), size_of(part, found.columns)
    shape = group_shape(rows, columns, found.bytes_read, target, options)
    assert shape is not None
    x, y = shape.threads
    s = Transforms(reference(part, (*found.groups, *found.rows), found.columns))
    group = s.merge(found.groups)
    steps, row = s.split(s.merge(found.rows), y)
    if shape.cluster > 1:
        rank, _ = s.split(steps, shape.steps)
        s.parallelize(rank, ParallelType.CLUSTER)
    vectors, lane = s.split(s.merge(found.columns), shape.width)
    _, thread = s.split(vectors, x)
    s.parallelize(group, ParallelType.BIDX)
    s.parallelize(row, ParallelType.TIDY)
    s.parallelize(thread, ParallelType.TIDX)
    s.parallelize(lane, ParallelType.VECTORIZE)
    params = HeuristicParams(NAME, shape.width, shape.threads, cluster=shape.cluster)
    return params, tuple(s.made)


def _cpu(found: Nested) -> Made:
    """[K, C, R] -> [K@bx, C, R@vectorize]"""
    s = Transforms(reference(found.part, (*found.groups, *found.rows), found.columns))
    group = s.merge(found.groups)
    s.merge(found.rows)
    lane = s.merge(found.columns)
    s.parallelize(group, ParallelType.BIDX)
    s.parallelize(lane, ParallelType.VECTORIZE)
    return HeuristicParams(NAME, s.extent(lane)), tuple(s.made)
