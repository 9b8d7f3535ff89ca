# SPDX-License-Identifier: Apache-2.0
"""Rows reduced along themselves, and summed over each other, in one pass: the norms' backward.

    dx needs sums over columns, dweight and dbias sums over rows; all of them read x and dy.

CUDA [M.o@blockIdx.x, M.i.o, M.i.i@threadIdx.y, N.o.o, N.o.i@threadIdx.x, N.i@vectorize]
     long rows also over the blocks of a cluster: N.o.i -> N.o.i.o@cluster, N.o.i.i
CPU  [M.o@blockIdx.x, M.i, N@vectorize]

A block walks a run of rows (presegment/rfactor.py has cut them), keeps its sums over rows in
registers meanwhile, and writes them once: partial results, which a second kernel adds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder_fuser.analysis.part import Chunked, Part
from thunder_fuser.analysis.pattern import Axes, Pattern
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import ParallelType, Transform
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import names_of
from thunder_fuser.schedule.axes import best_width, size_of, summed_order
from thunder_fuser.schedule.persistence import kept_inputs
from thunder_fuser.schedule.pointwise import too_many_places
from thunder_fuser.schedule.repeatable import has_long_rows, has_order, row_of, settled_shape
from thunder_fuser.schedule.row_shape import fits, row_shape
from thunder_fuser.schedule.scheduled import (
    HeuristicParams,
    ScheduledFusion,
    Transforms,
    reference,
)
from thunder_fuser.schedule.scheduler import Made, Match, Reject, read_elsewhere
from thunder_fuser.target import Target

CPU_SUM_BYTES = 256 * 1024  # sums a thread keeps in its second-level cache


@dataclass(frozen=True)
class InnerOuter(Match):
    """Reductions of rows, and partial ones over a run of rows, that share what they read.

    rows, columns: in memory order; run: the rows of one; has_order: see repeatable.py.
    """

    name = "inner_outer"

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    run: int
    has_order: bool

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> InnerOuter | Reject:
        axes = _axes(part, options)
        if isinstance(axes, Reject):
            return axes
        found = cls(part, target, options, *axes, has_order=has_order(part, options))
        if not found.is_held:
            columns = size_of(part, found.columns)
            return Reject(NAME, f"{columns} columns and their sums do not fit on chip")
        return read_elsewhere(part, part.reductions, NAME) or too_many_places(part, NAME) or found

    @property
    def is_held(self) -> bool:
        """True if a thread, block or cluster keeps the columns of a row and their sums."""
        columns, target = size_of(self.part, self.columns), self.target
        if target.is_cpu:
            return columns * 8 * self.sums <= CPU_SUM_BYTES
        return not has_long_rows(columns, target) if self.has_order else fits(columns, target)

    @property
    def sums(self) -> int:
        """How many sums over rows there are."""
        return len(_partial(self.part))

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        made = _cpu(self) if self.target.is_cpu else _cuda(self, alignment)
        scheduled = self.scheduled(made, alignment, kept=self.rows, reduced=self.columns)
        params = replace(made[0], memory="registers")
        return replace(scheduled, params=params, persistent=kept_inputs(scheduled))


NAME = InnerOuter.name


def _partial(part: Part) -> list[str]:
    return [e.outputs[0] for e in part.reductions if e.attr("chunk") is not None]


def _axes(
    part: Part, options: CompileOptions
) -> tuple[tuple[str, ...], tuple[str, ...], int] | Reject:
    """The axes of rows and of columns, and the rows of a run, or why there are none."""
    chunked = part.chunked
    if part.has_empty or chunked is None:
        return Reject(NAME, "there are no partial results over rows")
    if part.scans or any(expr.row.kind is OpKind.EXTERNAL for expr in part.exprs):
        return Reject(NAME, "there is a scan or a torch call")
    rows, columns = chunked.reduced, part.patterns[_partial(part)[0]].kept - {chunked.axis}
    refused = _refuse_patterns(part, chunked, columns)
    if refused is not None:
        return refused
    order = summed_order(part, part.reductions[0], {*rows, *columns}, options)
    if order[: len(rows)] != rows:
        return Reject(NAME, "rows do not lie one after another in memory")
    return _refuse_results(part, chunked, columns) or (rows, order[len(rows) :], chunked.size)


def _refuse_patterns(part: Part, chunked: Chunked, columns: Axes) -> Reject | None:
    """Refuses a reduction that is neither of rows nor, in runs of one length, over rows."""
    partial, over = set(_partial(part)), Pattern(columns, frozenset(chunked.reduced))
    along = Pattern(over.reduced, over.kept)
    for name, pattern in part.patterns.items():
        if pattern.without(chunked.axis) != (over if name in partial else along):
            return Reject(NAME, f"{name} reduces neither rows nor columns")
    if len(partial) == len(part.reductions):
        return Reject(NAME, "no row is reduced along itself")
    if {e.attr("chunk") for e in part.reductions} - {None, chunked.size}:
        return Reject(NAME, "runs of several lengths")
    return None


def _refuse_results(part: Part, chunked: Chunked, columns: Axes) -> Reject | None:
    """Refuses results of other axes, and a partial result that is read where it is made."""
    partial, along = set(_partial(part)), Pattern(frozenset(chunked.reduced), columns)
    foreign = along.foreign(part.stored_axes.values())
    for name, axes in part.stored_axes.items():
        if name not in partial and axes in foreign:
            return Reject(NAME, f"result {name} is neither a row value nor a full one")
    if any(set(names_of(expr)) & partial for expr in part.exprs):
        return Reject(NAME, "a partial result is used in the same kernel")
    return None


def _cuda(found: InnerOuter, alignment: dict[str, int]) -> Made:
    """[M, N] -> [M.o@bx, M.i.o, M.i.i@ty, N.o.o, N.o.i@tx, N.i@vectorize]"""
    part, target = found.part, found.target
    domain = reference(part, found.rows, found.columns)
    columns = size_of(part, found.columns)
    sums, width = found.sums, 0
    shape = row_shape(columns, sums, target)
    if found.has_order:
        shape, width = settled_shape(columns, sums, target), row_of(columns, target).width
    (x, y), cluster = shape.threads, shape.cluster

    def build(width: int) -> tuple[Transform, ...] | None:
        if columns % width:  # a shifted row's sums would be of other columns than the next one's
            return None
        s = Transforms(domain)
        run, rows = s.split(s.merge(found.rows), found.run)
        _, row = s.split(rows, y)
        vectors, lane = s.split(s.merge(found.columns), width)
        _, thread = s.split(vectors, x * cluster)
        if cluster > 1:
            rank, thread = s.split(thread, x)
            s.parallelize(rank, ParallelType.CLUSTER)
        s.parallelize(run, ParallelType.BIDX)
        s.parallelize(row, ParallelType.TIDY)
        s.parallelize(thread, ParallelType.TIDX)
        s.parallelize(lane, ParallelType.VECTORIZE)
        return tuple(s.made)

    width = width or best_width(part, domain, build, alignment)
    params = HeuristicParams(NAME, width, (x, y), cluster=cluster, blocks=shape.blocks)
    return params, build(width) or ()


def _cpu(found: InnerOuter) -> Made:
    """[M, N] -> [M.o@bx, M.i, N@vectorize]"""
    s = Transforms(reference(found.part, found.rows, found.columns))
    run, _ = s.split(s.merge(found.rows), found.run)
    lane = s.merge(found.columns)
    s.parallelize(run, ParallelType.BIDX)
    s.parallelize(lane, ParallelType.VECTORIZE)
    return HeuristicParams(NAME, s.extent(lane)), tuple(s.made)
