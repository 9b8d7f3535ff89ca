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

Found = TypeVar("Found", bound=KernelMatch)
Space = Callable[[ScheduledFusion], Iterator[ScheduledFusion]]


def neighbours(own: ScheduledFusion) -> Iterator[ScheduledFusion]:
    """Every other schedule of the space once, the most similar first. Some may be illegal."""
    seen = {_decided(own)}
    for one in space(own):
        if _decided(one) not in seen:
            seen.add(_decided(one))
            yield one


def space(own: ScheduledFusion) -> Iterator[ScheduledFusion]:
    """The schedules of the scheduler's function; none for a scheduler without one."""
    found = SPACES.get(own.params.scheduler) or FREE.get(own.params.scheduler)
    return found(own) if found else iter(())


def _decided(one: ScheduledFusion) -> tuple[object, ...]:
    return one.params, one.transforms, one.persistent, one.tile


def _around(own: Sequence[int], choices: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """All choices, those with the fewest doublings or halvings of `own` first.

    >>> _around((128, 1), [(64, 128, 512), (1, 2)])
    [(128, 1), (64, 1), (128, 2), (64, 2), (512, 1), (512, 2)]
    """

    def far(made: tuple[int, ...]) -> float:
        pairs = zip(made, own, strict=True)
        return sum(abs(log2(max(a, 0.5)) - log2(max(b, 0.5))) for a, b in pairs)

    return sorted((one for one in product(*choices) if far(one) <= FARTHEST), key=far)


def _match(own: ScheduledFusion, scheduler: type[Found]) -> Found:
    """The scheduler's match of the part, with its axes in the order of the schedule."""
    found = scheduler.match(own.part, own.target, own.options)
    assert isinstance(found, scheduler)
    return replace(found, kept=own.kept, reduced=own.reduced)


def _with_blocks(own: ScheduledFusion) -> Iterator[ScheduledFusion]:
    """With other numbers of blocks in a multiprocessor, which limit the registers of a thread."""
    for blocks in BLOCKS if not own.target.is_cpu else ():
        yield replace(own, params=replace(own.params, blocks=blocks))


# ---- pointwise


def _pointwise(own: ScheduledFusion) -> Iterator[ScheduledFusion]:
    found, alignment = _match(own, Pointwise), dict(own.alignment)
    yield from _in_turns(_flat(own, found, alignment), _with_blocks(own))


def _flat(
    own: ScheduledFusion, found: Pointwise, alignment: dict[str, int]
) -> Iterator[ScheduledFusion]:
    """With other threads, vectors and unrolled steps; on a CPU with other chunks and tiles."""
    if own.target.is_cpu:
        for chunk, tile in _around((CPU_CHUNK, CPU_TILE), [_powers(256, 65536), _powers(8, 128)]):
            yield found.scheduled(cpu_with(found, chunk, tile), alignment)
        return
    params = own.params
    mine = params.threads[0], params.unroll, params.vectorize
    for threads, unroll, width in _around(mine, [_powers(64, 1024), (1, 2, 4, 8), WIDTHS]):
        if found.kept_size % width == 0:
            made = cuda_with(found, alignment, threads=threads, width=width, unroll=unroll)
            yield found.scheduled(made, alignment)


def _powers(low: int, high: int) -> tuple[int, ...]:
    return tuple(1 << at for at in range(low.bit_length() - 1, high.bit_length()))


# ---- rows


def _reduction(own: ScheduledFusion) -> Iterator[ScheduledFusion]:
    yield from _in_turns(_rows(own, _match(own, Reduction)), _with_blocks(own))


def _persistent(own: ScheduledFusion) -> Iterator[ScheduledFusion]:
    kept = [buffer.point.name for buffer in own.persistent]
    others = (_cached(one, kept, own.params.memory) for one in _rows(own, _match(own, Persistent)))
    yield from _in_turns(others, _caches(own), _with_blocks(own))


def _in_turns(*spaces: Iterator[ScheduledFusion]) -> Iterator[ScheduledFusion]:
    """One of each, until all have ended."""
    for found in zip_longest(*spaces):
        yield from (one for one in found if one is not None)


def _rows(own: ScheduledFusion, found: Rows) -> Iterator[ScheduledFusion]:
    """With other threads, vectors and clusters."""
    alignment, params = dict(own.alignment), own.params
    if own.target.is_cpu:
        columns = CPU_COLUMNS if params.inner else params.vectorize
        for (count,) in _around((columns,), [_powers(16, 8192)]):
            yield found.scheduled(cpu_rows_with(found, count), alignment)
        return
    shifted = any(isinstance(t, Split) and t.shift is not None for t in own.transforms)
    clusters = [k for k in CLUSTERS if k <= own.target.max_cluster and not found.chunk]
    mine = (*params.threads, params.vectorize, params.cluster)
    choices = [_powers(4, 1024), _powers(1, 128), WIDTHS, clusters if params.inner else (1,)]
    for x, y, width, cluster in _around(mine, choices):
        divides = (found.reduced_size if params.inner else found.kept_size) % width == 0
        if not (divides or shifted) or (y > 1 and params.inner and not found.kept):
            continue
        if params.inner:
            made = inner_with(
                found, alignment, (x, y), cluster=cluster, width=width, shifted=shifted
            )
        else:
            made = outer_with(found, alignment, (x, y), width=width)
        yield found.scheduled(made, alignment)


def _caches(own: ScheduledFusion) -> Iterator[ScheduledFusion]:
    """With other values on chip: inputs, computed values, both, or none."""
    known, inputs = cacheable(own), [n for n in cacheable(own) if n in own.part.inputs]
    others = [name for name in known if name not in inputs]
    for kept in (inputs, others, [*inputs, *others[:1]], [*inputs, *others]):
        yield _cached(own, kept, "registers")
    if not own.target.is_cpu:
        yield _cached(own, inputs, "shared")
    yield _cached(own, [], "none")


def _cached(one: ScheduledFusion, names: Sequence[str], memory: str) -> ScheduledFusion:
    known = cacheable(one) if names else {}
    return cached(one, [name for name in names if name in known], memory)


def _inner_outer(own: ScheduledFusion) -> Iterator[ScheduledFusion]:
    found, alignment, params = _match(own, InnerOuter), dict(own.alignment), own.params
    if own.target.is_cpu:
        return
    choices = [_powers(32, 512), _powers(1, 16), CLUSTERS[:3], BLOCKS, WIDTHS]
    mine = (*params.threads, params.cluster, params.blocks, params.vectorize)
    for x, y, cluster, blocks, width in _around(mine, choices):
        if found.reduced_size % width == 0 and cluster <= own.target.max_cluster:
            shape = RowShape((x, y), cluster, blocks, width)
            yield with_inputs(found.scheduled(runs_with(found, alignment, shape), alignment))


# ---- schedulers that take the schedules of their space alone


def _nested(own: ScheduledFusion) -> Iterator[ScheduledFusion]:
    found, alignment = _match(own, Nested), dict(own.alignment)
    for shape in () if own.target.is_cpu else found.shapes():
        yield from _with_blocks(found.placed(groups_with(found, shape), alignment))


def _scan(own: ScheduledFusion) -> Iterator[ScheduledFusion]:
    if has_order(own.part, own.options):
        return
    found, alignment, params = _match(own, Scan), dict(own.alignment), own.params
    if own.target.is_cpu:
        on_cpu = scan_rows_on_cpu if found.inner else scan_columns_on_cpu
        first = SCANNED_CHUNK if found.inner else CPU_COLUMNS
        for (count,) in _around((first,), [_powers(16, 8192)]):
            yield found.scheduled(on_cpu(found, count), alignment)
        return
    size = found.reduced_size if params.inner else found.kept_size
    mine = (*params.threads, params.vectorize)
    for x, y, width in _around(mine, [_powers(8, 512), _powers(1, 32), WIDTHS]):
        if size % width or x * y > 1024 or x * y < 32:
            continue
        if params.inner:
            made = inner_with(found, alignment, (x, y), width=width)
        else:
            made = scan_columns_with(found, alignment, x, width)
        yield found.scheduled(made, alignment)


def _transpose(
    own: ScheduledFusion, wanted: Callable[[int, int], bool] = lambda elements, threads: True
) -> Iterator[ScheduledFusion]:
    """With other tiles and threads. wanted: a filter by (elements of a tile, threads)."""
    found, alignment = _match(own, Transpose), dict(own.alignment)
    widest = max(found.itemsizes)
    extents = size_of(found.part, found.across), size_of(found.part, found.inner)
    threads = own.params.threads[0]
    seen = set[tuple[int, int, int]]()
    mine = TILE_BYTES[0], LINE_BYTES, threads
    choices = [_powers(SMALLEST_TILE, WIDE_TILE), _powers(64, 256), _powers(128, 512)]
    for tile_bytes, line, threads in _around(mine, choices):
        across, inner = fit(*extents, tile_bytes // widest, line // widest)
        staged = across * inner * sum(found.itemsizes)
        is_tile = min(across, inner) > 0 and staged <= found.target.smem_bytes_per_block // 2
        if not is_tile or (across, inner, threads) in seen:
            continue
        seen.add((across, inner, threads))
        if wanted(across * inner, threads):
            sides = Side(found.across, across), Side(found.inner, inner)
            yield found.tiled(alignment, *sides, threads)


def tiled(
    own: ScheduledFusion, transforms: tuple[Transform, ...], moves: tuple[Transform, ...]
) -> ScheduledFusion:
    """The schedule of the space that has these transforms; ScheduleError if there is none."""
    loop = reduce(apply, transforms, own.axes)
    walked = [a for a in loop if not a.parallel.is_block]
    elements = prod(int(axis.extent.value) for axis in walked)
    mine = next((int(a.extent.value) for a in walked if a.parallel is ParallelType.TIDX), 1)

    def wanted(count: int, threads: int) -> bool:
        return threads == mine and count <= elements < count + WIDTHS[-1] * threads

    for one in (own, *_transpose(own, wanted)):
        if one.tile and (one.transforms, one.tile.transforms) == (transforms, moves):
            return one
    raise ScheduleError(
        f"schedule of {own.params.scheduler}", got="other loops",
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
