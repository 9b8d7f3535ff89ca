# SPDX-License-Identifier: Apache-2.0
"""The rules of a legal schedule. A given schedule is checked before it is lowered.

computed once   Splits, merges and reorders are one-to-one, and a split that does not divide has a
                guard. So every element is computed once if each loop runs once. WALKS says what may
                iterate over kept and over reduced axes in each kind of kernel, and a block or
                thread index iterates over one loop.
order           A sum whose order is fixed by its sizes (repeatable) keeps its loops and its bits.
barriers        All threads of a block reach them: kept axes on threads are clamped, not skipped,
                and reductions have as many threads as their butterflies need.
vectors         The elements of a vector exist together: its width divides the extent of its axis.
limits          Steps past the ends of axes, threads, blocks of a cluster and registers. Shared
                memory and the stack of a CPU's thread are checked when the kernel is lowered.

The kernels of other schedulers (scan, nested, transpose) are not loops alone. These take their own
schedule alone, with another number of blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from thunder_fuser.errors import ScheduleError
from thunder_fuser.ir.domain import Domain, IterDomain, ParallelType, Split, apply
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.schedule.axes import WIDTHS, size_of
from thunder_fuser.schedule.loop_index import LoopIndex, loop_index, runs_loop
from thunder_fuser.schedule.persistence import (
    CPU_ROW_BYTES,
    MAX_STEPS,
    bytes_at_once,
)
from thunder_fuser.schedule.row_shape import has_order
from thunder_fuser.schedule.scheduled import ScheduledFusion

MOST_THREADS = 1024
WARP = 32
THREAD_BYTES = 255 * 4  # of the registers that a thread can have
MOST_BLOCKS = 32  # in a multiprocessor at once
# The most steps past the ends of axes: a constant, and so many for each element.
MOST_IDLE, IDLE_EACH = 1 << 20, 64
P = ParallelType
FREE = ("pointwise", "reduction", "persistent", "inner_outer")  # schedulers with other loops
# What may iterate over (kept, reduced) axes in each kind of kernel, on CUDA and on a CPU.
WALKS: dict[str, tuple[tuple[set[P], set[P]], tuple[set[P], set[P]]]] = {
    "pointwise": (
        ({P.BIDX, P.BIDY, P.TIDX, P.TIDY, P.UNROLL, P.SERIAL, P.VECTORIZE}, set()),
        ({P.BIDX, P.SERIAL, P.VECTORIZE}, set()),
    ),
    "inner": (
        ({P.BIDX, P.TIDY}, {P.SERIAL, P.TIDX, P.CLUSTER, P.VECTORIZE}),
        ({P.BIDX}, {P.SERIAL, P.VECTORIZE}),
    ),
    "outer": (
        ({P.BIDX, P.TIDX, P.VECTORIZE}, {P.SERIAL, P.TIDY}),
        ({P.BIDX, P.VECTORIZE}, {P.SERIAL}),
    ),
    "carried": (
        ({P.BIDX, P.SERIAL, P.TIDY}, {P.SERIAL, P.TIDX, P.CLUSTER, P.VECTORIZE}),
        ({P.BIDX, P.SERIAL}, {P.SERIAL, P.VECTORIZE}),
    ),
}


def check(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """ScheduleError, which names the axis and the rule, unless the schedule is legal.

    default: the scheduler's own schedule of the same part, which is legal.
    """
    if scheduled == default:
        return
    _check_blocks(scheduled)
    for rule in RULES if scheduled.params.scheduler in FREE else ():
        rule(scheduled, default)


def _wrong(thing: str, expected: str, got: object) -> ScheduleError:
    return ScheduleError(thing, expected=expected, got=str(got))


# ---- which loops


def _check_steps(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """Splits do not make the loops much longer than the axes."""
    domain = scheduled.axes
    most = MOST_IDLE + IDLE_EACH * _steps(domain)
    for transform in scheduled.transforms:
        domain = apply(domain, transform)
        if isinstance(transform, Split) and _steps(domain) > most:
            raise _wrong(f"split of {transform.axis}", f"at most {most} steps", _steps(domain))


def _steps(domain: Domain) -> int:
    return prod(int(axis.extent.value) for axis in domain)


def _kind(scheduled: ScheduledFusion) -> str:
    if not scheduled.reduced:
        return "pointwise"
    if scheduled.carried:
        return "carried"
    return "inner" if scheduled.params.inner else "outer"


def _loops(scheduled: ScheduledFusion) -> LoopIndex:
    return loop_index(scheduled.axes, scheduled.transforms, scheduled.part.chunked)


def _check_walks(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """What iterates over each loop is allowed in this kind of kernel."""
    kind, variables = _kind(scheduled), _loops(scheduled).loops
    kept, reduced = WALKS[kind][scheduled.target.is_cpu]
    runs = runs_loop(scheduled.loop) if scheduled.part.chunked and not scheduled.carried else ""
    for axis in scheduled.loop:
        allowed = reduced if axis.is_reduction else kept
        if variables[axis.name].is_const or axis.parallel in allowed or axis.name == runs:
            continue
        words = ", ".join(sorted(parallel.value for parallel in allowed)) or "nothing"
        side = "reduced" if axis.is_reduction else "kept"
        device = "a CPU" if scheduled.target.is_cpu else "CUDA"
        expected = f"a {side} axis walked by {words} ({kind} on {device})"
        raise _wrong(f"axis {axis.name}", expected, axis.parallel.value)


def _check_bound_once(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """A block or thread index, a cluster or a vector iterates over one loop; blocks over runs."""
    if scheduled.part.chunked and not any(a.parallel in (P.BIDX, P.BIDY) for a in scheduled.loop):
        raise _wrong("blockIdx.x", "the axis of runs, whose results are partial", "none")
    bound: dict[ParallelType, IterDomain] = {}
    for axis in scheduled.loop:
        if axis.parallel not in (P.SERIAL, P.UNROLL) and axis.parallel in bound:
            other = bound[axis.parallel].name
            raise _wrong(f"axis {axis.name}", f"one axis at {axis.parallel.value}", f"{other} too")
        bound[axis.parallel] = axis


def _check_rows(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """Reductions have threads along an axis, and a block that walks rows has one loop over them."""
    if not scheduled.reduced or scheduled.target.is_cpu:
        return
    by = {axis.parallel for axis in scheduled.loop}
    if P.TIDX not in by:
        raise _wrong("threadIdx.x", "an axis of a reduction", "none")
    if scheduled.carried:
        variables = _loops(scheduled).loops
        rows = [a for a in scheduled.loop if a.parallel is P.SERIAL and not a.is_reduction]
        walked = [a.name for a in rows if not variables[a.name].is_const]
        if len(walked) > 1:
            raise _wrong(f"axis {walked[1]}", "one loop over a block's rows", ", ".join(walked))


def _check_runs(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """The blocks of partial results reduce the runs of the plan."""
    chunked = scheduled.part.chunked
    if chunked is None:
        return
    name = runs_loop(scheduled.loop)
    loops = _loops(scheduled)
    run = loops.loops[name]
    guarded = [guard for guard in loops.guards if guard.value.symbols & run.symbols]
    flat = _flat(scheduled, loops).substitute({str(g.variable): g.value for g in guarded})
    whole = run * chunked.size
    rest = flat - whole
    if rest.lo < 0 or rest.hi >= chunked.size or rest.symbols & whole.symbols:
        expected = f"runs of {chunked.size} elements, one after another"
        raise _wrong(f"axis {name}", expected, f"element {flat}")


def _flat(scheduled: ScheduledFusion, loops: LoopIndex) -> Scalar:
    """The row-major number of an element along the axes whose runs are reduced."""
    assert scheduled.part.chunked is not None
    names, extents = scheduled.part.chunked.reduced, scheduled.part.extents
    merged = "*".join(names)
    if merged in loops.index:
        return loops.index[merged]
    number = loops.index[names[0]]
    for name in names[1:]:
        number = number * extents[name] + loops.index[name]
    return number


# ---- the order of sums


def _check_order(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """Under `repeatable` the sizes of a sum fix the loops that it goes through."""
    if not has_order(scheduled.part, scheduled.options):
        return
    theirs, ours = (_summed(schedule) for schedule in (default, scheduled))
    if (theirs, default.params.inner) != (ours, scheduled.params.inner):
        expected = f"the loops that a sum's sizes fix: {', '.join(theirs)}"
        raise _wrong("option repeatable", expected, ", ".join(ours))


def _summed(scheduled: ScheduledFusion) -> tuple[str, ...]:
    return tuple(str(axis) for axis in scheduled.loop if axis.is_reduction or scheduled.carried)


# ---- vectors


def _check_lanes(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """The vectorized loop is the innermost one, and its width divides the extent of its axis."""
    loops = _loops(scheduled)
    walked = [
        axis for axis in scheduled.loop
        if not (axis.parallel.is_block or axis.parallel.is_thread)
        and not loops.loops[axis.name].is_const
    ]  # fmt: skip
    lane = next((axis for axis in walked if axis.parallel is P.VECTORIZE), None)
    if lane is None:
        return
    if walked[-1] is not lane:
        raise _wrong(f"axis {lane.name}", "vectorize at the innermost loop", walked[-1].name)
    if not scheduled.target.is_cpu and int(lane.extent.value) not in WIDTHS:
        expected = f"vectors of {', '.join(map(str, WIDTHS))} elements"
        raise _wrong(f"axis {lane.name}", expected, lane.extent)
    variable = loops.loops[lane.name]
    of_lane = variable.symbols
    for guard in loops.guards:  # the innermost splits first
        shortens = scheduled.target.is_cpu and guard.growth(variable) == 1
        if not guard.value.symbols & of_lane:
            continue
        if not shortens:
            expected = f"an extent that {lane.extent} divides, as {lane.name} is vectorized"
            raise _wrong(f"axis {guard.axis}", expected, guard.extent)
        of_lane |= guard.variable.symbols


def _check_shift(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """Odd rows may be shifted (Split.shift) in a kernel for a GPU that reads each step once: rows
    are kept in registers, or the kernel is pointwise."""
    shifted = [t for t in scheduled.transforms if isinstance(t, Split) and t.shift is not None]
    if not shifted:
        return
    lanes = [axis.name for axis in scheduled.loop if axis.parallel is P.VECTORIZE]
    is_free = not scheduled.target.is_cpu and not has_order(scheduled.part, scheduled.options)
    in_registers = scheduled.params.memory == "registers" and not scheduled.carried
    once = in_registers or not scheduled.reduced
    if len(shifted) > 1 or lanes != [shifted[0].axis + ".i"] or not is_free or not once:
        expected = "one, of what is vectorized, on CUDA, of rows kept in registers"
        raise _wrong(f"shift of {shifted[0].axis}", expected, "another one")


# ---- limits


def _check_threads(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """A block has at most 1024 threads. Threads that reduce together fill warps, or part of one."""
    (x, y), cluster = scheduled.params.threads, scheduled.params.cluster
    if x * y > MOST_THREADS:
        raise _wrong("threadIdx.x and threadIdx.y", f"at most {MOST_THREADS} threads", x * y)
    joins = bool(scheduled.reduced) and scheduled.params.inner and not scheduled.target.is_cpu
    if joins and x % WARP and (x > WARP or x & (x - 1) or ((x * y) % WARP and y > 1)):
        expected = "whole warps, or 1, 2, 4, 8 or 16 threads a row that fill warps together"
        raise _wrong("threadIdx.x", expected, f"{x} by {y} threads")
    if cluster > 1 and (cluster > scheduled.target.max_cluster or x % WARP or y > 1):
        most = scheduled.target.max_cluster
        expected = f"at most {most} blocks, of whole warps with one row each"
        raise _wrong("cluster", expected, f"{cluster} blocks of {x} by {y} threads")
    if cluster > 1 and scheduled.part.chunked and not scheduled.carried:
        raise _wrong("cluster", "none where blocks reduce runs of a row", cluster)


def _check_caches(scheduled: ScheduledFusion, default: ScheduledFusion) -> None:
    """The values that stay on chip fit there."""
    if not scheduled.persistent:
        return
    memory, kept = scheduled.params.memory, scheduled.persistent
    if scheduled.target.is_cpu:
        total = sum(buffer.bytes for buffer in kept)
        if memory != "registers" or total > CPU_ROW_BYTES:
            raise _wrong("cache", f"at most {CPU_ROW_BYTES} bytes a row, no shared memory", total)
        return
    if memory != "registers":
        if scheduled.carried:
            raise _wrong("cache", "registers, where a block walks rows", memory)
        return  # the kernel's shared memory is counted when it is lowered
    dealt = scheduled.params.threads[0] * scheduled.params.cluster
    share = -(-bytes_at_once(kept) // dealt)
    if share > THREAD_BYTES:
        raise _wrong("cache in registers", f"at most {THREAD_BYTES} bytes a thread", share)
    columns = size_of(scheduled.part, scheduled.reduced)
    steps = -(-columns // (dealt * scheduled.params.vectorize))
    if steps > MAX_STEPS:
        raise _wrong("cache in registers", f"at most {MAX_STEPS} steps of a thread", steps)


def _check_blocks(scheduled: ScheduledFusion) -> None:
    """A multiprocessor can hold the blocks."""
    blocks, threads = scheduled.params.blocks, prod(scheduled.params.threads)
    if not blocks:
        return
    most = min(MOST_BLOCKS, scheduled.target.max_threads_per_sm // max(threads, 1))
    if scheduled.target.is_cpu or blocks > most:
        raise _wrong("blocks", f"at most {0 if scheduled.target.is_cpu else most}", blocks)


RULES: tuple[Callable[[ScheduledFusion, ScheduledFusion], None], ...] = (
    _check_steps,
    _check_bound_once,
    _check_walks,
    _check_rows,
    _check_runs,
    _check_order,
    _check_lanes,
    _check_shift,
    _check_threads,
    _check_caches,
)
