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
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import names_of
from thunder_fuser.schedule.axes import summed_order
from thunder_fuser.schedule.persistence import kept_inputs
from thunder_fuser.schedule.repeatable import has_long_rows, row_of, settled_shape
from thunder_fuser.schedule.row_shape import fits, row_shape
from thunder_fuser.schedule.scheduled import HeuristicParams, ScheduledFusion, Transforms
from thunder_fuser.schedule.scheduler import Made, Match, Reject, refuse_ops, refuse_reads
from thunder_fuser.target import Target

CPU_SUM_BYTES = 256 * 1024  # sums a thread keeps in its second-level cache


@dataclass(frozen=True, kw_only=True)
class InnerOuter(Match):
    """Reductions of rows, and partial ones over a run of rows, that share what they read.

    kept: the axes of rows; reduced: of columns.
    """

    name = "inner_outer"

    run: int  # the rows of one

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> Match | Reject:
        refused = refuse_ops(part, cls.name, OpKind.SCAN, OpKind.EXTERNAL)
        axes = refused or _axes(part, options)
        if isinstance(axes, Reject):
            return axes
        found = cls(part, target, options, *axes, run=part.chunked.size if part.chunked else 0)
        if not found.is_held:
            reason = f"{found.reduced_size} columns and their sums do not fit on chip"
            return Reject(cls.name, reason)
        return refuse_reads(part, cls.name, part.reductions) or found

    @property
    def is_held(self) -> bool:
        """True if a thread, block or cluster keeps the columns of a row and their sums."""
        columns, target = self.reduced_size, self.target
        if target.is_cpu:
            return columns * 8 * self.sums <= CPU_SUM_BYTES
        return not has_long_rows(columns, target) if self.has_order else fits(columns, target)

    @property
    def sums(self) -> int:
        """How many sums over rows there are."""
        return len(self.part.partial)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        made = _cpu(self) if self.target.is_cpu else _cuda(self, alignment)
        scheduled = self.scheduled(made, alignment)
        params = replace(made[0], memory="registers")
        return replace(scheduled, params=params, persistent=kept_inputs(scheduled))


def _axes(part: Part, options: CompileOptions) -> tuple[tuple[str, ...], tuple[str, ...]] | Reject:
    """The axes of rows and of columns, or why there are none."""
    chunked = part.chunked
    if chunked is None:
        return Reject(InnerOuter.name, "there are no partial results over rows")
    rows, columns = chunked.reduced, part.patterns[part.partial[0]].kept - {chunked.axis}
    refused = _refuse_patterns(part, chunked, columns)
    if refused is not None:
        return refused
    order = summed_order(part, part.reductions[0], {*rows, *columns}, options)
    if order[: len(rows)] != rows:
        return Reject(InnerOuter.name, "rows do not lie one after another in memory")
    return _refuse_results(part, chunked, columns) or (rows, order[len(rows) :])


def _refuse_patterns(part: Part, chunked: Chunked, columns: Axes) -> Reject | None:
    """Refuses a reduction that is neither of rows nor, in runs of one length, over rows."""
    partial, over = set(part.partial), Pattern(columns, frozenset(chunked.reduced))
    along = Pattern(over.reduced, over.kept)
    for name, pattern in part.patterns.items():
        if pattern.without(chunked.axis) != (over if name in partial else along):
            return Reject(InnerOuter.name, f"{name} reduces neither rows nor columns")
    if len(partial) == len(part.reductions):
        return Reject(InnerOuter.name, "no row is reduced along itself")
    if {e.attr("chunk") for e in part.reductions} - {None, chunked.size}:
        return Reject(InnerOuter.name, "runs of several lengths")
    return None


def _refuse_results(part: Part, chunked: Chunked, columns: Axes) -> Reject | None:
    """Refuses results of other axes, and a partial result that is read where it is made."""
    partial, along = set(part.partial), Pattern(frozenset(chunked.reduced), columns)
    foreign = along.foreign(part.stored_axes.values())
    for name, axes in part.stored_axes.items():
        if name not in partial and axes in foreign:
            return Reject(InnerOuter.name, f"result {name} is neither a row value nor a full one")
    if any(set(names_of(expr)) & partial for expr in part.exprs):
        return Reject(InnerOuter.name, "a partial result is used in the same kernel")
    return None


def _cuda(found: InnerOuter, alignment: dict[str, int]) -> Made:
    """[M, N] -> [M.o@bx, M.i.o, M.i.i@ty, N.o.o, N.o.i@tx, N.i@vectorize]"""
    columns, target = found.reduced_size, found.target
    shape, width = row_shape(columns, found.sums, target), 0
    if found.has_order:
        shape, width = settled_shape(columns, found.sums, target), row_of(columns, target).width
    (x, y), cluster = shape.threads, shape.cluster

    def build(s: Transforms, width: int) -> bool:
        if columns % width:  # a shifted row's sums would be of other columns than the next one's
            return False
        run, rows = s.split(s.merge(found.kept), found.run)
        _, row = s.split(rows, y)
        vectors, lane = s.split(s.merge(found.reduced), width)
        thread = s.deal(vectors, x, cluster)
        s.bind(BIDX=run, TIDY=row, TIDX=thread, VECTORIZE=lane)
        return True

    width, transforms = found.widest(build, alignment, width)
    params = HeuristicParams(found.name, width, (x, y), cluster=cluster, blocks=shape.blocks)
    return params, transforms


def _cpu(found: InnerOuter) -> Made:
    """[M, N] -> [M.o@bx, M.i, N@vectorize]"""
    s = Transforms(found.domain)
    run, _ = s.split(s.merge(found.kept), found.run)
    lane = s.merge(found.reduced)
    s.bind(BIDX=run, VECTORIZE=lane)
    return HeuristicParams(found.name, s.extent(lane)), tuple(s.made)
