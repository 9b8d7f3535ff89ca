# SPDX-License-Identifier: Apache-2.0
"""Pointwise: all results have the same axes; a thread makes `vectorize * unroll` elements of each.

CUDA  [i0, i1] -> merge -> m;  split vectorize, threads, unroll:
      [m.o.o.o@blockIdx.x, m.o.o.i@unroll, m.o.i@threadIdx.x, m.i@vectorize]
CPU   [i0, i1] -> [i0@blockIdx.x (threads), i1@vectorize (simd)]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from thunder_fuser.analysis.part import Part
from thunder_fuser.analysis.pattern import Axes
from thunder_fuser.analysis.vectorize import MAX_BYTES, coefficient
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import ParallelType, Transform
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.schedule.axes import (
    best_width,
    collapse,
    memory_order,
    positions,
    row_shift,
    size_of,
)
from thunder_fuser.schedule.scheduled import (
    HeuristicParams,
    ScheduledFusion,
    Transforms,
    reference,
)
from thunder_fuser.schedule.scheduler import Made, Match, Reject
from thunder_fuser.target import Target

THREADS = 128
# A value computed at more places than this for one element costs more than a round trip to memory.
MAX_PLACES = 8
CPU_CHUNK = 4096
CPU_TILE = 32  # elements a side of a transposed tile: a cache line or two each way


@dataclass(frozen=True)
class Pointwise(Match):
    """No reductions, scans or torch calls; all results over the same axes; little recomputation."""

    name = "pointwise"

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> Pointwise | Reject:
        return refuse(part) or cls(part, target, options)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        part = self.part
        order = memory_order(part, part.axes(part.outputs[0]))
        make = _schedule_cpu if self.target.is_cpu else _schedule_cuda
        return self.scheduled(make(part, self.target, order, alignment), alignment, kept=order)


NAME = Pointwise.name


def refuse(part: Part) -> Reject | None:
    """Why the part is no pointwise kernel, if it is none."""
    if part.has_empty:
        return Reject(NAME, "a tensor has no elements")
    for expr in part.exprs:
        if expr.row.kind in (OpKind.REDUCTION, OpKind.SCAN, OpKind.EXTERNAL):
            return Reject(NAME, f"{expr.op} -> {expr.outputs[0]} is no pointwise operation")
    if not have_one_space(part.stored_axes.values()):
        listed = ", ".join(f"{n}[{', '.join(part.axes(n))}]" for n in part.outputs)
        return Reject(NAME, f"results over different axes: {listed}")
    return too_many_places(part, NAME)


def have_one_space(stored: Iterable[Axes]) -> bool:
    """True if all results have the same axes, so that one pointwise kernel can write them."""
    return len(set(stored)) <= 1


def too_many_places(part: Part, scheduler: str) -> Reject | None:
    """Refuses a part in which some value would be computed again and again."""
    for name in part.producer:
        count = len({point.index for point in part.demand.points(name)})
        if count > MAX_PLACES:
            return Reject(scheduler, f"{name} would be computed at {count} places")
    for expr in part.exprs:
        if expr.row.kind is OpKind.INDEX and _repeats(part, expr):
            source, result = expr.inputs[expr.row.source], expr.outputs[0]
            return Reject(scheduler, f"{source} would be computed for each element of {result}")
    return None


def _repeats(part: Part, lookup: OpRecord) -> bool:
    """True if more elements are looked up than there are, and computing one is expensive."""
    source = str(lookup.inputs[lookup.row.source])
    sizes, wanted = part.tensors[source].sizes, part.tensors[lookup.outputs[0]].sizes
    return prod(wanted) > prod(sizes) and _is_expensive(part, source)


def _is_expensive(part: Part, name: str) -> bool:
    """True if an op of the part behind the value costs more than a round trip through memory."""
    seen: set[str] = set()
    stack = [name]
    while stack:
        expr = part.producer.get(stack.pop())
        if expr is None or expr.outputs[0] in seen:
            continue
        if not expr.row.is_cheap:
            return True
        seen.add(expr.outputs[0])
        stack.extend(names_of(expr))
    return False


def _schedule_cuda(
    part: Part, target: Target, order: tuple[str, ...], alignment: dict[str, int]
) -> Made:
    """[M, N] -> [MN.o.o.o@bx, MN.o.o.i@unroll, MN.o.i@tx, MN.i@vectorize]

    Long rows of odd length: [M, N] -> [M, N.o, N.i@vectorize], M and N.o walked as one.
    """
    domain = reference(part, order, ())
    total, row = size_of(part, order), _odd_row(part, order)

    def build(width: int, unroll: int = 1) -> tuple[Transform, ...] | None:
        s = Transforms(domain)
        shift = row_shift(part, row, width) if size_of(part, row) % width else None
        if shift is not None:
            vectors, lane = s.split(s.merge(row), width, shift)
            outer = s.merge((*order[: -len(row)], vectors))
        elif total % width:
            return None
        else:
            outer, lane = s.split(s.merge(tuple(axis.name for axis in domain)), width)
        outer, thread = s.split(outer, THREADS)
        block, step = s.split(outer, unroll)
        s.parallelize(block, ParallelType.BIDX)
        s.parallelize(step, ParallelType.UNROLL)
        s.parallelize(thread, ParallelType.TIDX)
        s.parallelize(lane, ParallelType.VECTORIZE)
        return tuple(s.made)

    width = best_width(part, domain, build, alignment)
    unroll = _unroll(part, target, order, width)
    params = HeuristicParams(NAME, width, (THREADS, 1), unroll)
    return params, build(width, unroll) or ()


def _odd_row(part: Part, order: tuple[str, ...]) -> tuple[str, ...]:
    """The axes that all tensors walk as one, if vectors are better cut from them than from all.

    That is so where vectors do not divide the whole, and where rows have values of their own, which
    a vector that crosses rows reads once an element. A flat vector of whole ones reads a bias best:
    bias and GELU of [65552, 4095] 99 % of clone flat, 94 % by rows (H200).
    """
    groups = collapse(part, order)
    if not groups:
        return ()
    symbols = [position.symbols for _, position, _ in positions(part)]
    of_rows = any(found and not found & set(groups[-1]) for found in symbols)
    narrow = min(part.tensors[name].dtype.bytes for name in part.global_tensors)
    return groups[-1] if of_rows or size_of(part, order) % (MAX_BYTES // narrow) else ()


def _unroll(part: Part, target: Target, order: tuple[str, ...], width: int) -> int:
    """Vectors a thread must have under way to saturate memory, if enough blocks remain.

    An SM holding max_threads_per_sm threads needs bytes_in_flight_per_sm under way.
    """
    streamed = {
        name
        for name, position, _ in positions(part)
        if name in part.inputs and position.symbols >= set(order)
    }
    total = size_of(part, order)
    read = sum(part.tensors[name].dtype.bytes * width for name in streamed)
    wanted = -(-target.bytes_in_flight_per_sm // target.max_threads_per_sm)
    unroll = 1
    while unroll < 4 and read and unroll * read < wanted:
        blocks = total // (width * THREADS * unroll * 2)
        if blocks < 8 * target.sm_count:
            break
        unroll *= 2
    return unroll


def _schedule_cpu(
    part: Part, target: Target, order: tuple[str, ...], alignment: dict[str, int]
) -> Made:
    groups = collapse(part, order)
    s = Transforms(reference(part, order, ()))
    names = [s.merge(group) for group in groups] or [s.domain[0].name]
    outer, inner = names[:-1], names[-1]
    across = _fast_elsewhere(part, groups)
    if across is not None:
        inner = _tile(s, outer, names[across], inner)
    elif not outer or s.extent(inner) > 4 * CPU_CHUNK:
        chunk, inner = s.split(inner, CPU_CHUNK)
        outer.append(chunk)
    s.parallelize(s.merge(tuple(outer)), ParallelType.BIDX)
    s.parallelize(inner, ParallelType.VECTORIZE)
    return HeuristicParams(NAME, vectorize=s.extent(inner)), tuple(s.made)


def _fast_elsewhere(part: Part, groups: tuple[tuple[str, ...], ...]) -> int | None:
    """The group, if any, that some tensor walks with stride 1 but strides over the last one."""
    for _, position, _ in positions(part):
        for at, group in enumerate(groups[:-1]):
            if coefficient(position, group[-1]) == 1 and coefficient(position, groups[-1][-1]) > 1:
                return at
    return None


def _tile(s: Transforms, outer: list[str], across: str, inner: str) -> str:
    """Tiles two axes, so that both sides of a transpose use the cache lines they touch.

    [a, b] -> [a.o, b.o, a.i, b.i]; the first two become part of `outer`, b.i is the lane
    """
    blocks, step = s.split(across, CPU_TILE)
    lanes, lane = s.split(inner, CPU_TILE)
    outer[outer.index(across)] = blocks
    outer.append(lanes)
    s.reorder(*outer, step, lane)
    return lane
