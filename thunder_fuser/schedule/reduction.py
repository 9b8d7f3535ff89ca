# SPDX-License-Identifier: Apache-2.0
"""Schedulers of reductions and scans of one pattern, with kept axes K and reduced axes R.

inner (R is fastest in memory; a row of threads walks R):
      CUDA [K.o@blockIdx.x, K.i@threadIdx.y, R.o.o, R.o.i@threadIdx.x, R.i@vectorize]
           long rows also over the blocks of a cluster: R.o.i -> R.o.i.o@cluster, R.o.i.i
      CPU  [K@blockIdx.x, R outer, R inner@vectorize]
outer (K is fastest; each thread owns columns, threadIdx.y strides over R):
      CUDA [K.o.o@blockIdx.x, K.o.i@threadIdx.x, R.o, R.i@threadIdx.y, K.i@vectorize]
      CPU  [K.o@blockIdx.x, R, K.i@vectorize]

With one nest this is the `reduction` scheduler; with several (softmax, norms) it is `persistent`.

In `scan`, R is the scanned axis. Its inner kernels have the same loops. In its outer kernels each
thread, or each simd lane, scans a column of its own:

      CUDA [K.o.o@blockIdx.x, K.o.i@threadIdx.x, R, K.i@vectorize]

A scan produces its elements in the order of the loop, so its readers in the same kernel must read
them at the same place: x / cumsum(x) is one kernel, a reshape of cumsum(x) is another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

from thunder_fuser.analysis.part import Part
from thunder_fuser.base.threads import cached_property
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.schedule.axes import (
    LONGEST_SHARED,
    Build,
    collapse,
    even_lanes,
    order_in_memory,
    row_shift,
    shared_last,
    size_of,
    summed_order,
)
from thunder_fuser.schedule.persistence import place_persistent
from thunder_fuser.schedule.pointwise import have_one_space
from thunder_fuser.schedule.row_shape import row_of, width_of
from thunder_fuser.schedule.scheduled import HeuristicParams, ScheduledFusion, Transforms
from thunder_fuser.schedule.scheduler import Decisions, KernelMatch, NoMatch
from thunder_fuser.target import Target

CPU_COLUMNS = 256
# The most passes over odd rows with a weight for which rows are shifted (Split.shift). With 4095
# columns of bf16: RMS norm, two passes, 84 -> 94 % of clone; layer norm, three, 76 -> 66 % (H200).
SHIFTED_PASSES = 2
# Threads of a row, by what it moves: ADR 58. More threads would repeat what each computes of the
# whole row, and fewer have too few loads under way. Where rows are fewer than SMs, half of both.
MOVED_BYTES, VECTORS = 64, 2  # of a thread, at least
NARROW_MOVED, SHIFTED_MOVED = 2, 4  # times as much, for narrower results; for shifted rows
MOST_THREADS, MOST_FEW_ROWS = 256, 512
IDLE = 256  # threads for each SM: with fewer, rows of whole warps have one for each vector (ADR 63)
NEIGHBOURS = 32  # elements that neighbouring threads load at once: whole sectors
BLOCK_THREADS = 128  # at least, in blocks of powers of two
# Blocks begin one after another, 1.2 ns apart on an H200, so each of many moves this much.
BLOCK_BYTES, MANY_BLOCKS = 6144, 16  # MANY_BLOCKS: for each SM
SCANNED_CHUNK = 1024  # elements that a CPU scans at once: an array that fits its first-level cache
COLUMN_THREADS, SCANNED_ROW_THREADS = 64, 256  # of a block that scans columns; of a row, at most
# Of a product of few rows: the elements of a thread, of one row all matrices' (ADR 65); the most
# threads of a row; the results for each SM up to which twice as many pay. Microseconds, H200, bf16:
#   one row    [512, 2048] 3.6 -> 2.4    [8192, 2048] 10.2 -> 9.8    [14336, 4096] 28.5 -> 27.8
#   two rows   [2048, 2048] 4.6 -> 4.1   [2048, 8192] 11.6 -> 10.7   [4864, 896] 5.7 -> 4.7
PRODUCT_SHARE, PRODUCT_THREADS, FEW_RESULTS = 32, (512, 64), 16
LEAST_ACROSS = 8  # threads across the columns of a block: whole sectors of float32
COLUMNS_PER_SM = 64  # with fewer, several threads share a row: one for each would leave SMs idle


@dataclass(frozen=True, kw_only=True)
class Rows(KernelMatch):
    """A part whose reductions have one pattern.

    chunk: if not 0, each block reduces a run of so many elements, and the results are partial.
    plane: the elements of the innermost reduced axes, with no kept axis between them in memory.
    """

    takes_no = (OpKind.EXTERNAL, OpKind.SCAN)

    inner: bool
    chunk: int = 0
    plane: int = 0

    @classmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> Rows | NoMatch:
        if not part.reductions:
            return NoMatch(cls.name, "there is no reduction")
        patterns, chunked = set(part.patterns.values()), part.chunked
        chunks = {expr.attr("chunk") for expr in part.reductions}
        if len(patterns) > 1 or len(chunks) > 1:
            return NoMatch(cls.name, f"reductions of {max(len(patterns), len(chunks))} patterns")
        (pattern,) = patterns
        foreign = pattern.foreign(part.stored_axes.values(), chunked.axis if chunked else "")
        for name, axes in part.stored_axes.items():
            if axes in foreign:
                return NoMatch(cls.name, f"result {name} has neither the row's axes nor all axes")
        pattern = pattern.without(chunked.axis) if chunked else pattern
        order = summed_order(part, part.reductions[0], pattern.walked, options)
        kept = tuple(filter(pattern.kept.__contains__, order))
        reduced = tuple(filter(pattern.reduced.__contains__, order))
        if chunked:  # runs have an order of their own; rfactor takes that of most tensors
            reduced = chunked.reduced
        last = tuple(takewhile(pattern.reduced.__contains__, reversed(order)))
        kept = shared_last(part, kept) if last else kept
        plane, chunk = size_of(part, last), chunked.size if chunked else 0
        return cls(part, target, options, kept, reduced, inner=bool(last), chunk=chunk, plane=plane)

    @cached_property
    def passes(self) -> int:
        """The number of passes over the reduced axes that the part needs."""
        demand = self.part.demand
        full = {*demand.operands.values(), *(r for r in demand.roots if r.walks(self.reduced))}
        return 1 + max(demand.level[root] for root in full)

    @cached_property
    def matrices(self) -> int:
        """How many matrices rows are multiplied by: of the largest inputs. In a joined kernel 1."""
        sizes = [*map(self.part.bytes_of, self.part.inputs)]
        return 1 if self.beside else max(sizes.count(max(sizes, default=0)), 1)

    def unplaced(self, alignment: dict[str, int], *, shifted: bool = False) -> ScheduledFusion:
        """The schedule with nothing kept on chip. shifted: odd rows may have Split.shift."""
        if self.target.is_cpu:
            decisions = _cpu(self)
        elif self.inner:
            decisions = _cuda_inner(self, alignment, shifted)
        else:
            decisions = _cuda_outer(self, alignment)
        return self.scheduled(decisions, alignment)


@dataclass(frozen=True, kw_only=True)
class Reduction(Rows):
    """Reductions of one pattern; no value over the reduced axes reads their results."""

    name = "reduction"

    def refuse(self) -> NoMatch | None:
        if self.passes == 1:
            return None
        return NoMatch(self.name, f"needs {self.passes} passes over the data")

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        return self.unplaced(alignment)


@dataclass(frozen=True, kw_only=True)
class Persistent(Rows):
    """Reductions of one pattern; values over the reduced axes read their results."""

    name = "persistent"

    def refuse(self) -> NoMatch | None:
        if self.chunk:
            return NoMatch(self.name, "a row is reduced by several blocks")
        if self.passes == 1:
            return NoMatch(self.name, "no full-size value reads a reduction")
        return None

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        shifted = _may_shift(self)
        unplaced = self.unplaced(alignment, shifted=shifted)
        placed = place_persistent(unplaced)
        planned, wanted = unplaced.params, placed.params
        rereads = shifted and wanted.memory != "registers"  # every pass would read partial steps
        if not rereads and (wanted.threads, wanted.cluster) == (planned.threads, planned.cluster):
            return placed
        shifted = shifted and not rereads
        params, transforms = _inner_loops(
            self, alignment, wanted.threads, cluster=wanted.cluster, shifted=shifted
        )
        params = replace(params, memory=wanted.memory)
        return replace(placed, params=params, transforms=transforms)


def _may_shift(match: Rows) -> bool:
    """True if odd rows may be shifted: on a GPU, if the order of sums is free, in few passes.

    A weight is read element by element then, which costs more than it gains in three passes.
    """
    if not match.inner or match.target.is_cpu or match.has_order:
        return False
    part = match.part
    axes = [set(part.axes(name)) for name in part.inputs]
    has_weights = any(not a.isdisjoint(match.reduced) and a.isdisjoint(match.kept) for a in axes)
    return not has_weights or match.passes <= SHIFTED_PASSES


def _cuda_inner(match: Rows, alignment: dict[str, int], shifted: bool) -> Decisions:
    if match.has_order:
        row = row_of(match.reduced_size, match.target, match.chunk, plane=match.plane)
        x, cluster = row.threads[0], row.cluster
        y = _rows_of_block(match, x) if cluster == 1 else 1
        return _inner_loops(match, alignment, (x, y), cluster=cluster, width=row.width)
    columns = match.chunk or match.reduced_size
    if rows := rows_of_product(match)[0]:
        matrices = match.matrices if rows == 1 else 1
        x = 1 << (-(-columns * matrices // (PRODUCT_SHARE * rows)) - 1).bit_length()
        x *= 1 + (match.kept_size + match.beside < FEW_RESULTS * rows * match.target.sm_count)
        uneven = rows == 1 and columns % (8 * PRODUCT_THREADS[0]) > 0  # not as many for each thread
        x = min(max(x, 8), PRODUCT_THREADS[rows > 1] // (1 + uneven))
        return _inner_loops(match, alignment, (x, max(256 // matrices // x, 1)))
    width, _ = match.widest(_inner_build(match, (1, 1), 1, shifted), alignment)
    x = _threads_of_row(match, columns, width)
    threads = (x, _rows_of_block(match, x))
    return _inner_loops(match, alignment, threads, width=width, shifted=shifted)


def _threads_of_row(match: Rows, columns: int, width: int) -> int:
    """The threads that share `columns` elements of a row, in vectors of `width`.

    bf16 -> bf16, vectors of 8:     256 columns -> 16   1024 -> 64   4096 -> 256   16384 -> 256
    float32 -> float32, of 4:       256 columns -> 32   1024 -> 128  4096 -> 256
    """
    rows, vectors = match.kept_size * -(-match.reduced_size // columns), -(-columns // width)
    read, written = (_widths(match, names) for names in (match.part.inputs, match.part.outputs))
    few = rows < match.target.sm_count
    times = SHIFTED_MOVED if columns % width and not few else 1
    is_narrow = match.passes > 1 and max(written) < max(read) and not few
    moved = MOVED_BYTES * times * (NARROW_MOVED if is_narrow else 1)
    shares = (columns * max(sum(read + written), 1), moved), (vectors, VECTORS * times)
    most = min(-(-whole * (1 + few) // share) for whole, share in shares)
    least = min(vectors, NEIGHBOURS // width)
    x = max(1 << (most.bit_length() - 1), 1 << (least - 1).bit_length())
    is_idle = match.passes > 1 and not few and rows * x <= IDLE * match.target.sm_count
    x = vectors if is_idle and vectors % 32 == 0 and 2 * x < vectors <= MOST_THREADS else x
    return min(x, MOST_FEW_ROWS if few else MOST_THREADS)


def _rows_of_block(match: Rows, x: int) -> int:
    """The rows that a block with x threads for each takes side by side."""
    part, columns = match.part, match.chunk or match.reduced_size
    row_bytes = columns * max(sum(_widths(match, (*part.inputs, *part.outputs))), 1)
    y, most = max(BLOCK_THREADS // x, 1), match.kept_size // (MANY_BLOCKS * match.target.sm_count)
    while y * row_bytes < BLOCK_BYTES and 2 * y <= most and 2 * y * x <= MOST_THREADS:
        y *= 2
    return y


def _widths(match: Rows, names: Iterable[str]) -> list[int]:
    """The bytes of an element of those that have all elements of the rows, or 0."""
    part, axes = match.part, {*match.kept, *match.reduced}
    return [part.tensors[n].dtype.bytes if axes <= set(part.axes(n)) else 0 for n in names] or [0]


def rows_of_product(match: Rows) -> tuple[int, frozenset[str]]:
    """The rows of a product of few rows, x[m, k] * w[n, k] summed over k, and the inputs that may
    be x; (0, none) for other sums."""
    part, kept, reduced = match.part, set(match.kept), set(match.reduced)
    axes = {name: set(part.axes(name)) for name in part.inputs}
    for name in (n for n in part.inputs if part.tensors[n].dtype.bytes == 1):  # in groups, maybe
        axes[name] |= {*order_in_memory(part, name, kept | reduced)}
    read = [name for name in part.inputs if reduced <= axes[name]]
    if match.passes > 1 or match.chunk or not read:
        return 0, frozenset()
    largest = max(read, key=part.bytes_of)
    rows = size_of(part, kept - axes[largest])
    others = (n for n in part.inputs if n != largest and not kept <= axes[n])
    elements = rows * match.reduced_size  # of the rows, which may be reshaped to their axes
    names = frozenset(n for n in others if size_of(part, part.axes(n)) == elements)
    return (rows, names) if names and rows <= LONGEST_SHARED else (0, frozenset())


def _inner_loops(
    match: Rows, alignment: dict[str, int], threads: tuple[int, int], *, cluster: int = 1,
    width: int = 0, shifted: bool = False,
) -> Decisions:  # fmt: skip
    """[K, R] -> [K.o@bx, K.i@ty, R.o.o, R.o.i@tx, R.i@vectorize]

    With a cluster: [K@bx, R.o.o, R.o.i.o@cluster, R.o.i.i@tx, R.i@vectorize]
    """
    x, y = threads[0], threads[1] if match.kept else 1
    build = _inner_build(match, (x, y), cluster, shifted)
    width, transforms = match.widest(build, alignment, width)
    return HeuristicParams(match.name, width, (x, y), cluster=cluster), transforms


def _inner_build(match: Rows, threads: tuple[int, int], cluster: int, shifted: bool) -> Build:
    """What makes the transforms of `_inner_loops` for a width."""
    chunk, (x, y) = match.chunk, threads

    def build(s: Transforms, width: int) -> bool:
        divides = match.reduced_size % width == 0 and chunk % width == 0
        shift = row_shift(match.part, match.reduced, width) if shifted and not divides else None
        if not divides and shift is None:
            return False
        if match.kept:
            block, row = s.split(s.merge(match.kept), y)
            s.bind(BIDX=block, TIDY=row)
        vectors, lane = s.split(s.merge(match.reduced), width, shift)
        _, vectors = _runs(s, match, vectors, chunk // width)
        s.bind(TIDX=s.deal(vectors, x, cluster), VECTORIZE=lane)
        return True

    return build


def _runs(s: Transforms, match: Rows, row: str, chunk: int) -> tuple[tuple[str, ...], str]:
    """The loop over runs, if results are partial, and the reduced axis that one block walks.

    [K, R] -> [K, R.o@by, R.i]
    """
    if not chunk:
        return (), row
    runs, row = s.split(row, chunk)
    s.bind(**{"BIDY" if match.kept else "BIDX": runs})
    return (runs,), row


def _cuda_outer(match: Rows, alignment: dict[str, int]) -> Decisions:
    columns, rows = match.kept_size, match.chunk or match.reduced_size
    blocks = match.target.sm_count * rows // max(match.reduced_size, 1)  # of a run, for all SMs
    x = 32
    while x > LEAST_ACROSS and (x * 4 > columns or columns < x * blocks):
        x //= 2  # few columns: several rows share a warp, and more blocks read them
    if match.chunk and match.has_order:
        y = row_of(columns, match.target).threads[1]
        return _outer_loops(match, alignment, (128 // y, y))
    decisions = _outer_loops(match, alignment, (x, _rows_at_once(x, rows)))
    vectors = -(-columns // decisions[0].vectorize)
    if match.has_order or vectors > x // 2 or x == LEAST_ACROSS:
        return decisions
    x = max(1 << (vectors - 1).bit_length(), LEAST_ACROSS)  # no vectors for more threads
    return _outer_loops(match, alignment, (x, _rows_at_once(x, rows)))


def _rows_at_once(x: int, rows: int) -> int:
    """The rows that a block with x threads across reads at once."""
    y = 256 // x
    while x * y < 1024 and y * 4 < rows:
        y *= 2
    return y


def _outer_loops(match: Rows, alignment: dict[str, int], threads: tuple[int, int]) -> Decisions:
    """[K, R] -> [K.o.o@bx, K.o.i@tx, R.o, R.i@ty, K.i@vectorize]"""
    x, y = threads
    columns, rows = match.kept_size, match.chunk or match.reduced_size
    runs = -(-match.reduced_size // rows)

    def build(s: Transforms, width: int) -> bool:
        # Wide loads that would leave most SMs without a block are refused.
        blocks = -(-columns // (width * x)) * runs
        is_idle = width > 1 and blocks < match.target.sm_count // 2
        if columns % width or is_idle:
            return False
        outer, lane = s.split(s.merge(match.kept), width)
        block, thread = s.split(outer, x)
        run, row = _runs(s, match, s.merge(match.reduced), match.chunk)
        step, row = s.split(row, y)
        s.reorder(block, *run, thread, step, row, lane)
        s.bind(BIDX=block, TIDX=thread, TIDY=row, VECTORIZE=lane)
        return True

    width, transforms = match.widest(build, alignment)
    return HeuristicParams(match.name, width, (x, y), inner=False), transforms


def _cpu(match: Rows) -> Decisions:
    """[K@bx, R, R@vectorize]; if kept axes are fastest, [K.o@bx, R, K.i@vectorize] with K.i at most
    CPU_COLUMNS.

    Few columns take as many lanes: [4, 8, R] -> [4@bx, R, 8@vectorize], not 256.
    """
    groups = collapse(match.part, (*match.kept, *match.reduced))

    def build(s: Transforms, run: int) -> bool:
        kept, reduced = (
            [s.merge(cut) for group in groups if (cut := tuple(a for a in group if a in side))]
            for side in (match.kept, match.reduced)
        )
        if run and (match.inner or s.extent(kept[-1]) % run):
            return False
        runs: tuple[str, ...] = ()
        if match.chunk:
            runs, row = _runs(s, match, s.merge(tuple(reduced)), match.chunk)
            reduced = [row]
        if match.inner:
            lane = reduced.pop()
        else:
            few = 1 << (s.extent(kept[-1]) - 1).bit_length()  # similar sizes share a kernel
            chunks, lane = s.split(kept.pop(), run or min(CPU_COLUMNS, few))
            kept.append(chunks)
            s.reorder(*kept, *runs, *reduced, lane)
        if kept:
            s.bind(BIDX=s.merge(tuple(kept)))
        if reduced:
            s.merge(tuple(reduced))
        s.bind(VECTORIZE=lane)
        return True

    s = even_lanes(match.part, match.domain, build)
    params = HeuristicParams(match.name, s.lanes.extent.value, inner=match.inner)
    return params, tuple(s.applied)


# ---- scans


@dataclass(frozen=True, kw_only=True)
class Scan(Rows):
    """Scans along one axis and pointwise work, all over the same axes.

    reduced: the scanned axis; inner: True if it is the fastest in memory.
    """

    name = "scan"
    takes_no = (OpKind.REDUCTION, OpKind.EXTERNAL)

    @classmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> Scan | NoMatch:
        if not part.scans:
            return NoMatch(cls.name, "there is no scan")
        scanned, *others = sorted({_axis(part, expr.outputs[0]) for expr in part.scans})
        if others:
            listed = ", ".join((scanned, *others))
            return NoMatch(cls.name, f"scans along {len(others) + 1} axes: {listed}")
        names = [*part.outputs, *(expr.outputs[0] for expr in part.scans)]
        if not have_one_space(frozenset(part.axes(name)) for name in names):
            listed = ", ".join(f"{n}[{', '.join(part.axes(n))}]" for n in names)
            return NoMatch(cls.name, f"values over different axes: {listed}")
        first = part.scans[0]
        order = summed_order(part, first, part.axes(first.outputs[0]), options)
        kept, inner = tuple(a for a in order if a != scanned), order[-1] == scanned
        return cls(part, target, options, kept, (scanned,), inner=inner)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        few = self.kept_size < COLUMNS_PER_SM * self.target.sm_count
        if self.target.is_cpu:
            decisions = _cpu_scan_inner(self) if self.inner else _cpu_scan_outer(self)
        elif self.inner or (few and self.reduced_size > COLUMNS_PER_SM):
            decisions = _cuda_scan_inner(self, alignment)
        else:
            decisions = _cuda_scan_outer(self, alignment)
        return self.scheduled(decisions, alignment)


def _axis(part: Part, name: str) -> str:
    """The class of the scanned axis. Presegment passes have removed scans over size 1."""
    axes, dim = part.tensors[name].domain.no_reductions, part.producer[name].integer("dim")
    return part.domain_map.axis(axes[dim])


def _cuda_scan_inner(match: Scan, alignment: dict[str, int]) -> Decisions:
    length, x = match.reduced_size, 8
    while x < SCANNED_ROW_THREADS and x * 4 < length:
        x *= 2
    width = width_of(length) if match.has_order else 0
    return _inner_loops(match, alignment, (x, max(128 // x, 1)), width=width)


def _cuda_scan_outer(match: Scan, alignment: dict[str, int]) -> Decisions:
    """[K, R] -> [K.o.o@bx, K.o.i@tx, R, K.i@vectorize]"""
    columns, wanted = match.kept_size, COLUMNS_PER_SM * match.target.sm_count

    def build(s: Transforms, width: int) -> bool:
        # Wide loads that would leave SMs without work are refused.
        if columns % width or (width > 1 and columns < width * wanted):
            return False
        outer, lane = s.split(s.merge(match.kept), width)
        block, thread = s.split(outer, COLUMN_THREADS)
        s.reorder(block, thread, *match.reduced, lane)
        s.bind(BIDX=block, TIDX=thread, VECTORIZE=lane)
        return True

    width, transforms = match.widest(build, alignment)
    return HeuristicParams(match.name, width, (COLUMN_THREADS, 1), inner=False), transforms


def _cpu_scan_inner(match: Scan) -> Decisions:
    """[K@bx, R.o, R.i@vectorize]"""
    s = Transforms(match.domain)
    if match.kept:
        s.bind(BIDX=s.merge(match.kept))
    (lane,) = match.reduced
    if s.extent(lane) > SCANNED_CHUNK:
        _, lane = s.split(lane, SCANNED_CHUNK)
    s.bind(VECTORIZE=lane)
    return HeuristicParams(match.name, s.extent(lane)), tuple(s.applied)


def _cpu_scan_outer(match: Scan) -> Decisions:
    """[K.o@bx, R, K.i@vectorize]"""
    s = Transforms(match.domain)
    *slower, last = match.kept
    chunks, lane = s.split(last, CPU_COLUMNS)
    s.reorder(*slower, chunks, *match.reduced, lane)
    s.bind(BIDX=s.merge((*slower, chunks)), VECTORIZE=lane)
    return HeuristicParams(match.name, s.extent(lane), inner=False), tuple(s.applied)
