# SPDX-License-Identifier: Apache-2.0
"""Which values stay on chip between the nests of a normalization, and where.

Inputs are kept in their own, narrow type and cast in each nest. Of the computed values, only those
that are expensive to recompute (exp) are kept. A row too long for one block is shared by the blocks
of a cluster, if the target has clusters. If not all values fit, inputs alone are kept. If these do
not fit either, each nest reads memory again.

    softmax of bf16: keep x (bf16, nests 0 to 1) and exp(x - max) (f32, nests 1 to 2)
    layer norm of bf16: keep x (bf16) for the mean, the variance and the result
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from thunder_fuser.analysis.cost import is_expensive
from thunder_fuser.analysis.index_map import Point
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.schedule.axes import size_of
from thunder_fuser.schedule.row_shape import has_order
from thunder_fuser.schedule.scheduled import HeuristicParams, PersistentBuffer, ScheduledFusion

CPU_ROW_BYTES = 256 * 1024  # a row buffer that stays in the second-level cache
SCRATCH_BYTES = 4096  # shared memory left to block reductions
LONG_ROW_THREADS = 512  # for rows that do not fit in registers
CLUSTER_THREADS = 256  # at least, in each block of a cluster
MAX_STEPS = 64  # loops up to this length are fully unrolled
# Elements of a row in one thread. With more, an SM has only two blocks, too few for one to load
# while others compute.
MAX_ELEMENTS = 108

Buffers = tuple[PersistentBuffer, ...]


def place_persistent(scheduled: ScheduledFusion) -> ScheduledFusion:
    """The first that fits: all in registers, inputs in registers, inputs in shared memory, nothing.

    The parameters have the threads and the cluster that this needs. The caller must make the
    transforms for them.
    """
    target, params = scheduled.target, scheduled.params
    if not params.inner:
        return scheduled
    everything = _default_buffers(scheduled, with_expensive=True)
    if target.is_cpu:
        fits = _total_bytes(everything) <= CPU_ROW_BYTES
        return _placed(scheduled, params, "registers", everything) if fits else scheduled
    inputs = _default_buffers(scheduled, with_expensive=False)
    for kept in filter(None, (everything, inputs)):
        fitting = _blocks_for(scheduled, bytes_at_once(kept))
        if fitting is not None:
            return _placed(scheduled, fitting, "registers", kept)
    if everything and not has_order(scheduled.part, scheduled.options):  # else it may be short
        params = replace(params, threads=(LONG_ROW_THREADS, 1))
    room = target.smem_bytes_per_block - SCRATCH_BYTES
    if inputs and _total_bytes(inputs) // params.cluster <= room:
        return _placed(scheduled, params, "shared", inputs)
    return replace(scheduled, params=params)


def _placed(
    scheduled: ScheduledFusion, params: HeuristicParams, memory: str, kept: Buffers
) -> ScheduledFusion:
    """The schedule with these values in this memory.

    A block that walks rows or a group has its sums in registers in any case.
    """
    held = tuple(replace(buffer, memory=memory) for buffer in kept)
    has_arrays = not scheduled.target.is_cpu and (scheduled.carried or scheduled.rows)
    known = memory if held else "registers" if has_arrays else "none"
    return replace(scheduled, params=replace(params, memory=known), persistent=held)


def with_inputs(scheduled: ScheduledFusion) -> ScheduledFusion:
    """Keeps the inputs of a row that several nests read in registers, however large they are."""
    kept = _default_buffers(scheduled, with_expensive=False)
    return _placed(scheduled, scheduled.params, "registers", kept)


def with_group(scheduled: ScheduledFusion, rows: int) -> ScheduledFusion:
    """Keeps in registers the values of a group of `rows` rows that several nests read: all inputs,
    and expensive values if both fit. On a CPU it keeps expensive values only."""
    kept = _default_buffers(scheduled, with_expensive=True)
    if scheduled.target.is_cpu:
        kept = kept if rows * _total_bytes(kept) <= CPU_ROW_BYTES else ()
        if not kept:
            return scheduled
    else:
        threads = prod(scheduled.params.threads)
        room = threads * register_bytes(threads, scheduled.options)
        if not kept or rows * bytes_at_once(kept) > room:
            kept = _default_buffers(scheduled, with_expensive=False)
        if scheduled.column_sums and not scheduled.params.blocks:
            kept += _late_inputs(scheduled)
    kept = tuple(replace(buffer, bytes=rows * buffer.bytes) for buffer in kept)
    return _placed(scheduled, scheduled.params, "registers", kept)


def _late_inputs(scheduled: ScheduledFusion) -> Buffers:
    """Buffers for the inputs that the sums over rows alone read: the first nest loads them."""
    seen = _nests_of_points(scheduled)
    late = [p for p in seen if 0 not in seen[p] and p.name in scheduled.part.inputs]
    columns, tensors = size_of(scheduled.part, scheduled.reduced), scheduled.part.tensors
    return tuple(
        PersistentBuffer(p, columns * tensors[p.name].dtype.bytes, last=max(seen[p]))
        for p in late if _is_row(scheduled, p) and p.walks(scheduled.rows)
    )  # fmt: skip


def cacheable(scheduled: ScheduledFusion) -> dict[str, int]:
    """{value: bytes of a row} for the values that several passes over a row need."""
    if not scheduled.params.inner or not scheduled.part.reductions:
        return {}
    inputs, others = _keepable(scheduled, _nests_of_points(scheduled))
    columns, tensors = size_of(scheduled.part, scheduled.reduced), scheduled.part.tensors
    expensive = [p for p in others if _is_expensive(scheduled, p)]
    points = dict.fromkeys([*inputs, *expensive, *others])
    return {p.name: columns * tensors[p.name].dtype.bytes for p in points}


def cached(scheduled: ScheduledFusion, names: Collection[str], memory: str) -> ScheduledFusion:
    """Keeps exactly these values on chip, all of which `cacheable` lists."""
    if not names:
        return _placed(scheduled, scheduled.params, "none", ())
    seen = _nests_of_points(scheduled)
    inputs, others = _keepable(scheduled, seen)
    others.sort(key=lambda point: not _is_expensive(scheduled, point))
    kept = _buffers(scheduled, seen, [p for p in (*inputs, *others) if p.name in names])
    rows = size_of(scheduled.part, scheduled.rows)
    kept = tuple(replace(buffer, bytes=rows * buffer.bytes) for buffer in kept)
    return _placed(scheduled, scheduled.params, memory, kept)


def _total_bytes(kept: Buffers) -> int:
    return sum(buffer.bytes for buffer in kept)


def bytes_at_once(kept: Buffers) -> int:
    """The most bytes of a row that are alive in registers between two nests.

    softmax of bf16: x (2 an element) until nest 1, then exp(x - max) (4): 4, not 6
    """
    return max(sum(c.bytes for c in kept if c.filled <= nest.filled < c.last) for nest in kept)


# ---- what is kept


def _default_buffers(scheduled: ScheduledFusion, *, with_expensive: bool) -> Buffers:
    """Buffers for the inputs that several nests need, and for expensive values if asked for."""
    seen = _nests_of_points(scheduled)
    inputs, others = _keepable(scheduled, seen)
    expensive = [p for p in others if with_expensive and _is_expensive(scheduled, p)]
    return _buffers(scheduled, seen, [*inputs, *_ends(scheduled, seen, others, expensive)])


def _ends(
    scheduled: ScheduledFusion, seen: dict[Point, set[int]], others: Sequence[Point],
    expensive: Sequence[Point],
) -> Sequence[Point]:  # fmt: skip
    """The values that later nests read of those computed from expensive ones, if they are no more:
    the work between need not be done again either.

    T1 = exp(T0); T2 = add(1.0, T1); T3 = mul(T4, T2); a later nest reads T3      ->  (T3,)
    """
    demand = scheduled.part.demand
    first = {point: min(nests) for point, nests in seen.items()}
    later = {
        read for point, reads in demand.reads.items()
        for read in reads if read in first and first.get(point, 0) > first[read]
    }
    ends = [
        point for point in others
        if point in later and not set(expensive).isdisjoint(demand.reached([point]))
    ]
    return ends if len(ends) <= len(expensive) else expensive


def _keepable(
    scheduled: ScheduledFusion, seen: dict[Point, set[int]]
) -> tuple[list[Point], list[Point]]:
    """(inputs, computed values) that can be kept. No inputs on a CPU, whose caches hold them."""
    reads = scheduled.part.demand.reads
    shared = [p for p, nests in seen.items() if len(nests) > 1 and _is_row(scheduled, p)]
    others = [p for p in shared if p in reads]
    return [] if scheduled.target.is_cpu else [p for p in shared if p not in reads], others


def _buffers(
    scheduled: ScheduledFusion, seen: dict[Point, set[int]], kept: Sequence[Point]
) -> Buffers:
    """Buffers for those of the points that a later nest reads again."""
    last = _read_again(scheduled, seen, kept)
    columns = size_of(scheduled.part, scheduled.reduced)
    itemsize = {p: scheduled.part.tensors[p.name].dtype.bytes for p in last}
    return tuple(
        PersistentBuffer(p, columns * itemsize[p], filled=min(seen[p]), last=last[p])
        for p in kept
        if p in last
    )


def _nests_of_points(scheduled: ScheduledFusion) -> dict[Point, set[int]]:
    """For every full-size point, the nests that need it if nothing is kept."""
    demand = scheduled.part.demand
    nests_of: dict[Point, set[int]] = {}
    for root in demand.roots:
        for point in demand.reached([root]):
            if point.walks(scheduled.reduced):
                nests_of.setdefault(point, set()).add(demand.level[root])
    return nests_of


def _is_expensive(scheduled: ScheduledFusion, point: Point) -> bool:
    """True if the point's own op is expensive."""
    expr = scheduled.part.producer.get(point.name)
    return expr is not None and is_expensive(expr.row)


def _is_row(scheduled: ScheduledFusion, point: Point) -> bool:
    """True if the point has all the elements of a row. A point that lacks a reduced axis is small,
    and caches hold it."""
    part = scheduled.part
    walked = {name for at in point.index for name in at.symbols}.intersection(scheduled.reduced)
    return size_of(part, walked) == size_of(part, scheduled.reduced)


def _read_again(
    scheduled: ScheduledFusion, seen: dict[Point, set[int]], kept: Sequence[Point]
) -> dict[Point, int]:
    """{kept point: the last nest that reads it}, for points that a nest after their first reads."""
    demand = scheduled.part.demand
    last: dict[Point, int] = {}
    for root in demand.roots:
        nest = demand.level[root]
        filled = frozenset(p for p in kept if min(seen[p]) < nest)
        for point in filled.intersection(demand.reached([root], stop=filled)):
            last[point] = max(last.get(point, 0), nest)
    return last


# ---- the threads that hold it


def _blocks_for(scheduled: ScheduledFusion, row_bytes: int) -> HeuristicParams | None:
    """The parameters of the smallest cluster (or single block) whose registers hold a row."""
    params = scheduled.params
    if has_order(scheduled.part, scheduled.options):  # block and cluster may not change
        return params if _fits(scheduled, row_bytes, params) else None
    cluster = 1
    while cluster <= scheduled.target.max_cluster:
        x, y = params.threads if cluster == 1 else (CLUSTER_THREADS, 1)
        most = max(LONG_ROW_THREADS, x)
        while x <= most:
            changed = replace(params, threads=(x, y), cluster=cluster)
            if _fits(scheduled, row_bytes, changed):
                return changed
            x, y = x * 2, max(y // 2, 1)
        cluster *= 2
    return None


def _fits(scheduled: ScheduledFusion, row_bytes: int, params: HeuristicParams) -> bool:
    """True if the threads of a block or cluster hold a row in registers.

    A thread's loop must also be short enough to unroll. Otherwise its array is not in registers.
    """
    columns, dealt = size_of(scheduled.part, scheduled.reduced), params.threads[0] * params.cluster
    steps = -(-columns // (dealt * params.vectorize))
    is_short = steps <= MAX_STEPS and columns <= dealt * MAX_ELEMENTS
    of_thread = register_bytes(prod(params.threads), scheduled.options)
    return is_short and row_bytes <= dealt * of_thread


def register_bytes(threads: int, options: CompileOptions) -> int:
    """Bytes a thread may keep: half of the registers that it can have, less 32 for the work itself.

    Two blocks of an SM then load and compute in turn: layer norm of bf16 with 16384 columns, 64 in
    each of 256 threads, reached 97 % of clone; with 32768 in one block of 512 threads, 79 % (H200).
    127 registers hold the option's 256 bytes without a spill (NVRTC 13.0, sm_90a, 2026-11).
    """
    registers = max(32768 // max(threads, 256), 64)
    return min(options.max_registers_bytes, (registers - 32) * 4)
