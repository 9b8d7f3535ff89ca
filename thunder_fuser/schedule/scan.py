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
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.schedule.axes import summed_order
from thunder_fuser.schedule.pointwise import have_one_space
from thunder_fuser.schedule.reduction import inner_with
from thunder_fuser.schedule.repeatable import width_of
from thunder_fuser.schedule.scheduled import HeuristicParams, ScheduledFusion, Transforms
from thunder_fuser.schedule.scheduler import KernelMatch, Made, Reject
from thunder_fuser.target import Target

CPU_CHUNK = 1024  # elements of a row scanned at once: their array stays in the first-level cache
CPU_COLUMNS = 256
COLUMN_THREADS = 64  # of a block in which each scans columns of its own
LONGEST_ROW_THREADS = 256
# Fewer columns than this many for each SM leave it idle if a thread has one: rows are shared then.
COLUMNS_PER_SM = 64


@dataclass(frozen=True, kw_only=True)
class Scan(KernelMatch):
    """Scans along one axis, and pointwise work, all with the same axes.

    kept: the axes beside the scanned one, in memory order; reduced: the scanned one.
    """

    name = "scan"
    takes_no = (OpKind.REDUCTION, OpKind.EXTERNAL)

    is_fastest: bool  # the scanned axis, in memory

    @classmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> Scan | Reject:
        if not part.scans:
            return Reject(cls.name, "there is no scan")
        scanned, *others = sorted({_axis(part, expr.outputs[0]) for expr in part.scans})
        if others:
            listed = ", ".join((scanned, *others))
            return Reject(cls.name, f"scans along {len(others) + 1} axes: {listed}")
        made = [*part.outputs, *(expr.outputs[0] for expr in part.scans)]
        if not have_one_space(frozenset(part.axes(name)) for name in made):
            listed = ", ".join(f"{n}[{', '.join(part.axes(n))}]" for n in made)
            return Reject(cls.name, f"values over different axes: {listed}")
        first = part.scans[0]
        order = summed_order(part, first, part.axes(first.outputs[0]), options)
        kept, fastest = tuple(a for a in order if a != scanned), order[-1] == scanned
        return cls(part, target, options, kept, (scanned,), is_fastest=fastest)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        few = self.kept_size < COLUMNS_PER_SM * self.target.sm_count
        if self.target.is_cpu:
            made = _cpu_inner(self) if self.is_fastest else _cpu_outer(self)
        elif self.is_fastest or (few and self.reduced_size > COLUMNS_PER_SM):
            made = _cuda_inner(self, alignment)
        else:
            made = _cuda_outer(self, alignment)
        return self.scheduled(made, alignment)


def _axis(part: Part, name: str) -> str:
    """The class of the axis that a scan goes along; an axis of size 1 is presegment's work."""
    view, dim = part.tensors[name], part.producer[name].attr("dim")
    return part.domain_map.axis(view.domain.no_reductions[int(dim)])  # type: ignore[arg-type]


def _cuda_inner(found: Scan, alignment: dict[str, int]) -> Made:
    length, x = found.reduced_size, 8
    while x < LONGEST_ROW_THREADS and x * 4 < length:
        x *= 2
    width = width_of(length) if found.has_order else 0
    return inner_with(found, alignment, (x, max(128 // x, 1)), width=width)


def _cuda_outer(found: Scan, alignment: dict[str, int]) -> Made:
    columns, wanted = found.kept_size, COLUMNS_PER_SM * found.target.sm_count

    def build(s: Transforms, width: int) -> bool:
        # Narrow loads where wide ones would leave SMs without work.
        if columns % width or (width > 1 and columns < width * wanted):
            return False
        outer, lane = s.split(s.merge(found.kept), width)
        block, thread = s.split(outer, COLUMN_THREADS)
        s.reorder(block, thread, *found.reduced, lane)
        s.bind(BIDX=block, TIDX=thread, VECTORIZE=lane)
        return True

    width, transforms = found.widest(build, alignment)
    return HeuristicParams(found.name, width, (COLUMN_THREADS, 1), inner=False), transforms


def _cpu_inner(found: Scan) -> Made:
    s = Transforms(found.domain)
    if found.kept:
        s.bind(BIDX=s.merge(found.kept))
    (lane,) = found.reduced
    if s.extent(lane) > CPU_CHUNK:
        _, lane = s.split(lane, CPU_CHUNK)
    s.bind(VECTORIZE=lane)
    return HeuristicParams(found.name, s.extent(lane)), tuple(s.made)


def _cpu_outer(found: Scan) -> Made:
    s = Transforms(found.domain)
    *slower, last = found.kept
    chunk, lane = s.split(last, CPU_COLUMNS)
    s.reorder(*slower, chunk, *found.reduced, lane)
    s.bind(BIDX=s.merge((*slower, chunk)), VECTORIZE=lane)
    return HeuristicParams(found.name, s.extent(lane), inner=False), tuple(s.made)
