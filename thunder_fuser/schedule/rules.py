# SPDX-License-Identifier: Apache-2.0
"""What a legal schedule is, checked before it is lowered: a wrong one is refused, never wrong.

computed once   splits, merges and reorders are one-to-one, and a split that does not divide has a
                guard. So every element is computed once if each loop is walked once, by what the
                kernel of this kind has a place for: WALKS says by what kept axes and reduced ones
                may be walked, and a block or thread index walks one loop.
order           a sum that is settled by its sizes (repeatable) keeps its loops, and so its bits
barriers        all threads of a block reach them: kept axes that are walked by threads are clamped,
                not skipped, and reductions have as many threads as their butterflies need
vectors         the elements of a vector exist together: the vectorized axis divides what it is of
limits          steps past the ends of axes, threads, blocks of a cluster, registers; shared memory,
                and the stack of a CPU's thread, when the kernel is lowered

Schedulers whose kernels have more to them than loops (scan, nested, transpose) take the schedules
of their own space alone: spaces.py.
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
from thunder_fuser.schedule.spaces import FREE, space

MOST_THREADS = 1024
WARP = 32
THREAD_BYTES = 255 * 4  # of the registers that a thread can have
MOST_BLOCKS = 32  # in a multiprocessor at once
# Steps that find nothing to do: so many, and so many for each element.
MOST_IDLE, IDLE_EACH = 1 << 20, 64
P = ParallelType
# By what kept and reduced axes may be walked, for each kind of kernel, on CUDA and on a CPU.
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


def check(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """ScheduleError, which names the axis and the rule, unless the schedule is legal.

    own: the scheduler's own schedule of the same part, which is.
    """
    if made == own:
        return
    _check_blocks(made)
    if made.tile is not None:  # found in its space
        return
    if made.params.scheduler in FREE:
        for rule in RULES:
            rule(made, own)
    else:
        _check_space(made, own, [one.transforms for one in (own, *space(own))])


def _wrong(thing: str, expected: str, got: object) -> ScheduleError:
    return ScheduleError(thing, expected=expected, got=str(got))


def _check_space(made: ScheduledFusion, own: ScheduledFusion, known: list[object]) -> None:
    if made.transforms in known and made.persistent in ((), own.persistent):
        return
    name, count = made.params.scheduler, len(known)
    expected = f"one of the {count} schedules of its space ({name} takes no others)"
    raise _wrong(f"schedule of {name}", expected, "another one")


# ---- which loops


def _check_steps(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """Splits do not make loops much longer than the axes are."""
    domain = made.axes
    most = MOST_IDLE + IDLE_EACH * _steps(domain)
    for transform in made.transforms:
        domain = apply(domain, transform)
        if isinstance(transform, Split) and _steps(domain) > most:
            raise _wrong(f"split of {transform.axis}", f"at most {most} steps", _steps(domain))


def _steps(domain: Domain) -> int:
    return prod(int(axis.extent.value) for axis in domain)


def _kind(made: ScheduledFusion) -> str:
    if not made.reduced:
        return "pointwise"
    if made.carried:
        return "carried"
    return "inner" if made.params.inner else "outer"


def _loops(made: ScheduledFusion) -> LoopIndex:
    return loop_index(made.axes, made.transforms, made.part.chunked)


def _check_walks(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """Each loop is walked by what the kernel has a place for."""
    kind, variables = _kind(made), _loops(made).loops
    kept, reduced = WALKS[kind][made.target.is_cpu]
    runs = runs_loop(made.loop) if made.part.chunked and not made.carried else ""
    for axis in made.loop:
        allowed = reduced if axis.is_reduction else kept
        if variables[axis.name].is_const or axis.parallel in allowed or axis.name == runs:
            continue
        words = ", ".join(sorted(one.value for one in allowed)) or "nothing"
        side = "reduced" if axis.is_reduction else "kept"
        device = "a CPU" if made.target.is_cpu else "CUDA"
        expected = f"a {side} axis walked by {words} ({kind} on {device})"
        raise _wrong(f"axis {axis.name}", expected, axis.parallel.value)


def _check_bound_once(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """A block or thread index, a cluster or a vector walks one loop; runs are walked by blocks."""
    if made.part.chunked and not any(a.parallel in (P.BIDX, P.BIDY) for a in made.loop):
        raise _wrong("blockIdx.x", "the axis of runs, whose results are partial", "none")
    bound: dict[ParallelType, IterDomain] = {}
    for axis in made.loop:
        if axis.parallel not in (P.SERIAL, P.UNROLL) and axis.parallel in bound:
            other = bound[axis.parallel].name
            raise _wrong(f"axis {axis.name}", f"one axis at {axis.parallel.value}", f"{other} too")
        bound[axis.parallel] = axis


def _check_rows(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """Of reductions: threads that join them, and one loop over the rows that a block walks."""
    if not made.reduced or made.target.is_cpu:
        return
    by = {axis.parallel for axis in made.loop}
    if P.TIDX not in by:
        raise _wrong("threadIdx.x", "an axis of a reduction", "none")
    if made.carried:
        variables = _loops(made).loops
        rows = [a for a in made.loop if a.parallel is P.SERIAL and not a.is_reduction]
        walked = [a.name for a in rows if not variables[a.name].is_const]
        if len(walked) > 1:
            raise _wrong(f"axis {walked[1]}", "one loop over a block's rows", ", ".join(walked))


def _check_runs(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """Partial results are of the runs that the plan has cut."""
    chunked = made.part.chunked
    if chunked is None:
        return
    name = runs_loop(made.loop)
    loops = _loops(made)
    run = loops.loops[name]
    over = [guard for guard in loops.guards if guard.value.symbols & run.symbols]
    flat = _flat(made, loops).substitute({str(guard.variable): guard.value for guard in over})
    whole = run * chunked.size
    rest = flat - whole
    if rest.lo < 0 or rest.hi >= chunked.size or rest.symbols & whole.symbols:
        expected = f"runs of {chunked.size} elements, one after another"
        raise _wrong(f"axis {name}", expected, f"element {flat}")


def _flat(made: ScheduledFusion, loops: LoopIndex) -> Scalar:
    """The number of an element of the axes whose runs are reduced."""
    assert made.part.chunked is not None
    names, extents = made.part.chunked.reduced, made.part.extents
    merged = "*".join(names)
    if merged in loops.index:
        return loops.index[merged]
    number = loops.index[names[0]]
    for name in names[1:]:
        number = number * extents[name] + loops.index[name]
    return number


# ---- the order of sums


def _check_order(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """Under `repeatable` the loops that a sum goes through are settled by its sizes."""
    if not has_order(made.part, made.options):
        return
    theirs, ours = (_summed(one) for one in (own, made))
    if (theirs, own.params.inner) != (ours, made.params.inner):
        raise _wrong(
            "option repeatable", f"the loops of a sum, which are settled: {', '.join(theirs)}",
            ", ".join(ours),
        )  # fmt: skip


def _summed(made: ScheduledFusion) -> tuple[str, ...]:
    return tuple(str(axis) for axis in made.loop if axis.is_reduction or made.carried)


# ---- vectors


def _check_lanes(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """The vectorized loop is the innermost one, and all its elements exist together."""
    loops = _loops(made)
    walked = [
        axis for axis in made.loop
        if not (axis.parallel.is_block or axis.parallel.is_thread)
        and not loops.loops[axis.name].is_const
    ]  # fmt: skip
    lane = next((axis for axis in walked if axis.parallel is P.VECTORIZE), None)
    if lane is None:
        return
    if walked[-1] is not lane:
        raise _wrong(f"axis {lane.name}", "vectorize at the innermost loop", walked[-1].name)
    if not made.target.is_cpu and int(lane.extent.value) not in WIDTHS:
        expected = f"vectors of {', '.join(map(str, WIDTHS))} elements"
        raise _wrong(f"axis {lane.name}", expected, lane.extent)
    variable = loops.loops[lane.name]
    of_lane = variable.symbols
    for guard in loops.guards:  # the innermost splits first
        shortens = made.target.is_cpu and guard.only_shortens(variable)
        if not guard.value.symbols & of_lane:
            continue
        if not shortens:
            expected = f"an extent that {lane.extent} divides, as {lane.name} is vectorized"
            raise _wrong(f"axis {guard.axis}", expected, guard.extent)
        of_lane |= guard.variable.symbols


def _check_shift(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """Steps may pass the ends of odd rows where a GPU reads each once and keeps it, or in a
    pointwise kernel."""
    shifted = [t for t in made.transforms if isinstance(t, Split) and t.shift is not None]
    if not shifted:
        return
    lanes = [axis.name for axis in made.loop if axis.parallel is P.VECTORIZE]
    is_free = not made.target.is_cpu and not has_order(made.part, made.options)
    once = not made.reduced or (made.params.memory == "registers" and not made.carried)
    if len(shifted) > 1 or lanes != [shifted[0].axis + ".i"] or not is_free or not once:
        expected = "one, of what is vectorized, on CUDA, of rows kept in registers"
        raise _wrong(f"shift of {shifted[0].axis}", expected, "another one")


# ---- limits


def _check_threads(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """A block has at most 1024 threads; those that reduce together are whole warps, or parts of
    one."""
    (x, y), cluster = made.params.threads, made.params.cluster
    if x * y > MOST_THREADS:
        raise _wrong("threadIdx.x and threadIdx.y", f"at most {MOST_THREADS} threads", x * y)
    joins = bool(made.reduced) and made.params.inner and not made.target.is_cpu
    if joins and x % WARP and (x > WARP or x & (x - 1) or ((x * y) % WARP and y > 1)):
        expected = "whole warps, or 1, 2, 4, 8 or 16 threads a row that fill warps together"
        raise _wrong("threadIdx.x", expected, f"{x} by {y} threads")
    if cluster > 1 and (cluster > made.target.max_cluster or x % WARP or y > 1):
        most = made.target.max_cluster
        expected = f"at most {most} blocks, of whole warps with one row each"
        raise _wrong("cluster", expected, f"{cluster} blocks of {x} by {y} threads")
    if cluster > 1 and made.part.chunked and not made.carried:
        raise _wrong("cluster", "none where blocks reduce runs of a row", cluster)


def _check_caches(made: ScheduledFusion, own: ScheduledFusion) -> None:
    """What stays on chip fits there."""
    if not made.persistent:
        return
    memory, kept = made.params.memory, made.persistent
    if made.target.is_cpu:
        total = sum(one.bytes for one in kept)
        if memory != "registers" or total > CPU_ROW_BYTES:
            raise _wrong("cache", f"at most {CPU_ROW_BYTES} bytes a row, no shared memory", total)
        return
    if memory != "registers":
        if made.carried:
            raise _wrong("cache", "registers, where a block walks rows", memory)
        return  # the kernel's shared memory is counted when it is lowered
    dealt = made.params.threads[0] * made.params.cluster
    share = -(-bytes_at_once(kept) // dealt)
    if share > THREAD_BYTES:
        raise _wrong("cache in registers", f"at most {THREAD_BYTES} bytes a thread", share)
    columns = size_of(made.part, made.reduced)
    steps = -(-columns // (dealt * made.params.vectorize))
    if steps > MAX_STEPS:
        raise _wrong("cache in registers", f"at most {MAX_STEPS} steps of a thread", steps)


def _check_blocks(made: ScheduledFusion) -> None:
    """As many blocks as fit a multiprocessor."""
    blocks, threads = made.params.blocks, prod(made.params.threads)
    if not blocks:
        return
    most = min(MOST_BLOCKS, made.target.max_threads_per_sm // max(threads, 1))
    if made.target.is_cpu or blocks > most:
        raise _wrong("blocks", f"at most {0 if made.target.is_cpu else most}", blocks)


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
