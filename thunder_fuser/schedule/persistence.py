# SPDX-License-Identifier: Apache-2.0
"""Which values stay on chip between the nests of a normalization, and where.

Inputs are kept in their own, narrow type and cast again; only what is expensive to recompute (exp)
is kept beside them. A row too long for one block is shared by the blocks of a cluster, where there
are clusters. If all of it does not fit, the inputs alone; if they do not, nothing: each nest then
reads memory again.

    softmax of bf16: keep x (bf16, nests 0 to 1) and exp(x - max) (f32, nests 1 to 2)
    layer norm of bf16: keep x (bf16) for the mean, the variance and the result
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.schedule.axes import size_of
from thunder_fuser.schedule.row_shape import has_order
from thunder_fuser.schedule.scheduled import HeuristicParams, PersistentBuffer, ScheduledFusion

EXPENSIVE = 8  # the cost of exp
CPU_ROW_BYTES = 256 * 1024  # a row buffer that stays in the second-level cache
SCRATCH_BYTES = 4096  # shared memory left to block reductions
LONG_ROW_THREADS = 512  # for rows that registers do not hold
CLUSTER_THREADS = 256  # at least, in each block of a cluster
MAX_STEPS = 64  # loops up to this length are unrolled whole
# Of a row, in one thread. With more, an SM has two blocks alone, too few for one to load while
# others compute.
MAX_ELEMENTS = 108

Buffers = tuple[PersistentBuffer, ...]


def place_persistent(scheduled: ScheduledFusion) -> ScheduledFusion:
    """The best of: all in registers, inputs in registers, inputs in shared memory, nothing.

    The threads and the cluster are those that hold it: the transforms are left to the caller.
    """
    target, params = scheduled.target, scheduled.params
    if not params.inner:
        return scheduled
    everything = _unplaced(scheduled, with_expensive=True)
    if target.is_cpu:
        fits = _bytes(everything) <= CPU_ROW_BYTES
        return _placed(scheduled, params, "registers", everything) if fits else scheduled
    inputs = _unplaced(scheduled, with_expensive=False)
    for kept in filter(None, (everything, inputs)):
        found = _blocks_for(scheduled, bytes_at_once(kept))
        if found is not None:
            return _placed(scheduled, found, "registers", kept)
    if not has_order(scheduled.part, scheduled.options):
        params = replace(params, threads=(LONG_ROW_THREADS, 1))
    if inputs and _bytes(inputs) // params.cluster <= target.smem_bytes_per_block - SCRATCH_BYTES:
        return _placed(scheduled, params, "shared", inputs)
    return replace(scheduled, params=params)


def _placed(
    scheduled: ScheduledFusion, params: HeuristicParams, memory: str, kept: Buffers
) -> ScheduledFusion:
    """A block that walks rows or a group has arrays of its sums in registers in any case."""
    held = tuple(replace(one, memory=memory) for one in kept)
    has_arrays = not scheduled.target.is_cpu and (scheduled.carried or scheduled.rows)
    known = memory if held else "registers" if has_arrays else "none"
    return replace(scheduled, params=replace(params, memory=known), persistent=held)


def with_inputs(scheduled: ScheduledFusion) -> ScheduledFusion:
    """With the inputs of a row that several nests read in registers, whatever they take."""
    kept = _unplaced(scheduled, with_expensive=False)
    return _placed(scheduled, scheduled.params, "registers", kept)


def with_group(scheduled: ScheduledFusion, rows: int) -> ScheduledFusion:
    """With what several nests read of a group of so many rows in registers: its inputs whatever
    they take, with them what is expensive if that fits; on a CPU this alone."""
    kept = _unplaced(scheduled, with_expensive=True)
    if scheduled.target.is_cpu:
        kept = kept if rows * _bytes(kept) <= CPU_ROW_BYTES else ()
        if not kept:
            return scheduled
    else:
        threads = prod(scheduled.params.threads)
        room = threads * register_bytes(threads, scheduled.options)
        if not kept or rows * bytes_at_once(kept) > room:
            kept = _unplaced(scheduled, with_expensive=False)
    kept = tuple(replace(one, bytes=rows * one.bytes) for one in kept)
    return _placed(scheduled, scheduled.params, "registers", kept)


def cacheable(scheduled: ScheduledFusion) -> dict[str, int]:
    """{value: bytes of a row} of what may stay on chip: several passes over a row need it."""
    if not scheduled.params.inner or not scheduled.part.reductions:
        return {}
    inputs, others = _shared(scheduled, _nests_of_points(scheduled))
    columns, tensors = size_of(scheduled.part, scheduled.reduced), scheduled.part.tensors
    expensive = [p for p in others if _is_expensive(scheduled, p)]
    points = dict.fromkeys([*inputs, *expensive, *others])
    return {p.name: columns * tensors[p.name].dtype.bytes for p in points}


def cached(scheduled: ScheduledFusion, names: Collection[str], memory: str) -> ScheduledFusion:
    """With these values on chip, of those that `cacheable` lists, and no others."""
    if not names:
        return _placed(scheduled, scheduled.params, "none", ())
    seen = _nests_of_points(scheduled)
    inputs, others = _shared(scheduled, seen)
    others.sort(key=lambda point: not _is_expensive(scheduled, point))
    kept = _buffers(scheduled, seen, [p for p in (*inputs, *others) if p.name in names])
    rows = size_of(scheduled.part, scheduled.rows)
    kept = tuple(replace(one, bytes=rows * one.bytes) for one in kept)
    return _placed(scheduled, scheduled.params, memory, kept)


def _bytes(kept: Buffers) -> int:
    return sum(one.bytes for one in kept)


def bytes_at_once(kept: Buffers) -> int:
    """Bytes of registers that hold what lives of a row between two nests, at most.

    softmax of bf16: x (2 an element) until nest 1, then exp(x - max) (4): 4, not 6
    """
    return max(sum(c.bytes for c in kept if c.filled <= nest.filled < c.last) for nest in kept)


# ---- what is kept


def _unplaced(scheduled: ScheduledFusion, *, with_expensive: bool) -> Buffers:
    """The points that several nests need: inputs, and with them what is expensive to recompute."""
    seen = _nests_of_points(scheduled)
    inputs, others = _shared(scheduled, seen)
    expensive = [p for p in others if with_expensive and _is_expensive(scheduled, p)]
    return _buffers(scheduled, seen, [*inputs, *expensive])


def _shared(
    scheduled: ScheduledFusion, seen: dict[Point, set[int]]
) -> tuple[list[Point], list[Point]]:
    """The points that can be kept: inputs, which a CPU's caches hold in any case, and others."""
    reads = scheduled.part.demand.reads
    shared = [p for p, nests in seen.items() if len(nests) > 1 and _is_row(scheduled, p)]
    others = [p for p in shared if p in reads]
    return [] if scheduled.target.is_cpu else [p for p in shared if p not in reads], others


def _buffers(
    scheduled: ScheduledFusion, seen: dict[Point, set[int]], kept: Sequence[Point]
) -> Buffers:
    """Buffers for those of the points that are then read again."""
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
    found: dict[Point, set[int]] = {}
    for root in demand.roots:
        for point in demand.reached([root]):
            if point.walks(scheduled.reduced):
                found.setdefault(point, set()).add(demand.level[root])
    return found


def _is_expensive(scheduled: ScheduledFusion, point: Point) -> bool:
    """True if the point's own op is expensive."""
    expr = scheduled.part.producer.get(point.name)
    kinds = (OpKind.POINTWISE, OpKind.RANDOM)
    return expr is not None and expr.row.kind in kinds and expr.row.cost >= EXPENSIVE


def _is_row(scheduled: ScheduledFusion, point: Point) -> bool:
    """True if the point has all the elements of a row. One that lacks a reduced axis is small and
    comes from cache: nothing to keep."""
    part = scheduled.part
    walked = {name for at in point.index for name in at.symbols}.intersection(scheduled.reduced)
    return size_of(part, walked) == size_of(part, scheduled.reduced)


def _read_again(
    scheduled: ScheduledFusion, seen: dict[Point, set[int]], kept: Sequence[Point]
) -> dict[Point, int]:
    """The kept points that a nest after their first one still asks for, and the last such nest."""
    demand = scheduled.part.demand
    found: dict[Point, int] = {}
    for root in demand.roots:
        nest = demand.level[root]
        filled = frozenset(p for p in kept if min(seen[p]) < nest)
        for point in filled.intersection(demand.reached([root], stop=filled)):
            found[point] = max(found.get(point, 0), nest)
    return found


# ---- the threads that hold it


def _blocks_for(scheduled: ScheduledFusion, row_bytes: int) -> HeuristicParams | None:
    """The smallest cluster, of one block if possible, and block whose registers hold a row."""
    own = scheduled.params
    if has_order(scheduled.part, scheduled.options):  # the block and the cluster are settled
        return own if _fits(scheduled, row_bytes, own) else None
    cluster = 1
    while cluster <= scheduled.target.max_cluster:
        x, y = own.threads if cluster == 1 else (CLUSTER_THREADS, 1)
        most = max(LONG_ROW_THREADS, x)
        while x <= most:
            found = replace(own, threads=(x, y), cluster=cluster)
            if _fits(scheduled, row_bytes, found):
                return found
            x, y = x * 2, max(y // 2, 1)
        cluster *= 2
    return None


def _fits(scheduled: ScheduledFusion, row_bytes: int, params: HeuristicParams) -> bool:
    """True if the threads of a block or cluster hold a row in registers.

    A thread's part must also be a loop short enough to unroll, or its array is no registers.
    """
    columns, dealt = size_of(scheduled.part, scheduled.reduced), params.threads[0] * params.cluster
    steps = -(-columns // (dealt * params.vectorize))
    is_short = steps <= MAX_STEPS and columns <= dealt * MAX_ELEMENTS
    of_thread = register_bytes(prod(params.threads), scheduled.options)
    return is_short and row_bytes <= dealt * of_thread


def register_bytes(threads: int, options: CompileOptions) -> int:
    """Bytes a thread may keep: half the register file, less 32 registers for the work itself.

    Two blocks of an SM then load and compute in turn: layer norm of bf16 with 16384 columns, 64 in
    each of 256 threads, reached 97 % of clone; with 32768 in one block of 512 threads, 79 % (H200).
    The option's 256 is what 127 registers hold with no spill (NVRTC 13.0, sm_90a, 2026-11).
    """
    registers = max(32768 // max(threads, 256), 64)
    return min(options.max_registers_bytes, (registers - 32) * 4)
