# SPDX-License-Identifier: Apache-2.0
"""Rows reduced along themselves, and summed over each other, in one pass: the norms' backward.

    dx needs sums over columns, dweight and dbias sums over rows; all of them read x and dy.

CUDA [M.o@blockIdx.x, M.i.o, M.i.i@threadIdx.y, N.o.o, N.o.i@threadIdx.x, N.i@vectorize]
     long rows also over the blocks of a cluster: N.o.i -> N.o.i.o@cluster, N.o.i.i
CPU  [M.o@blockIdx.x, M.i, N@vectorize]

A block walks a run of rows (segment/split_reductions.py has cut them), keeps its sums over rows in
registers meanwhile, and writes them once: partial results, which a second kernel adds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import ParallelType, Transform
from thunder_fuser.ir.ops import OpKind
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
from thunder_fuser.schedule.scheduler import Reject, read_elsewhere
from thunder_fuser.target import Target

NAME = "inner_outer"
CPU_SUM_BYTES = 256 * 1024  # sums a thread keeps in its second-level cache


@dataclass(frozen=True, slots=True)
class Cross:
    """Rows and columns in memory order, and the rows of a run; has_order: see repeatable.py."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    run: int
    has_order: bool


def accepts(part: Part, target: Target, options: CompileOptions) -> Reject | None:
    """Takes reductions of rows, and partial ones over a run of rows, that share what they read."""
    found = _cross(part, options)
    if isinstance(found, Reject):
        return found
    columns = size_of(part, found.columns)
    if found.has_order and not target.is_cpu:
        fitting = not has_long_rows(columns, target)
    elif target.is_cpu:
        sums = columns * 8 * len(_partial(part))
        fitting = sums <= CPU_SUM_BYTES
    else:
        fitting = fits(columns, target)
    if not fitting:
        return Reject(NAME, f"{columns} columns and their sums do not fit on chip")
    return read_elsewhere(part, part.reductions, NAME) or too_many_places(part, NAME)


def _partial(part: Part) -> list[str]:
    return [e.outputs[0] for e in part.reductions if e.attr("chunk") is not None]


def _cross(part: Part, options: CompileOptions) -> Cross | Reject:
    """The rows and columns of all reductions, or why they do not fit together."""
    chunked = part.chunked
    if part.has_empty or chunked is None:
        return Reject(NAME, "there are no partial results over rows")
    if part.scans or any(expr.row.kind is OpKind.EXTERNAL for expr in part.exprs):
        return Reject(NAME, "there is a scan or a torch call")
    rows, partial = frozenset(chunked.reduced), set(_partial(part))
    columns = frozenset(part.axes(next(iter(partial)))) - {chunked.axis}
    for expr in part.reductions:
        name = expr.outputs[0]
        kept = frozenset(part.axes(name)) - {chunked.axis}
        reduced = frozenset(part.domain_map.reduced(part.tensors[name]))
        if (kept, reduced) != ((columns, rows) if name in partial else (rows, columns)):
            return Reject(NAME, f"{name} reduces neither rows nor columns")
    if len(partial) == len(part.reductions):
        return Reject(NAME, "no row is reduced along itself")
    if {e.attr("chunk") for e in part.reductions} - {None, chunked.size}:
        return Reject(NAME, "runs of several lengths")
    return _ordered(part, options, rows, columns, partial)


def _ordered(
    part: Part,
    options: CompileOptions,
    rows: frozenset[str],
    columns: frozenset[str],
    partial: set[str],
) -> Cross | Reject:
    assert part.chunked is not None
    order = summed_order(part, part.reductions[0], rows | columns, options)
    if set(order[: len(rows)]) != rows or order[: len(rows)] != part.chunked.reduced:
        return Reject(NAME, "rows do not lie one after another in memory")
    for name in part.outputs:
        if name not in partial and frozenset(part.axes(name)) not in (rows, rows | columns):
            return Reject(NAME, f"result {name} is neither a row value nor a full one")
    if any(set(names_of(expr)) & partial for expr in part.exprs):
        return Reject(NAME, "a partial result is used in the same kernel")
    run = part.chunked.size
    return Cross(order[: len(rows)], order[len(rows) :], run, has_order(part, options))


def schedule(
    part: Part, target: Target, options: CompileOptions, alignment: dict[str, int]
) -> ScheduledFusion:
    """The schedule of an accepted part."""
    found = _cross(part, options)
    assert isinstance(found, Cross)
    made = _cpu(part, found) if target.is_cpu else _cuda(part, target, found, alignment)
    scheduled = ScheduledFusion(
        part,
        target,
        options,
        made[0],
        found.rows,
        found.columns,
        made[1],
        alignment=tuple(sorted(alignment.items())),
    )
    return replace(
        scheduled,
        params=replace(made[0], memory="registers"),
        persistent=kept_inputs(scheduled),
    )


def _cuda(
    part: Part, target: Target, found: Cross, alignment: dict[str, int]
) -> tuple[HeuristicParams, tuple[Transform, ...]]:
    """[M, N] -> [M.o@bx, M.i.o, M.i.i@ty, N.o.o, N.o.i@tx, N.i@vectorize]"""
    domain = reference(part, found.rows, found.columns)
    columns = size_of(part, found.columns)
    sums, width = len(_partial(part)), 0
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


def _cpu(part: Part, found: Cross) -> tuple[HeuristicParams, tuple[Transform, ...]]:
    """[M, N] -> [M.o@bx, M.i, N@vectorize]"""
    s = Transforms(reference(part, found.rows, found.columns))
    run, _ = s.split(s.merge(found.rows), found.run)
    lane = s.merge(found.columns)
    s.parallelize(run, ParallelType.BIDX)
    s.parallelize(lane, ParallelType.VECTORIZE)
    return HeuristicParams(NAME, s.extent(lane)), tuple(s.made)
