# SPDX-License-Identifier: Apache-2.0
"""Reductions in two steps: partial results, then the reduction of these.

    T1 = sum(T0: f32[8, 4, 16], dims=[0, 2], keepdim=True)
->  T2 = sum(T0, dims=[2]); T3 = sum(T2, dims=[0])          the two steps
    T1 = broadcast(T3, is_broadcast_dim=[True, False, True])    the axes that keepdim asks for

Three passes do so: `two_stage_reductions` if reductions over different axes can share the first
step, `short_runs` if few reduced elements follow one another in memory, `rfactor` if a reduction in
one step would leave most of a device idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product, takewhile
from math import prod

from thunder_fuser.analysis.domain_map import Axes, Pattern
from thunder_fuser.analysis.part import Part, Parts
from thunder_fuser.base.threads import cached_property
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.presegment.one_pass_variance import joins_its_mean
from thunder_fuser.presegment.rewrite import RewriteRule
from thunder_fuser.presegment.unify_memory_order import order_of_sum
from thunder_fuser.schedule import nested
from thunder_fuser.schedule.axes import order_in_memory, size_of
from thunder_fuser.schedule.row_shape import SUMS, RowShape, has_order, row_of, row_shape
from thunder_fuser.target import Target

MIN_CHUNK = 64  # elements of a run: the partial results of shorter runs would be too many bytes
# Rows of four steps of a block that reads 128 at once. Their loads are under way together; steps
# behind the last four wait one by one. A million rows of 64 bf16: 35.0 -> 34.5 us (H200).
FOUR_STEPS = 512
MIN_ELEMENTS = 1 << 16  # a smaller reduction ends before a second kernel would start
MOST_AT_ONCE = 1024  # rows of a column: with 2048 one kernel takes longer than two (ADR 64)
MAX_ON_CHIP = 1 << 18  # elements: every reduction of a longer row reads it from memory again anyway
COLUMN_BYTES = 512  # of a row, for one block of an outer reduction: 32 vectors
INNER_BLOCKS, OUTER_BLOCKS = 8, 2  # blocks that an SM holds: of 256 and of 1024 threads
MIN_RUN_BYTES = 28  # of one column, so that the sums are a small part of the bytes
CPU_UNITS = 16  # rows, or blocks of columns, that are enough work for a CPU's threads
# Least rows of a run under `repeatable`. The sums of short runs are more bytes, but stay in the
# second-level cache. With longer runs an SM would have fewer blocks, and wait longer for each.
MIN_RUN = 8
CPU_RUNS = 64  # runs on a CPU, however many threads it has
MIN_ROW_BYTES = 48  # of shared rows, so that their sums are a small part of the bytes
# Of a row in pieces that do not follow one another: the bytes from which pieces are no waste, and
# how much more than its bytes each costs. One kernel for a group norm of channels-last images took
# so many times as long as a clone: pieces of 16 bytes 3.9, 20 4.6, 40 2.4, 64 1.7 (H200), and 1.3
# of 32 bytes, which are whole sectors (H100).
LONG_PIECE, SECTOR, PIECE_PRICE = 64, 32, 48
MAX_CACHED = 50 << 20  # bytes of the images, in and out, that the second-level cache holds
SUMS_PRICE = 128  # of a run of columns, for its sums, in rows: an estimate
MOST_WAVES = 4  # of blocks, for runs of columns
LEAST_GAIN = 0.25  # of the price of one kernel: prices are no more exact than that

# The dims of both steps; those of the second are axes of the partial results.
TwoSteps = tuple[tuple[int, ...], tuple[int, ...]]


# ---- which axes are walked again


class AxisReuse:
    """Which reductions reduce axes that other expressions walk before or after them.

        T1 = sum(T0[i0, i1], [1]);  T2 = sub(T0, T1)        T1's row is needed again after it

    patterns: the number of reductions of each pattern; normalised: the patterns whose rows are
    reduced twice, or needed again after a reduction.
    """

    def __init__(self, whole: Part) -> None:
        self.patterns, self.normalised = Counter(whole.patterns.values()), set[Pattern]()
        self._later: dict[str, Axes] = {}  # the axes of all values that depend on a value
        for expr in reversed(whole.exprs):
            names = expr.outputs
            after = Axes().union(
                *(whole.axes(n) for n in names), *(self._later.get(n, ()) for n in names)
            )
            for name in names_of(expr):
                self._later[name] = self._later.get(name, Axes()) | after
        reduced: dict[str, Axes] = {}  # the axes of all reductions that a value depends on
        for expr in whole.exprs:
            before = Axes().union(*(reduced.get(n, ()) for n in names_of(expr)))
            for name in expr.outputs:
                axes = whole.domain_map.reduced(whole.tensors[name])
                reduced[name] = before.union(axes)
                is_again = self.is_needed_again(name, axes) or not before.isdisjoint(axes)
                if name in whole.patterns and is_again:
                    self.normalised.add(whole.patterns[name])

    def is_needed_again(self, name: str, reduced: Iterable[str]) -> bool:
        """True if values that depend on this reduction walk the reduced axes again."""
        return not self._later.get(name, Axes()).isdisjoint(reduced)


# ---- sums that share the sums of rows


def two_stage_reductions(fusion: Fusion, target: Target, options: CompileOptions) -> RewriteRule:
    """Sums over different axes of the same data both start with sums of the rows that they share.

        T1 = sum(T0: f32[n, g, c, hw], dims=[0, 3])      a weight's gradient, of a group norm
        T2 = sum(T0, dims=[2, 3])                        of each group, which dx waits for
    ->  T3 = sum(T0, dims=[3]);  T1 = sum(T3, dims=[0])  T3: f32[n, g, c]
        T4 = sum(T0, dims=[3]);  T2 = sum(T4, dims=[2])

    No kernel can compute T1 and T2 as they were, so all data would be read for each. A kernel that
    reduces rows and then groups (schedule/nested.py) reads the data once. It also writes partial
    results of the weight, one for each row, and a second kernel adds these. The pass requires that
    a group fits on chip.

    Under `repeatable` no sum may depend on its surroundings, so the trace makes this choice
    (trace/rewrites/rfactor.py).
    """
    dims = {expr.attr("dims") for expr in fusion.exprs if expr.row.kind is OpKind.REDUCTION}
    if len(dims) < 2 or not any(isinstance(axes, tuple) and len(axes) > 1 for axes in dims):
        return {}  # no reduction is over columns and other axes
    whole = Parts(fusion).of(fusion.exprs)
    patterns = {expr: whole.patterns[expr.outputs[0]] for expr in whole.reductions}
    if len(set(patterns.values())) < 2 or has_order(whole, options):
        return {}
    columns = _columns(whole, patterns, target, options)
    steps = {record: _split_dims(whole, record, axes) for record, axes in columns.items()}
    return {r: _in_two_steps(whole, r, dims) for r, dims in steps.items()}


def _columns(
    whole: Part, patterns: dict[OpRecord, Pattern], target: Target, options: CompileOptions
) -> dict[OpRecord, Axes]:
    """The reductions to be made in two steps, with the axes that the first step reduces."""
    reuse, alike = AxisReuse(whole), dict[Axes, dict[Pattern, None]]()
    plain = {r: p for r, p in patterns.items() if r.attr("chunk") is None}
    for pattern in plain.values():
        alike.setdefault(pattern.walked, {})[pattern] = None
    # If all elements wait for a reduction, it stays as it is, and the others share its kernel.
    again = {p for r, p in plain.items() if reuse.is_needed_again(r.outputs[0], p.reduced)}
    columns: dict[Pattern, Axes] = {}
    for over, group in (pair for same in alike.values() for pair in product(same, same)):
        shared = over.reduced & group.reduced
        if over in again or not shared or over.reduced <= group.reduced:
            continue
        if _is_worth_it(whole, group, shared, target, options):
            columns[over] = shared
            if group.reduced != shared:
                columns[group] = shared
    return {record: columns[pattern] for record, pattern in plain.items() if pattern in columns}


def _is_worth_it(
    whole: Part, pattern: Pattern, shared: Axes, target: Target, options: CompileOptions
) -> bool:
    """True if rows of the shared axes are contiguous and long enough, and a group fits on chip."""
    columns = size_of(whole, shared)
    if not nested.are_innermost(whole, shared) or columns * _itemsize(whole) < MIN_ROW_BYTES:
        return False
    if pattern.reduced == shared:
        return True
    rows, groups = size_of(whole, pattern.reduced - shared), size_of(whole, pattern.kept)
    read = nested.bytes_read(whole, shared)
    return bool(pattern.kept) and nested.fits(
        groups, rows, columns, read, target=target, options=options
    )


def _split_dims(whole: Part, record: OpRecord, columns: Axes) -> TwoSteps:
    """The dims of the two steps: columns, then the rest as dims of the first step's result."""
    axes = whole.tensors[names_of(record)[0]].domain.no_reductions
    first = tuple(
        at for at in record.ints("dims")
        if not axes[at].is_broadcast and whole.domain_map.axis(axes[at]) in columns
    )
    others = (at for at in record.ints("dims") if at not in first)
    return first, tuple(at - sum(dim < at for dim in first) for at in others)


# ---- sums of short runs


def short_runs(fusion: Fusion, target: Target, options: CompileOptions) -> RewriteRule:
    """Sums over outer axes and a few inner elements begin with sums of the columns.

        T1 = sum(T0: bf16[n, hw, g, c], dims=[1, 3])     a group norm, channels last; c is 8
    ->  T2 = sum(T0, dims=[1], chunk=k)    f32[runs, n, g, c]: g and c follow one another in memory
        T1 = sum(T2, dims=[0, 3])

    One kernel with a block for each n and g reads pieces of c elements. Each piece is a line of
    memory for a warp, and part of a sector. Sums of columns read whole lines, in wide vectors, but
    x is not on chip when its mean is known: it is read again. So the pass compares the bytes:

        (X + Y) * (1 + 48 / 16) = 8 * X      ->  2 * X + Y = 3 * X,  for images Y of X bytes

    A variance is in the first read if one_pass_variance.py takes it, else it is one more. Under
    `repeatable` all stays as it is: which reduction is first is not known from its own sizes.
    """
    whole = Parts(fusion).of(fusion.exprs)
    chunked = any(record.attr("chunk") is not None for record in whole.reductions)
    if target.is_cpu or chunked or has_order(whole, options):
        return {}
    sums = (InPieces(fusion, whole, record, target, options) for record in whole.reductions)
    return {rows.record: list(rows.columns_first()) for rows in sums if rows.are_dear}


@dataclass(frozen=True)
class InPieces:
    """A reduction whose rows lie in pieces in memory: over inner axes, and over outer ones that
    kept axes part from these."""

    fusion: Fusion
    whole: Part
    record: OpRecord
    target: Target
    options: CompileOptions

    @cached_property
    def pattern(self) -> Pattern:
        return self.whole.patterns[self.record.outputs[0]]

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The axes that it walks, slowest first."""
        return order_of_sum(self.whole, self.record, self.options)

    @cached_property
    def outer(self) -> tuple[str, ...]:
        """The reduced axes outside of a kept one; none if the innermost axis is kept."""
        inner = set(takewhile(self.pattern.reduced.__contains__, reversed(self.order)))
        reduced = (axis for axis in self.order if axis in self.pattern.reduced - inner)
        return tuple(reduced) if inner and self.pattern.kept else ()

    @property
    def is_alone(self) -> bool:
        """True if no reduction of other axes could read the same data in the same kernel."""
        walked = self.pattern.walked
        return all(p == self.pattern or p.walked != walked for p in self.whole.patterns.values())

    @property
    def are_dear(self) -> bool:
        """True if the pieces are so short that reading all data again costs less."""
        if not self.outer or not self.is_alone:
            return False
        read, written = map(self._full_size, (self.whole.inputs, self.whole.outputs))
        sizes = (max(self.whole.tensors[name].dtype.bytes, 1) for name in read)
        inner = size_of(self.whole, self.pattern.reduced.difference(self.outer))
        piece = inner * min(sizes, default=LONG_PIECE)
        loaded, stored = (sum(map(self.whole.bytes_of, names)) for names in (read, written))
        whole = piece >= LONG_PIECE or piece % SECTOR == 0
        if whole or loaded + stored <= MAX_CACHED:
            return False
        level = self._levels()
        levels = max(level.values())
        reads = max([levels, *(level[name] + 1 for name in written if level[name])])
        moved = loaded * reads + stored + 2 * levels * self.target.launch_bytes
        return moved < (loaded + stored) * (1 + PIECE_PRICE / piece) * (1 - LEAST_GAIN)

    def _full_size(self, names: Iterable[str]) -> list[str]:
        """Those of the tensors that have all axes."""
        wanted = self.pattern.walked
        return [n for n in names if set(order_in_memory(self.whole, n, wanted)) == wanted]

    def _levels(self) -> dict[str, int]:
        """{value: how many passes over all data must end before it is known}"""
        level: dict[str, int] = {}
        for expr in self.whole.exprs:
            known = max((level.get(name, 0) for name in names_of(expr)), default=0)
            waits = self.whole.patterns.get(expr.outputs[0]) == self.pattern
            if waits and known:
                context = self.whole, expr, self.target, self.options
                waits = not joins_its_mean(self.fusion, *context)
            level.update(dict.fromkeys(expr.outputs, known + waits))
        return level

    def columns_first(self) -> Iterator[OpRecord]:
        """Both steps: sums of columns in runs, so that all SMs have blocks, then the rest."""
        first, others = _split_dims(self.whole, self.record, frozenset(self.outer))
        steps = first, (0, *(at + 1 for at in others))
        return _in_runs(self.whole, self.record, self.order, self._chunk(), steps)

    def _chunk(self) -> int:
        """The rows of a run, for the least estimated time of all blocks.

        64 * 56 * 56 rows of 512 bytes, on 132 SMs: 64 * 2 runs of 1568 rows, one block each
        """
        extents = [self.whole.extents[axis].value for axis in self.outer]
        rows, last = prod(extents), self.order.index(self.outer[-1])
        row = size_of(self.whole, self.order[last + 1 :]) * _itemsize(self.whole)
        others = size_of(self.whole, set(self.order[:last]).difference(self.outer))
        blocks = -(-others * row // COLUMN_BYTES)  # for each run
        sm_count = self.target.sm_count

        def price(runs: int) -> int:
            return -(-blocks * runs // sm_count) * (-(-rows // runs) + SUMS_PRICE)

        runs = min(range(1, max(MOST_WAVES * sm_count // blocks, 1) + 1), key=price)
        return min(_whole_rows(-(-rows // runs), extents), rows)


# ---- long sums with few results


def rfactor(fusion: Fusion, target: Target, options: CompileOptions) -> RewriteRule:
    """Makes long reductions with few results in two steps, so that the whole device has work.

        T1 = sum(T0: f32[i0{65536}, i1{1024}], dims=[0])
    ->  T2 = sum(T0, dims=[0], chunk=1024)   f32[i2{64}, i1{1024}], partial results, one block each
        T1 = sum(T2, dims=[0])

    A run is contiguous in memory: of a sum over axes in another order the operand is permuted.

        T1 = sum(T0: f32[n, c, h, w], dims=[0, 1, 2, 3])        T0 is channels last
    ->  T3 = permute(T0, dims=[0, 2, 3, 1]); T2 = sum(T3, dims=[0, 1, 2, 3], chunk=16384); ...

    No atomics: the order of additions is fixed, and does not depend on how many threads there are.
    Shorter runs of additions also round less.
    """
    whole = Parts(fusion).of(fusion.exprs)
    reuse = AxisReuse(whole)
    chunks = {record: _chunk(whole, reuse, record, target, options) for record in whole.reductions}
    return {
        record: _in_runs(
            whole, record, order_of_sum(whole, record, options), chunk, (record.ints("dims"), (0,))
        )
        for record, chunk in chunks.items() if chunk
    }  # fmt: skip


def _chunk(
    whole: Part, reuse: AxisReuse, record: OpRecord, target: Target, options: CompileOptions
) -> int:
    """The elements of a run; 0 if the reduction is better left as it is."""
    view = whole.tensors[record.outputs[0]]
    kept, reduced = whole.axes(view.name), whole.domain_map.reduced(view)
    results, rows = size_of(whole, kept), size_of(whole, reduced)
    if record.attr("chunk") or rows * results < MIN_ELEMENTS or rows < 2 * MIN_CHUNK:
        return 0
    order = order_of_sum(whole, record, options)
    is_inner = order[-1] in reduced
    if has_order(whole, options):
        return _own_chunk(rows, results, is_inner, target)
    pattern = whole.patterns[view.name]
    if is_inner and rows <= MAX_ON_CHIP and pattern in reuse.normalised:
        return 0  # the row stays on chip between its reductions
    if not is_inner and nested.takes_sum(whole, view.name, target, options):
        return 0  # what the sum reads is computed in the same kernel
    if not is_inner and Pattern(pattern.reduced, pattern.kept) in reuse.patterns:
        return _run_of_rows(whole, reuse, record, target)  # inner_outer takes rows and columns
    units = results if is_inner else -(-results * _itemsize(whole) // COLUMN_BYTES)
    run = _run_of_units(rows, units, INNER_BLOCKS if is_inner else OUTER_BLOCKS, target)
    size = _itemsize(whole, () if is_inner else (order[-1], *reduced))
    columns = results * size // SECTOR if rows <= MOST_AT_ONCE else 0
    is_busy = 2 * (results if is_inner else columns) >= target.sm_count and not target.is_cpu
    if is_busy and rows * results * size <= target.launch_bytes:
        return 0  # half of the SMs read it in less time than a second kernel takes
    extents = [whole.extents[name].value for name in order if name in reduced]
    chunk = _whole_rows(run, extents)
    rest = -run % FOUR_STEPS
    if not is_inner and not target.is_cpu and len(extents) == 1 and rest <= run // 10:
        chunk = run + rest
    return chunk if chunk < rows else 0


def _own_chunk(rows: int, results: int, is_inner: bool, target: Target) -> int:
    """As `_chunk`, but from the reduction's own sizes: under `repeatable` its bits depend on these
    alone.

    So it is not known here which rows stay on chip, and columns always have the runs of
    inner_outer.
    """
    if not is_inner:
        if target.is_cpu:
            return -(-rows // CPU_RUNS)
        return _run_of_block(rows, MIN_RUN, row_of(results, target, sums=SUMS), target)
    run = 0 if rows <= MAX_ON_CHIP else _run_of_units(rows, results, INNER_BLOCKS, target)
    return _whole_rows(run, [rows])


def _run_of_units(rows: int, units: int, blocks: int, target: Target) -> int:
    """The rows of a run for `blocks` blocks in an SM; 0 if there are enough units without runs."""
    if units >= (CPU_UNITS if target.is_cpu else target.sm_count):
        return 0
    runs = CPU_RUNS if target.is_cpu else blocks * target.sm_count // units
    return max(-(-rows // runs), MIN_CHUNK)


def _run_of_rows(whole: Part, reuse: AxisReuse, record: OpRecord, target: Target) -> int:
    """The rows of a block of inner_outer: one wave of blocks, with enough rows for their sums."""
    pattern = whole.patterns[record.outputs[0]]
    rows = size_of(whole, pattern.reduced)
    if target.is_cpu:
        return -(-rows // CPU_RUNS)
    sums = sum(count for other, count in reuse.patterns.items() if other.kept == pattern.kept)
    shape = row_shape(size_of(whole, pattern.kept), sums, target)
    return _run_of_block(rows, -(-MIN_RUN_BYTES // _itemsize(whole)), shape, target)


def _run_of_block(rows: int, least: int, shape: RowShape, target: Target) -> int:
    """The rows of a run: at least `least`, unless some SM would then have no run."""
    enough = max(rows // least, target.sm_count)
    run = -(-rows // min(shape.at_once(target), enough))
    return -(-run // shape.threads[1]) * shape.threads[1]


def _whole_rows(chunk: int, extents: list[int]) -> int:
    """The chunk rounded up to whole inner axes, or to whole vectors where it is shorter."""
    inner = prod(extents[1:])
    unit = inner if 1 < inner <= chunk else MIN_CHUNK
    return -(-chunk // unit) * unit


# ---- writing both steps


def _in_runs(
    whole: Part, record: OpRecord, order: tuple[str, ...], chunk: int, steps: TwoSteps
) -> Iterator[OpRecord]:
    """Both steps, over a permuted operand if the axes of the first have another order in memory."""
    (operand, *_), (dims, _) = names_of(record), steps
    axes = whole.tensors[operand].domain.no_reductions
    classes = {at: whole.domain_map.axis(axes[at]) for at in dims}
    lying = sorted(dims, key=lambda at: order.index(classes[at]) if classes[at] in order else -1)
    if lying != sorted(dims):
        taken = dict(zip(sorted(dims), lying, strict=True))
        places = tuple(taken.get(at, at) for at in range(len(axes)))
        permuted = (f"{record.outputs[0]}.permuted",)
        yield OpRecord("permute", (operand,), permuted, (("dims", places),))
        record = replace(record, inputs=(*permuted, *record.inputs[1:]))
    yield from _in_two_steps(whole, record, steps, chunk)


def _in_two_steps(
    whole: Part, record: OpRecord, steps: TwoSteps, chunk: int = 0
) -> Iterator[OpRecord]:
    """Both steps, the first in runs of `chunk` elements if not 0."""
    (first, second), (name,), keepdim = steps, record.outputs, record.attr("keepdim")
    partial, total = (f"{name}.partial",), (f"{name}.total" if keepdim else name,)
    runs = (("chunk", chunk),) if chunk else ()
    yield replace(record, outputs=partial, attrs=(("dims", first), *runs))
    yield replace(record, inputs=partial, outputs=total, attrs=(("dims", second),))
    if keepdim:
        rank = len(whole.tensors[name].shape)
        flags = tuple(at in record.ints("dims") for at in range(rank))
        yield OpRecord("broadcast", total, (name,), (("is_broadcast_dim", flags),))


def _itemsize(whole: Part, axes: Iterable[str] = ()) -> int:
    """Bytes of an element of the narrowest tensor in memory that has these axes; 4 if none has."""
    names = (n for n in whole.global_tensors if set(axes).issubset(whole.axes(n)))
    return min((whole.tensors[name].dtype.bytes for name in names), default=4)
