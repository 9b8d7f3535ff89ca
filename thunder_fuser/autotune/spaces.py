# SPDX-License-Identifier: Apache-2.0
"""A scheduler's schedule -> the other schedules of its parameter space, the most similar first.

    persistent(threads=128x1, cluster=1, ...)  ->  threads=256x1;  threads=64x2;  cluster=2;  ...

Each scheduler has a function that yields them. It calls the code of the scheduler's own choice with
other parameters. rules.py drops schedules that do not fit. Autotuning measures the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product, zip_longest
from math import log2, prod
from typing import TypeVar

from thunder_fuser.errors import ScheduleError
from thunder_fuser.ir.domain import ParallelType, Split, Transform, apply
from thunder_fuser.schedule.axes import WIDTHS, size_of
from thunder_fuser.schedule.nested import InnerOuter, Nested, groups_with, runs_with
from thunder_fuser.schedule.persistence import cacheable, cached, with_inputs
from thunder_fuser.schedule.pointwise import CPU_CHUNK, CPU_TILE, Pointwise, cpu_with, cuda_with
from thunder_fuser.schedule.reduction import (
    CPU_COLUMNS,
    SCANNED_CHUNK,
    Persistent,
    Reduction,
    Rows,
    Scan,
    inner_with,
    outer_with,
    scan_columns_on_cpu,
    scan_columns_with,
    scan_rows_on_cpu,
)
from thunder_fuser.schedule.reduction import cpu_with as cpu_rows_with
from thunder_fuser.schedule.row_shape import RowShape, has_order
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.schedule.scheduler import KernelMatch
from thunder_fuser.schedule.transpose import (
    LINE_BYTES,
    SMALLEST_TILE,
    TILE_BYTES,
    Side,
    Transpose,
    fit,
)

FARTHEST = 4.0  # the most doublings and halvings of the scheduler's own parameters
CLUSTERS = (1, 2, 4, 8, 16)
BLOCKS = (0, 1, 2, 3, 4, 6, 8)
WIDE_TILE = 32768  # bytes of the largest tile

MatchType = TypeVar("MatchType", bound=KernelMatch)
Space = Callable[[ScheduledFusion], Iterator[ScheduledFusion]]


def neighbours(base: ScheduledFusion) -> Iterator[ScheduledFusion]:
    """Every other schedule of the space once, the most similar first. Some may be illegal."""
    seen = {_decided(base)}
    for schedule in space(base):
        if _decided(schedule) not in seen:
            seen.add(_decided(schedule))
            yield schedule


def space(base: ScheduledFusion) -> Iterator[ScheduledFusion]:
    """The schedules of the scheduler's function; none for a scheduler without one."""
    schedules_of = SPACES.get(base.params.scheduler) or FREE.get(base.params.scheduler)
    return schedules_of(base) if schedules_of else iter(())


def _decided(schedule: ScheduledFusion) -> tuple[object, ...]:
    return schedule.params, schedule.transforms, schedule.persistent, schedule.tile


def _around(base: Sequence[int], choices: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """All choices, those with the fewest doublings or halvings of `base` first.

    >>> _around((128, 1), [(64, 128, 512), (1, 2)])
    [(128, 1), (64, 1), (128, 2), (64, 2), (512, 1), (512, 2)]
    """

    def far(choice: tuple[int, ...]) -> float:
        pairs = zip(choice, base, strict=True)
        return sum(abs(log2(max(a, 0.5)) - log2(max(b, 0.5))) for a, b in pairs)

    return sorted((choice for choice in product(*choices) if far(choice) <= FARTHEST), key=far)


def _match(base: ScheduledFusion, scheduler: type[MatchType]) -> MatchType:
    """The scheduler's match of the part, with its axes in the order of the schedule."""
    match = scheduler.match(base.part, base.target, base.options)
    assert isinstance(match, scheduler)
    return replace(match, kept=base.kept, reduced=base.reduced)


def _with_blocks(base: ScheduledFusion) -> Iterator[ScheduledFusion]:
    """With other numbers of blocks in a multiprocessor, which limit the registers of a thread."""
    for blocks in BLOCKS if not base.target.is_cpu else ():
        yield replace(base, params=replace(base.params, blocks=blocks))


# ---- pointwise


def _pointwise(base: ScheduledFusion) -> Iterator[ScheduledFusion]:
    match, alignment = _match(base, Pointwise), dict(base.alignment)
    yield from _in_turns(_flat(base, match, alignment), _with_blocks(base))


def _flat(
    base: ScheduledFusion, match: Pointwise, alignment: dict[str, int]
) -> Iterator[ScheduledFusion]:
    """With other threads, vectors and unrolled steps; on a CPU with other chunks and tiles."""
    if base.target.is_cpu:
        for chunk, tile in _around((CPU_CHUNK, CPU_TILE), [_powers(256, 65536), _powers(8, 128)]):
            yield match.scheduled(cpu_with(match, chunk, tile), alignment)
        return
    params = base.params
    mine = params.threads[0], params.unroll, params.vectorize
    for threads, unroll, width in _around(mine, [_powers(64, 1024), (1, 2, 4, 8), WIDTHS]):
        if match.kept_size % width == 0:
            decisions = cuda_with(match, alignment, threads=threads, width=width, unroll=unroll)
            yield match.scheduled(decisions, alignment)


def _powers(low: int, high: int) -> tuple[int, ...]:
    return tuple(1 << at for at in range(low.bit_length() - 1, high.bit_length()))


# ---- rows


def _reduction(base: ScheduledFusion) -> Iterator[ScheduledFusion]:
    yield from _in_turns(_rows(base, _match(base, Reduction)), _with_blocks(base))


def _persistent(base: ScheduledFusion) -> Iterator[ScheduledFusion]:
    kept = [buffer.point.name for buffer in base.persistent]
    rows = _rows(base, _match(base, Persistent))
    others = (_cached(row, kept, base.params.memory) for row in rows)
    yield from _in_turns(others, _caches(base), _with_blocks(base))


def _in_turns(*spaces: Iterator[ScheduledFusion]) -> Iterator[ScheduledFusion]:
    """One of each, until all have ended."""
    for schedules in zip_longest(*spaces):
        yield from (schedule for schedule in schedules if schedule is not None)


def _rows(base: ScheduledFusion, match: Rows) -> Iterator[ScheduledFusion]:
    """With other threads, vectors and clusters."""
    alignment, params = dict(base.alignment), base.params
    if base.target.is_cpu:
        columns = CPU_COLUMNS if params.inner else params.vectorize
        for (count,) in _around((columns,), [_powers(16, 8192)]):
            yield match.scheduled(cpu_rows_with(match, count), alignment)
        return
    shifted = any(isinstance(t, Split) and t.shift is not None for t in base.transforms)
    clusters = [k for k in CLUSTERS if k <= base.target.max_cluster and not match.chunk]
    mine = (*params.threads, params.vectorize, params.cluster)
    choices = [_powers(4, 1024), _powers(1, 128), WIDTHS, clusters if params.inner else (1,)]
    for x, y, width, cluster in _around(mine, choices):
        divides = (match.reduced_size if params.inner else match.kept_size) % width == 0
        if not (divides or shifted) or (y > 1 and params.inner and not match.kept):
            continue
        if params.inner:
            decisions = inner_with(
                match, alignment, (x, y), cluster=cluster, width=width, shifted=shifted
            )
        else:
            decisions = outer_with(match, alignment, (x, y), width=width)
        yield match.scheduled(decisions, alignment)


def _caches(base: ScheduledFusion) -> Iterator[ScheduledFusion]:
    """With other values on chip: inputs, computed values, both, or none."""
    known, inputs = cacheable(base), [n for n in cacheable(base) if n in base.part.inputs]
    others = [name for name in known if name not in inputs]
    for kept in (inputs, others, [*inputs, *others[:1]], [*inputs, *others]):
        yield _cached(base, kept, "registers")
    if not base.target.is_cpu:
        yield _cached(base, inputs, "shared")
    yield _cached(base, [], "none")


def _cached(schedule: ScheduledFusion, names: Sequence[str], memory: str) -> ScheduledFusion:
    known = cacheable(schedule) if names else {}
    return cached(schedule, [name for name in names if name in known], memory)


def _inner_outer(base: ScheduledFusion) -> Iterator[ScheduledFusion]:
    match, alignment, params = _match(base, InnerOuter), dict(base.alignment), base.params
    if base.target.is_cpu:
        return
    choices = [_powers(32, 512), _powers(1, 16), CLUSTERS[:3], BLOCKS, WIDTHS]
    mine = (*params.threads, params.cluster, params.blocks, params.vectorize)
    for x, y, cluster, blocks, width in _around(mine, choices):
        if match.reduced_size % width == 0 and cluster <= base.target.max_cluster:
            shape = RowShape((x, y), cluster, blocks, width)
            yield with_inputs(match.scheduled(runs_with(match, alignment, shape), alignment))


# ---- schedulers that take the schedules of their space alone


def _nested(base: ScheduledFusion) -> Iterator[ScheduledFusion]:
    match, alignment = _match(base, Nested), dict(base.alignment)
    for shape in () if base.target.is_cpu else match.shapes():
        yield from _with_blocks(match.placed(groups_with(match, shape), alignment))


def _scan(base: ScheduledFusion) -> Iterator[ScheduledFusion]:
    if has_order(base.part, base.options):
        return
    match, alignment, params = _match(base, Scan), dict(base.alignment), base.params
    if base.target.is_cpu:
        on_cpu = scan_rows_on_cpu if match.inner else scan_columns_on_cpu
        first = SCANNED_CHUNK if match.inner else CPU_COLUMNS
        for (count,) in _around((first,), [_powers(16, 8192)]):
            yield match.scheduled(on_cpu(match, count), alignment)
        return
    size = match.reduced_size if params.inner else match.kept_size
    mine = (*params.threads, params.vectorize)
    for x, y, width in _around(mine, [_powers(8, 512), _powers(1, 32), WIDTHS]):
        if size % width or x * y > 1024 or x * y < 32:
            continue
        if params.inner:
            decisions = inner_with(match, alignment, (x, y), width=width)
        else:
            decisions = scan_columns_with(match, alignment, x, width)
        yield match.scheduled(decisions, alignment)


def _transpose(
    base: ScheduledFusion, wanted: Callable[[int, int], bool] = lambda elements, threads: True
) -> Iterator[ScheduledFusion]:
    """With other tiles and threads. wanted: a filter by (elements of a tile, threads)."""
    match, alignment = _match(base, Transpose), dict(base.alignment)
    widest = max(match.itemsizes)
    extents = size_of(match.part, match.across), size_of(match.part, match.inner)
    threads = base.params.threads[0]
    seen = set[tuple[int, int, int]]()
    mine = TILE_BYTES[0], LINE_BYTES, threads
    choices = [_powers(SMALLEST_TILE, WIDE_TILE), _powers(64, 256), _powers(128, 512)]
    for tile_bytes, line, threads in _around(mine, choices):
        across, inner = fit(*extents, tile_bytes // widest, line // widest)
        staged = across * inner * sum(match.itemsizes)
        is_tile = min(across, inner) > 0 and staged <= match.target.smem_bytes_per_block // 2
        if not is_tile or (across, inner, threads) in seen:
            continue
        seen.add((across, inner, threads))
        if wanted(across * inner, threads):
            sides = Side(match.across, across), Side(match.inner, inner)
            yield match.tiled(alignment, *sides, threads)


def tiled(
    base: ScheduledFusion, transforms: tuple[Transform, ...], moves: tuple[Transform, ...]
) -> ScheduledFusion:
    """The schedule of the space that has these transforms; ScheduleError if there is none."""
    loop = reduce(apply, transforms, base.axes)
    walked = [a for a in loop if not a.parallel.is_block]
    elements = prod(int(axis.extent.value) for axis in walked)
    mine = next((int(a.extent.value) for a in walked if a.parallel is ParallelType.TIDX), 1)

    def wanted(count: int, threads: int) -> bool:
        return threads == mine and count <= elements < count + WIDTHS[-1] * threads

    for schedule in (base, *_transpose(base, wanted)):
        if schedule.tile and (schedule.transforms, schedule.tile.transforms) == (transforms, moves):
            return schedule
    raise ScheduleError(
        f"schedule of {base.params.scheduler}", got="other loops",
        expected="def schedule(s) and def move(s) with the loops of one tile, as they print",
    )  # fmt: skip


# Schedulers that take the schedules of their space alone, and schedulers that take any legal one.
SPACES: dict[str, Space] = {"scan": _scan, "nested": _nested, "transpose": _transpose}
FREE: dict[str, Space] = {
    "pointwise": _pointwise,
    "reduction": _reduction,
    "persistent": _persistent,
    "inner_outer": _inner_outer,
}
