# SPDX-License-Identifier: Apache-2.0
"""Reductions of one pattern: kept axes K, reduced axes R, and what may be fused around them.

inner (R is fastest in memory; a row of threads walks R):
      CUDA [K.o@blockIdx.x, K.i@threadIdx.y, R.o.o, R.o.i@threadIdx.x, R.i@vectorize]
           long rows also over the blocks of a cluster: R.o.i -> R.o.i.o@cluster, R.o.i.i
      CPU  [K@blockIdx.x, R outer, R inner@vectorize]
outer (K is fastest; each thread owns columns, threadIdx.y strides over R):
      CUDA [K.o.o@blockIdx.x, K.o.i@threadIdx.x, R.o, R.i@threadIdx.y, K.i@vectorize]
      CPU  [K.o@blockIdx.x, R, K.i@vectorize]

With one nest this is the `reduction` scheduler; with several (softmax, norms) it is `persistent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder_fuser.analysis.demand import Demand
from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import ParallelType, Transform
from thunder_fuser.ir.ops import OpKind
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.schedule.axes import best_width, collapse, row_shift, size_of, summed_order
from thunder_fuser.schedule.persistence import place_persistent
from thunder_fuser.schedule.pointwise import too_many_places
from thunder_fuser.schedule.repeatable import has_order, row_of, rows_of_block
from thunder_fuser.schedule.scheduled import (
    HeuristicParams,
    ScheduledFusion,
    Transforms,
    reference,
)
from thunder_fuser.schedule.scheduler import Reject, read_elsewhere
from thunder_fuser.target import Target

CPU_COLUMNS = 256
# Passes over a row with weights whose steps may pass its ends. 4095 columns of bf16: RMS norm with
# two 84 -> 94 % of clone, layer norm with three 76 -> 66 %; without weights softmax 87 -> 91 %,
# its backward 89 -> 101 % (H200).
SHIFTED_PASSES = 2
# Threads for a row, by its length: (longest row, threads). Short rows share a block.
ROW_THREADS = ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128), (1 << 62, 256))


@dataclass(frozen=True, slots=True)
class Pattern:
    """The axes all reductions of a part keep and reduce, in memory order."""

    kept: tuple[str, ...]
    reduced: tuple[str, ...]
    inner: bool
    chunk: int = 0  # > 0: each block reduces a run of so many, and the results are partial
    has_order: bool = False  # see repeatable.py
    shifted: bool = False  # steps of odd rows may pass their ends


def pattern(part: Part, scheduler: str, options: CompileOptions) -> Pattern | Reject:
    """The one pattern of all reductions, or why there is none."""
    if part.has_empty:
        return Reject(scheduler, "a tensor has no elements")
    if not part.reductions:
        return Reject(scheduler, "there is no reduction")
    if any(expr.row.kind is OpKind.EXTERNAL for expr in part.exprs):
        return Reject(scheduler, "there is a torch call")
    if part.scans:
        return Reject(scheduler, "there is a scan")
    views = [part.tensors[expr.outputs[0]] for expr in part.reductions]
    kinds = {
        (frozenset(part.domain_map.axes(v)), frozenset(part.domain_map.reduced(v))) for v in views
    }
    chunks = {expr.attr("chunk") for expr in part.reductions}
    if len(kinds) > 1 or len(chunks) > 1:
        return Reject(scheduler, f"reductions of {max(len(kinds), len(chunks))} patterns")
    ((rows, reduced),) = kinds
    kept = rows - {part.chunked.axis} if part.chunked else rows
    for name in part.outputs:
        if frozenset(part.axes(name)) not in (rows, kept | reduced):
            return Reject(scheduler, f"result {name} is neither a row value nor a full one")
    order = summed_order(part, part.reductions[0], kept | reduced, options)
    found = Pattern(
        tuple(a for a in order if a in kept),
        tuple(a for a in order if a in reduced),
        order[-1] in reduced,
        part.chunked.size if part.chunked else 0,
        has_order(part, options),
    )
    if part.chunked and part.chunked.reduced != found.reduced:
        return Reject(scheduler, "partial results over axes that lie otherwise in memory")
    return found


def _check(
    part: Part, scheduler: str, options: CompileOptions
) -> tuple[Pattern, Demand] | Reject:
    found = pattern(part, scheduler, options)
    if isinstance(found, Reject):
        return found
    elsewhere = read_elsewhere(part, part.reductions, scheduler)
    return elsewhere or too_many_places(part, scheduler) or (found, part.facts)


def nests(facts: Demand, reduced: tuple[str, ...]) -> int:
    """How many passes over the reduced axes the part needs."""
    full = [r for r in facts.roots if is_full(r.index, reduced) or r in facts.operands.values()]
    return 1 + max(facts.level[root] for root in full)


def is_full(index: tuple[Scalar, ...], reduced: tuple[str, ...]) -> bool:
    """True if an index walks a reduced axis."""
    return any(at.symbols & set(reduced) for at in index)


def accepts_reduction(part: Part, target: Target, options: CompileOptions) -> Reject | None:
    """Takes reductions of one pattern whose results nothing full-size waits for."""
    checked = _check(part, "reduction", options)
    if isinstance(checked, Reject):
        return checked
    count = nests(checked[1], checked[0].reduced)
    return None if count == 1 else Reject("reduction", f"needs {count} passes over the data")


def accepts_persistent(part: Part, target: Target, options: CompileOptions) -> Reject | None:
    """Takes reductions of one pattern whose results are used over the reduced axes again."""
    checked = _check(part, "persistent", options)
    if isinstance(checked, Reject):
        return checked
    if checked[0].chunk:
        return Reject("persistent", "a row is not reduced by one block")
    if nests(checked[1], checked[0].reduced) == 1:
        return Reject("persistent", "nothing is used again after its reduction")
    return None


def schedule_reduction(
    part: Part, target: Target, options: CompileOptions, alignment: dict[str, int]
) -> ScheduledFusion:
    return _schedule("reduction", part, target, options, alignment)


def schedule_persistent(
    part: Part, target: Target, options: CompileOptions, alignment: dict[str, int]
) -> ScheduledFusion:
    return _schedule("persistent", part, target, options, alignment)


def _schedule(
    name: str, part: Part, target: Target, options: CompileOptions, alignment: dict[str, int]
) -> ScheduledFusion:
    found = pattern(part, name, options)
    assert isinstance(found, Pattern)
    make = _cpu if target.is_cpu else (_cuda_inner if found.inner else _cuda_outer)
    if name == "persistent" and found.inner and not target.is_cpu and not found.has_order:
        found = replace(found, shifted=_may_shift(part, found))
    params, transforms = make(part, target, found, alignment)
    scheduled = ScheduledFusion(
        part,
        target,
        options,
        replace(params, scheduler=name),
        found.kept,
        found.reduced,
        transforms,
        alignment=tuple(sorted(alignment.items())),
    )
    if name == "reduction":
        return scheduled
    placed = place_persistent(scheduled)
    again = found.shifted and placed.memory != "registers"  # steps that are read each pass
    found = replace(found, shifted=found.shifted and not again)
    if again or (placed.threads, placed.cluster) != (params.threads, params.cluster):
        params, transforms = _inner_with(
            part, found, alignment, placed.threads, cluster=placed.cluster
        )
    return replace(
        scheduled,
        params=replace(params, scheduler=name, memory=placed.memory),
        transforms=transforms,
        persistent=placed.buffers,
    )


def _may_shift(part: Part, found: Pattern) -> bool:
    """True unless a weight would be read, element by element, in the last of three passes."""
    weights = [n for n in part.inputs if set(part.axes(n)) & set(found.reduced)]
    weights = [n for n in weights if not set(part.axes(n)) & set(found.kept)]
    return not weights or nests(part.facts, found.reduced) <= SHIFTED_PASSES


def _cuda_inner(
    part: Part, target: Target, found: Pattern, alignment: dict[str, int]
) -> tuple[HeuristicParams, tuple[Transform, ...]]:
    rows, columns = size_of(part, found.kept), found.chunk or size_of(part, found.reduced)
    if found.has_order:
        row = row_of(size_of(part, found.reduced), target, found.chunk)
        block = max(128 // row.threads, 1)
        return _inner_with(
            part, found, alignment, (row.threads, block), cluster=row.cluster,
            width=row.width,
        )
    x = next(threads for longest, threads in ROW_THREADS if columns <= longest)
    block = 256 if columns > 16384 else 128
    while rows < target.sm_count and x < 1024 and x * 32 < columns:
        x *= 2  # few rows: the only parallelism left is along the row
    return _inner_with(part, found, alignment, (x, max(block // x, 1)))


def _inner_with(
    part: Part,
    found: Pattern,
    alignment: dict[str, int],
    threads: tuple[int, int],
    *,
    cluster: int = 1,
    width: int = 0,
) -> tuple[HeuristicParams, tuple[Transform, ...]]:
    """[K, R] -> [K.o@bx, K.i@ty, R.o.o, R.o.i@tx, R.i@vectorize]

    With a cluster: [K@bx, R.o.o, R.o.i.o@cluster, R.o.i.i@tx, R.i@vectorize]
    """
    domain = reference(part, found.kept, found.reduced)
    columns, chunk = size_of(part, found.reduced), found.chunk

    def build(width: int) -> tuple[Transform, ...] | None:
        divides = columns % width == 0 and chunk % width == 0
        shift = row_shift(part, found.reduced, width) if found.shifted and not divides else None
        if not divides and shift is None:
            return None
        s = Transforms(domain)
        if found.kept:
            block, row = s.split(s.merge(found.kept), threads[1])
            s.parallelize(block, ParallelType.BIDX)
            s.parallelize(row, ParallelType.TIDY)
        vectors, lane = s.split(s.merge(found.reduced), width, shift)
        _, vectors = _runs(s, found, vectors, chunk // width)
        _, thread = s.split(vectors, threads[0] * cluster)
        if cluster > 1:
            rank, thread = s.split(thread, threads[0])
            s.parallelize(rank, ParallelType.CLUSTER)
        s.parallelize(thread, ParallelType.TIDX)
        s.parallelize(lane, ParallelType.VECTORIZE)
        return tuple(s.made)

    width = width or best_width(part, domain, build, alignment)
    y = threads[1] if found.kept else 1
    return HeuristicParams("", width, (threads[0], y), cluster=cluster), build(width) or ()


def _runs(s: Transforms, found: Pattern, row: str, chunk: int) -> tuple[tuple[str, ...], str]:
    """The loop over runs of the reduced axes, if results are partial, and what one block walks.

    [K, R] -> [K, R.o@by, R.i]
    """
    if not chunk:
        return (), row
    runs, row = s.split(row, chunk)
    s.parallelize(runs, ParallelType.BIDY if found.kept else ParallelType.BIDX)
    return (runs,), row


def _cuda_outer(
    part: Part, target: Target, found: Pattern, alignment: dict[str, int]
) -> tuple[HeuristicParams, tuple[Transform, ...]]:
    domain = reference(part, found.kept, found.reduced)
    columns, all_rows = size_of(part, found.kept), size_of(part, found.reduced)
    rows = found.chunk or all_rows
    x = 32
    while x > 8 and x * 4 > columns:
        x //= 2  # few columns: several rows share a warp
    y = 256 // x
    while x * y < 1024 and y * 4 < rows:
        y *= 2
    if found.chunk and found.has_order:
        y = rows_of_block(columns, target)
        x = 128 // y

    def build(width: int) -> tuple[Transform, ...] | None:
        # Narrow loads where wide ones would leave most SMs without a block.
        blocks = -(-columns // (width * x)) * -(-all_rows // rows)
        if columns % width or (width > 1 and blocks < target.sm_count // 2):
            return None
        s = Transforms(domain)
        outer, lane = s.split(s.merge(found.kept), width)
        block, thread = s.split(outer, x)
        runs, row = _runs(s, found, s.merge(found.reduced), found.chunk)
        step, row = s.split(row, y)
        s.reorder(block, *runs, thread, step, row, lane)
        s.parallelize(block, ParallelType.BIDX)
        s.parallelize(thread, ParallelType.TIDX)
        s.parallelize(row, ParallelType.TIDY)
        s.parallelize(lane, ParallelType.VECTORIZE)
        return tuple(s.made)

    width = best_width(part, domain, build, alignment)
    return HeuristicParams("", width, (x, y), inner=False), build(width) or ()


def _cpu(
    part: Part, target: Target, found: Pattern, alignment: dict[str, int]
) -> tuple[HeuristicParams, tuple[Transform, ...]]:
    s = Transforms(reference(part, found.kept, found.reduced))
    groups = collapse(part, (*found.kept, *found.reduced))
    kept = [s.merge(g) for g in _cut(groups, found.kept) if g]
    reduced = [s.merge(g) for g in _cut(groups, found.reduced) if g]
    runs: tuple[str, ...] = ()
    if found.chunk:
        runs, row = _runs(s, found, s.merge(tuple(reduced)), found.chunk)
        reduced = [row]
    if found.inner:
        lane = reduced.pop()
    else:
        columns, lane = s.split(kept.pop(), CPU_COLUMNS)
        kept.append(columns)
        s.reorder(*kept, *runs, *reduced, lane)
    if kept:
        s.parallelize(s.merge(tuple(kept)), ParallelType.BIDX)
    if reduced:
        s.merge(tuple(reduced))
    s.parallelize(lane, ParallelType.VECTORIZE)
    return HeuristicParams("", s.extent(lane), inner=found.inner), tuple(s.made)


def _cut(groups: tuple[tuple[str, ...], ...], side: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The groups restricted to one side; a group never joins kept with reduced axes."""
    return [tuple(name for name in group if name in side) for group in groups]
