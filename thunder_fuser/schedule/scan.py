# SPDX-License-Identifier: Apache-2.0
"""Scans along one axis S, and the pointwise work before and after them over the same axes K and S.

inner (a row of threads walks S, step by step, and hands a carry on):
      CUDA [K.o@blockIdx.x, K.i@threadIdx.y, S.o.o, S.o.i@threadIdx.x, S.i@vectorize]
      CPU  [K@blockIdx.x, S.o, S.i@vectorize]; the scan itself is serial, what is around it simd
outer (K is fastest in memory; each thread, or simd lane, scans a column of its own):
      CUDA [K.o.o@blockIdx.x, K.o.i@threadIdx.x, S, K.i@vectorize]
      CPU  [K.o@blockIdx.x, S, K.i@vectorize]

An element of a scan exists where the walk has come to, so what shares its kernel must read it
there: x / cumsum(x) fuses, cumsum(x) behind a reshape is another kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import ParallelType, Transform
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.schedule.axes import best_width, size_of, summed_order
from thunder_fuser.schedule.pointwise import have_one_space, too_many_places
from thunder_fuser.schedule.repeatable import has_order, width_of
from thunder_fuser.schedule.scheduled import (
    HeuristicParams,
    ScheduledFusion,
    Transforms,
    reference,
)
from thunder_fuser.schedule.scheduler import Made, Match, Reject, read_elsewhere
from thunder_fuser.target import Target

CPU_CHUNK = 1024  # elements of a row scanned at once: their array stays in the first-level cache
CPU_COLUMNS = 256
COLUMN_THREADS = 64  # of a block in which each scans columns of its own
LONGEST_ROW_THREADS = 256
# Fewer columns than this many for each SM leave it idle if a thread has one: rows are shared then.
COLUMNS_PER_SM = 64


@dataclass(frozen=True)
class Scan(Match):
    """Scans along one axis, and pointwise work, all with the same axes.

    kept: the axes beside the scanned one, in memory order; has_order: see repeatable.py.
    """

    name = "scan"

    kept: tuple[str, ...]
    scanned: str
    is_fastest: bool
    has_order: bool

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> Scan | Reject:
        refused = _refuse_ops(part) or _refuse_axes(part) or read_elsewhere(part, part.scans, NAME)
        refused = refused or too_many_places(part, NAME)
        if refused is not None:
            return refused
        first = part.scans[0]
        name = first.outputs[0]
        order, scanned = summed_order(part, first, part.axes(name), options), _axis(part, name)
        kept = tuple(a for a in order if a != scanned)
        ordered = has_order(part, options)
        return cls(part, target, options, kept, scanned, order[-1] == scanned, ordered)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        if self.target.is_cpu:
            made = _cpu_inner(self) if self.is_fastest else _cpu_outer(self)
        elif self.is_fastest or _has_few_columns(self):
            made = _cuda_inner(self, alignment)
        else:
            made = _cuda_outer(self, alignment)
        return self.scheduled(made, alignment, kept=self.kept, reduced=(self.scanned,))


NAME = Scan.name


def _refuse_ops(part: Part) -> Reject | None:
    if part.has_empty:
        return Reject(NAME, "a tensor has no elements")
    if not part.scans:
        return Reject(NAME, "there is no scan")
    for expr in part.exprs:
        if expr.row.kind in (OpKind.REDUCTION, OpKind.EXTERNAL):
            return Reject(NAME, f"{expr.op} -> {expr.outputs[0]} beside a scan")
    return None


def _refuse_axes(part: Part) -> Reject | None:
    scanned = sorted({_axis(part, expr.outputs[0]) for expr in part.scans})
    if len(scanned) > 1:
        return Reject(NAME, f"scans along {len(scanned)} axes: {', '.join(scanned)}")
    made = [*part.outputs, *(expr.outputs[0] for expr in part.scans)]
    if not have_one_space(frozenset(part.axes(name)) for name in made):
        listed = ", ".join(f"{n}[{', '.join(part.axes(n))}]" for n in made)
        return Reject(NAME, f"values over different axes: {listed}")
    return None


def _axis(part: Part, name: str) -> str:
    """The class of the axis that a scan goes along; an axis of size 1 is presegment's work."""
    view, dim = part.tensors[name], part.producer[name].attr("dim")
    return part.domain_map.axis(view.domain.no_reductions[int(dim)])  # type: ignore[arg-type]


def _has_few_columns(found: Scan) -> bool:
    part, target = found.part, found.target
    columns, length = size_of(part, found.kept), size_of(part, (found.scanned,))
    return columns < COLUMNS_PER_SM * target.sm_count and length > COLUMNS_PER_SM


def _cuda_inner(found: Scan, alignment: dict[str, int]) -> Made:
    part = found.part
    domain, length = reference(part, found.kept, (found.scanned,)), size_of(part, (found.scanned,))
    x = 8
    while x < LONGEST_ROW_THREADS and x * 4 < length:
        x *= 2
    y = max(128 // x, 1) if found.kept else 1

    def build(width: int) -> tuple[Transform, ...] | None:
        if length % width:
            return None
        s = Transforms(domain)
        if found.kept:
            block, row = s.split(s.merge(found.kept), y)
            s.parallelize(block, ParallelType.BIDX)
            s.parallelize(row, ParallelType.TIDY)
        outer, lane = s.split(found.scanned, width)
        _, thread = s.split(outer, x)
        s.parallelize(thread, ParallelType.TIDX)
        s.parallelize(lane, ParallelType.VECTORIZE)
        return tuple(s.made)

    fixed = width_of(length) if found.has_order else 0
    width = fixed or best_width(part, domain, build, alignment)
    return HeuristicParams(NAME, width, (x, y)), build(width) or ()


def _cuda_outer(found: Scan, alignment: dict[str, int]) -> Made:
    part, target = found.part, found.target
    domain, columns = reference(part, found.kept, (found.scanned,)), size_of(part, found.kept)

    def build(width: int) -> tuple[Transform, ...] | None:
        # Narrow loads where wide ones would leave SMs without work.
        if columns % width or (width > 1 and columns < width * COLUMNS_PER_SM * target.sm_count):
            return None
        s = Transforms(domain)
        outer, lane = s.split(s.merge(found.kept), width)
        block, thread = s.split(outer, COLUMN_THREADS)
        s.reorder(block, thread, found.scanned, lane)
        s.parallelize(block, ParallelType.BIDX)
        s.parallelize(thread, ParallelType.TIDX)
        s.parallelize(lane, ParallelType.VECTORIZE)
        return tuple(s.made)

    width = best_width(part, domain, build, alignment)
    return HeuristicParams(NAME, width, (COLUMN_THREADS, 1), inner=False), build(width) or ()


def _cpu_inner(found: Scan) -> Made:
    s = Transforms(reference(found.part, found.kept, (found.scanned,)))
    if found.kept:
        s.parallelize(s.merge(found.kept), ParallelType.BIDX)
    lane = found.scanned
    if s.extent(lane) > CPU_CHUNK:
        _, lane = s.split(lane, CPU_CHUNK)
    s.parallelize(lane, ParallelType.VECTORIZE)
    return HeuristicParams(NAME, s.extent(lane)), tuple(s.made)


def _cpu_outer(found: Scan) -> Made:
    s = Transforms(reference(found.part, found.kept, (found.scanned,)))
    *slower, last = found.kept
    chunk, lane = s.split(last, CPU_COLUMNS)
    s.reorder(*slower, chunk, found.scanned, lane)
    s.parallelize(s.merge((*slower, chunk)), ParallelType.BIDX)
    s.parallelize(lane, ParallelType.VECTORIZE)
    return HeuristicParams(NAME, s.extent(lane), inner=False), tuple(s.made)
