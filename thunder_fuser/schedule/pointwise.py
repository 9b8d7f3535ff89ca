# SPDX-License-Identifier: Apache-2.0
"""Pointwise: all results have the same axes; a thread makes `vectorize * unroll` elements of each.

CUDA  [i0, i1] -> merge -> m;  split vectorize, threads, unroll:
      [m.o.o.o@blockIdx.x, m.o.o.i@unroll, m.o.i@threadIdx.x, m.i@vectorize]
      if the vectors of a thread share what they read of a row, as a batch norm's parameters, they
      lie whole rows apart, and the thread reads that once:
      [m.o.i.o@blockIdx.x, m.o.o@unroll, m.o.i.i@threadIdx.x, m.i@vectorize]
CPU   [i0, i1] -> [i0@blockIdx.x (threads), i1@vectorize (simd)]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from thunder_fuser.analysis.domain_map import Axes
from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.schedule.axes import (
    MAX_BYTES,
    coefficient,
    collapse,
    even_lanes,
    memory_order,
    row_shift,
    size_of,
)
from thunder_fuser.schedule.scheduled import HeuristicParams, ScheduledFusion, Transforms
from thunder_fuser.schedule.scheduler import Decisions, KernelMatch, NoMatch
from thunder_fuser.target import Target

THREADS = 128
MOST_STEPS = 4  # vectors of a thread
CPU_CHUNK = 4096
CPU_TILE = 32  # elements a side of a transposed tile: a cache line or two each way


@dataclass(frozen=True)
class Pointwise(KernelMatch):
    """No reductions, scans or torch calls, and all results over the same axes."""

    name = "pointwise"
    takes_no = (OpKind.REDUCTION, OpKind.SCAN, OpKind.EXTERNAL)

    @classmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> Pointwise | NoMatch:
        if have_one_space(part.stored_axes.values()):
            return cls(part, target, options)
        listed = ", ".join(f"{n}[{', '.join(part.axes(n))}]" for n in part.outputs)
        return NoMatch(cls.name, f"results over different axes: {listed}")

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        axes = self.part.axes(self.part.outputs[0])
        match = replace(self, kept=memory_order(self.part, axes))
        decisions = _cpu(match) if self.target.is_cpu else _cuda(match, alignment)
        return match.scheduled(decisions, alignment)


def have_one_space(stored: Iterable[Axes]) -> bool:
    """True if all results have the same axes, so that one pointwise kernel can write them."""
    return len(set(stored)) <= 1


def _cuda(match: Pointwise, alignment: dict[str, int]) -> Decisions:
    width = _unrolled(match, alignment)[0].vectorize
    return _unrolled(match, alignment, width, _unroll(match, width))


def _unrolled(
    match: Pointwise, alignment: dict[str, int], width: int = 0, unroll: int = 1
) -> Decisions:
    """[M, N] -> [MN.o.o.o@bx, MN.o.o.i@unroll, MN.o.i@tx, MN.i@vectorize]

    Vectors rows apart: [M, N] -> [MN.o.i.o@bx, MN.o.o@unroll, MN.o.i.i@tx, MN.i@vectorize]
    Long rows of odd length: [M, N] -> [M, N.o, N.i@vectorize], with M and N.o merged.
    width: 0 for the best one.
    """
    part, total = match.part, match.kept_size
    row = _odd_row(part, match.kept)
    rows_apart = unroll > 1 and _are_rows_apart(match, unroll)

    def build(s: Transforms, width: int) -> bool:
        shift = row_shift(part, row, width) if size_of(part, row) % width else None
        if shift is not None:
            vectors, lane = s.split(s.merge(row), width, shift)
            outer = s.merge((*match.kept[: -len(row)], vectors))
        elif total % width:
            return False
        else:
            outer, lane = s.split(s.merge(tuple(axis.name for axis in s.domain)), width)
        if rows_apart and not s.extent(outer) % unroll:
            step, outer = s.split(outer, s.extent(outer) // unroll)
            block, thread = s.split(outer, THREADS)
            s.reorder(block, step, thread, lane)
        else:
            outer, thread = s.split(outer, THREADS)
            block, step = s.split(outer, unroll)
        s.bind(BIDX=block, UNROLL=step, TIDX=thread, VECTORIZE=lane)
        return True

    width, transforms = match.widest(build, alignment, width)
    return HeuristicParams(match.name, width, (THREADS, 1), unroll), transforms


def _odd_row(part: Part, order: tuple[str, ...]) -> tuple[str, ...]:
    """The innermost axes that all tensors walk as one, if these are better cut into vectors than
    all axes merged; else nothing.

    That is so if vectors do not divide all elements. It is also so if rows have values of their
    own: a vector that crosses rows would read these for each element. Otherwise vectors of all axes
    are faster: bias and GELU of [65552, 4095] 99 % of clone, by rows 94 % (H200).
    """
    groups = collapse(part, order)
    if not groups:
        return ()
    symbols = [position.symbols for position in part.accessed.values()]
    of_rows = any(symbols_read and symbols_read.isdisjoint(groups[-1]) for symbols_read in symbols)
    narrow = min(part.tensors[name].dtype.bytes for name in part.global_tensors)
    return groups[-1] if of_rows or size_of(part, order) % (MAX_BYTES // narrow) else ()


def _unroll(match: Pointwise, width: int) -> int:
    """The vectors that each thread must load at once to saturate memory, if enough blocks remain.

    An SM with max_threads_per_sm threads needs bytes_in_flight_per_sm under way. Vectors that share
    much of what they read of a row are four.
    """
    part, target, order = match.part, match.target, set(match.kept)
    streamed = {p.name for p, position in part.accessed.items() if position.symbols >= order}
    names = streamed.intersection(part.inputs)
    read = sum(part.tensors[name].dtype.bytes * width for name in names)
    wanted = -(-target.bytes_in_flight_per_sm // target.max_threads_per_sm)
    shares = _are_rows_apart(match, MOST_STEPS)
    unroll = 1
    while unroll < MOST_STEPS and read and (shares or unroll * read < wanted):
        blocks = match.kept_size // (width * THREADS * unroll * 2)
        if blocks < 8 * target.sm_count:
            break
        unroll *= 2
    return unroll


def _are_rows_apart(match: Pointwise, unroll: int) -> bool:
    """True if the vectors of a thread should lie whole rows apart: the tensors without rows have
    more than twice the bytes an element of those with all axes.

    The gradient of a batch norm (18 bytes for 6) takes 0.89 of the time; a batch norm in inference
    (8 bytes for 4) would take 1.05 of it (ResNet-50, H200).
    """
    part, groups = match.part, collapse(match.part, match.kept)
    if len(groups) < 2 or size_of(part, groups[0]) % unroll:
        return False
    rows, shared, streamed = set(groups[0]), 0, 0
    for point, position in part.accessed.items():
        size = part.tensors[point.name].dtype.bytes
        shared += size if position.symbols and position.symbols.isdisjoint(rows) else 0
        streamed += size if position.symbols.issuperset(match.kept) else 0
    return shared > 2 * streamed


def _cpu(match: Pointwise) -> Decisions:
    """[M, N] -> [M@bx, N@vectorize]; long rows in chunks, transposed accesses in tiles.

    If a branch or a division changes within rows: [M@bx, N.o, N.i@vectorize].
    """
    groups = collapse(match.part, match.kept)
    across = _fast_elsewhere(match.part, groups)

    def build(s: Transforms, run: int) -> bool:
        names = [s.merge(group) for group in groups] or [s.domain[0].name]
        outer, inner = names[:-1], names[-1]
        if run and (across is not None or s.extent(inner) % run):
            return False
        if across is not None:
            inner = _tile(s, outer, names[across], inner, CPU_TILE)
        elif not outer or s.extent(inner) > 4 * CPU_CHUNK:
            chunks, inner = s.split(inner, CPU_CHUNK)
            outer.append(chunks)
        blocks = s.merge(tuple(outer))
        s.bind(BIDX=blocks, VECTORIZE=s.split(inner, run)[1] if run else inner)
        return True

    s = even_lanes(match.part, match.domain, build)
    return HeuristicParams(match.name, s.lanes.extent.value), tuple(s.applied)


def _fast_elsewhere(part: Part, groups: tuple[tuple[str, ...], ...]) -> int | None:
    """The first group along which a tensor has stride 1 while it has a larger one along the last
    group; None if there is none."""
    for position in part.accessed.values():
        for at, group in enumerate(groups[:-1]):
            if coefficient(position, group[-1]) == 1 and coefficient(position, groups[-1][-1]) > 1:
                return at
    return None


def _tile(s: Transforms, outer: list[str], across: str, inner: str, side: int) -> str:
    """Tiles two axes, so that both sides of a transpose use all of each cache line they touch.

    [a, b] -> [a.o, b.o, a.i, b.i]; the first two become part of `outer`, b.i is the lane
    """
    blocks, step = s.split(across, side)
    lanes, lane = s.split(inner, side)
    outer[outer.index(across)] = blocks
    outer.append(lanes)
    s.reorder(*outer, step, lane)
    return lane
