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

from dataclasses import dataclass, replace
from math import prod

from thunder_fuser.analysis.demand import Point
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.schedule.repeatable import has_order
from thunder_fuser.schedule.scheduled import PersistentBuffer, ScheduledFusion

EXPENSIVE = 8  # the cost of exp
CPU_ROW_BYTES = 256 * 1024  # a row buffer that stays in the second-level cache
SCRATCH_BYTES = 4096  # shared memory left to block reductions
LONG_ROW_THREADS = 512  # for rows that registers do not hold
CLUSTER_THREADS = 256  # at least, in each block of a cluster
MAX_STEPS = 64  # loops up to this length are unrolled whole
# Of a row, in one thread. With more, an SM has two blocks alone, too few for one to load while
# others compute.
MAX_ELEMENTS = 108


@dataclass(frozen=True, slots=True)
class UnplacedBuffer:
    """A buffer without a place yet, the nest that fills it, and the last one that reads it.

    Registers hold it as memory does: ptxas makes a float of a 16-bit element again in each nest.
    """

    buffer: PersistentBuffer
    filled: int
    last: int


@dataclass(frozen=True, slots=True)
class Placement:
    """What is kept, where (registers, shared or none), the block and the cluster for it."""

    buffers: tuple[PersistentBuffer, ...]
    memory: str
    threads: tuple[int, int]
    cluster: int = 1


def place_persistent(scheduled: ScheduledFusion) -> Placement:
    """The best of: all in registers, inputs in registers, inputs in shared memory, nothing."""
    target, params = scheduled.target, scheduled.params
    nothing = Placement((), "none", params.threads, params.cluster)
    if not scheduled.params.inner:
        return nothing
    everything = _unplaced(scheduled, with_expensive=True)
    if target.is_cpu:
        fits = _bytes(everything) <= CPU_ROW_BYTES
        held = replace(nothing, buffers=_in("registers", everything), memory="registers")
        return held if fits else nothing
    inputs = _unplaced(scheduled, with_expensive=False)
    for kept in filter(None, (everything, inputs)):
        found = _blocks_for(scheduled, _bytes_at_once(kept))
        if found is not None:
            return Placement(_in("registers", kept), "registers", *found)
    if not has_order(scheduled.part, scheduled.options):
        nothing = replace(nothing, threads=(LONG_ROW_THREADS, 1))
    if inputs and _bytes(inputs) // nothing.cluster <= target.smem_bytes_per_block - SCRATCH_BYTES:
        return replace(nothing, buffers=_in("shared", inputs), memory="shared")
    return nothing


def kept_inputs(scheduled: ScheduledFusion) -> tuple[PersistentBuffer, ...]:
    """The inputs of a row that several nests read, in registers, whatever they take."""
    return _in("registers", _unplaced(scheduled, with_expensive=False))


def held_of(scheduled: ScheduledFusion, rows: int) -> tuple[PersistentBuffer, ...]:
    """What several nests read of a group of so many rows, in registers: its inputs whatever they
    take, with them what is expensive if that fits; on a CPU this alone."""
    everything = _unplaced(scheduled, with_expensive=True)
    if scheduled.target.is_cpu:
        kept = everything if rows * _bytes(everything) <= CPU_ROW_BYTES else []
    else:
        threads = prod(scheduled.params.threads)
        room = threads * register_bytes(threads, scheduled.options)
        fits = everything and rows * _bytes_at_once(everything) <= room
        kept = everything if fits else _unplaced(scheduled, with_expensive=False)
    held = _in("registers", kept)
    return tuple(replace(buffer, bytes=rows * buffer.bytes) for buffer in held)


def _bytes(kept: list[UnplacedBuffer]) -> int:
    return sum(one.buffer.bytes for one in kept)


def _in(memory: str, kept: list[UnplacedBuffer]) -> tuple[PersistentBuffer, ...]:
    return tuple(replace(one.buffer, memory=memory) for one in kept)


def _unplaced(scheduled: ScheduledFusion, *, with_expensive: bool) -> list[UnplacedBuffer]:
    """The points that several nests need: inputs, and with them what is expensive to recompute."""
    demand = scheduled.part.demand
    seen = _nests_of_points(scheduled)
    shared = [point for point, where in seen.items() if len(where) > 1]
    inputs = [] if scheduled.target.is_cpu else [p for p in shared if p not in demand.reads]
    expensive = [p for p in shared if with_expensive and _is_expensive(scheduled, p)]
    kept = [p for p in dict.fromkeys([*inputs, *expensive]) if _row_bytes(scheduled, p)]
    last = _read_again(scheduled, seen, frozenset(kept))
    return [
        UnplacedBuffer(PersistentBuffer(p, _row_bytes(scheduled, p), ""), min(seen[p]), last[p])
        for p in kept if p in last
    ]


def _read_again(
    scheduled: ScheduledFusion, seen: dict[Point, set[int]], kept: frozenset[Point]
) -> dict[Point, int]:
    """The kept points that a nest after their first one still asks for, and the last such nest."""
    demand = scheduled.part.demand
    found: dict[Point, int] = {}
    for root in demand.roots:
        nest = demand.level[root]
        filled = frozenset(p for p in kept if min(seen[p]) < nest)
        for point in filled & set(demand.reached([root], stop=filled)):
            found[point] = max(found.get(point, 0), nest)
    return found


def _nests_of_points(scheduled: ScheduledFusion) -> dict[Point, set[int]]:
    """For every full-size point, the nests that need it if nothing is kept."""
    demand = scheduled.part.demand
    found: dict[Point, set[int]] = {}
    for root in demand.roots:
        for point in demand.reached([root]):
            if _walks(point, scheduled.reduced):
                found.setdefault(point, set()).add(demand.level[root])
    return found


def _walks(point: Point, reduced: tuple[str, ...]) -> bool:
    return any(at.symbols & set(reduced) for at in point.index)


def _is_expensive(scheduled: ScheduledFusion, point: Point) -> bool:
    """True if the point's own op is expensive."""
    expr = scheduled.part.producer.get(point.name)
    computes = expr is not None and expr.row.kind in (OpKind.POINTWISE, OpKind.RANDOM)
    return expr is not None and computes and expr.row.cost >= EXPENSIVE


def _row_bytes(scheduled: ScheduledFusion, point: Point) -> int:
    """Bytes of the point for one position of the kept axes."""
    part = scheduled.part
    walked = {name for at in point.index for name in at.symbols} & set(scheduled.reduced)
    count = 1
    for name in walked:
        count *= part.extents[name].value
    full = 1
    for name in scheduled.reduced:
        full *= part.extents[name].value
    # A value that lacks a reduced axis is small and comes from cache: nothing to keep.
    return count * part.tensors[point.name].dtype.bytes if count == full else 0


def _bytes_at_once(kept: list[UnplacedBuffer]) -> int:
    """Bytes of registers that hold what lives of a row between two nests, at most.

    softmax of bf16: x (2 an element) until nest 1, then exp(x - max) (4): 4, not 6
    """
    return max(
        sum(c.buffer.bytes for c in kept if c.filled <= nest.filled < c.last) for nest in kept
    )


def _blocks_for(scheduled: ScheduledFusion, row_bytes: int) -> tuple[tuple[int, int], int] | None:
    """The smallest cluster, of one block if possible, and block whose registers hold a row."""
    if has_order(scheduled.part, scheduled.options):  # the block and the cluster are settled
        own = scheduled.params
        fits = _fits(scheduled, row_bytes, own.threads, own.cluster)
        return (own.threads, own.cluster) if fits else None
    cluster = 1
    while cluster <= scheduled.target.max_cluster:
        threads = _threads_for(scheduled, row_bytes, cluster)
        if threads is not None:
            return threads, cluster
        cluster *= 2
    return None


def _threads_for(
    scheduled: ScheduledFusion, row_bytes: int, cluster: int
) -> tuple[int, int] | None:
    """The smallest block, from the schedule's own on, that holds its share of a row, if one does.

    A thread's part must also be a loop short enough to unroll, or its array is no registers.
    """
    start = scheduled.params.threads
    x, y = start if cluster == 1 else (CLUSTER_THREADS, 1)
    while x <= max(LONG_ROW_THREADS, start[0] if cluster == 1 else 0):
        if _fits(scheduled, row_bytes, (x, y), cluster):
            return x, y
        x, y = x * 2, max(y // 2, 1)
    return None


def _fits(
    scheduled: ScheduledFusion, row_bytes: int, threads: tuple[int, int], cluster: int
) -> bool:
    """True if these threads of each block hold a row in registers."""
    columns = prod(scheduled.part.extents[name].value for name in scheduled.reduced)
    steps = -(-columns // (threads[0] * cluster * scheduled.params.vectorize))
    short = steps <= MAX_STEPS and columns <= threads[0] * cluster * MAX_ELEMENTS
    of_thread = register_bytes(prod(threads), scheduled.options)
    return short and row_bytes <= threads[0] * cluster * of_thread


def register_bytes(threads: int, options: CompileOptions) -> int:
    """Bytes a thread may keep: half the register file, less 32 registers for the work itself.

    Two blocks of an SM then load and compute in turn: layer norm of bf16 with 16384 columns, 64 in
    each of 256 threads, reached 97 % of clone; with 32768 in one block of 512 threads, 79 % (H200).
    The option's 256 is what 127 registers hold with no spill (NVRTC 13.0, sm_90a, 2026-11).
    """
    registers = max(32768 // max(threads, 256), 64)
    return min(options.max_registers_bytes, (registers - 32) * 4)
