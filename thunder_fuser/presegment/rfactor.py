# SPDX-License-Identifier: Apache-2.0
"""Long reductions with few results are made in two steps, so that all of a device works on them.

    T1 = sum(T0: f32[i0{65536}, i1{1024}], dims=[0])
->  T2 = sum(T0, dims=[0], chunk=1024)   f32[i2{64}, i1{1024}], partial results, one block each
    T1 = sum(T2, dims=[0])

No atomics: the order of additions is fixed, and does not depend on how many threads there are.
Shorter runs of additions also round less.
"""

from __future__ import annotations

from math import prod

from thunder_fuser.analysis.domain_map import Pattern
from thunder_fuser.analysis.part import Part, Parts
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.presegment.axis_reuse import AxisReuse
from thunder_fuser.presegment.two_steps import TwoSteps, dims_of, in_two_steps
from thunder_fuser.schedule.axes import size_of, summed_order
from thunder_fuser.schedule.row_shape import SUMS, RowShape, has_order, row_of, row_shape
from thunder_fuser.target import Target

MIN_CHUNK = 64  # shorter runs would make the partial results a good part of the bytes
MIN_ELEMENTS = 1 << 16  # less is done before a second kernel has started
MAX_ON_CHIP = 1 << 18  # longer rows are read from memory once a reduction, however it is done
COLUMN_BYTES = 512  # of a row that one block of an outer reduction takes: 32 vectors
INNER_BLOCKS, OUTER_BLOCKS = 8, 2  # that an SM holds: of 256 and of 1024 threads
MIN_RUN_BYTES = 28  # of one column, so that the sums are a small part of the bytes
CPU_UNITS = 16  # rows, or blocks of columns, that are work enough for a CPU's threads
# Rows of a run, whatever is read of them. The sums of short runs are more bytes, which stay in the
# second-level cache; an SM with fewer blocks waits longer for each.
MIN_RUN = 8
CPU_RUNS = 64  # runs on a CPU, however many threads it has


def rfactor(fusion: Fusion, target: Target, options: CompileOptions) -> Fusion:
    """Reductions that would leave most of the target idle, each as partial results and a rest."""
    if not any(expr.row.kind is OpKind.REDUCTION for expr in fusion.exprs):
        return fusion
    whole = Parts(fusion).of(fusion.exprs)
    reuse = AxisReuse(whole)
    steps: dict[OpRecord, TwoSteps] = {}
    for record in whole.reductions:
        chunk = _chunk(whole, reuse, record, target, options)
        if chunk:
            steps[record] = TwoSteps(dims_of(record), (0,), chunk)
    return in_two_steps(fusion, steps)


def _chunk(
    whole: Part, reuse: AxisReuse, record: OpRecord, target: Target, options: CompileOptions
) -> int:
    """How many elements a run has; 0 if the reduction is better left as it is."""
    view = whole.tensors[record.outputs[0]]
    kept, reduced = whole.axes(view.name), whole.domain_map.reduced(view)
    results, rows = size_of(whole, kept), size_of(whole, reduced)
    if record.attr("chunk") or rows * results < MIN_ELEMENTS or rows < 2 * MIN_CHUNK:
        return 0
    order = summed_order(whole, record, {*kept, *reduced}, options)
    if tuple(name for name in order if name in reduced) != reduced:
        return 0  # runs are of neighbours in memory
    is_inner = order[-1] in reduced
    if has_order(whole, options):
        return _own_chunk(rows, results, is_inner, target)
    pattern = whole.patterns[view.name]
    if is_inner and rows <= MAX_ON_CHIP and pattern in reuse.normalised:
        return 0  # the row stays on chip between its reductions
    itemsize = min(whole.tensors[name].dtype.bytes for name in whole.global_tensors)
    if not is_inner and Pattern(pattern.reduced, pattern.kept) in reuse.patterns:
        return _run_of_rows(whole, reuse, record, target)  # inner_outer takes rows and columns
    units = results if is_inner else -(-results * itemsize // COLUMN_BYTES)
    if units >= (CPU_UNITS if target.is_cpu else target.sm_count):
        return 0
    per_sm = INNER_BLOCKS if is_inner else OUTER_BLOCKS
    runs = CPU_RUNS if target.is_cpu else per_sm * target.sm_count // units
    chunk = _whole_rows(max(-(-rows // runs), MIN_CHUNK), [whole.extents[a].value for a in reduced])
    return chunk if chunk < rows else 0


def _own_chunk(rows: int, results: int, is_inner: bool, target: Target) -> int:
    """The same of the reduction alone: its bits may not depend on what stands around it.

    So rows that stay on chip are not told from others, and columns are always in runs such as
    inner_outer takes.
    """
    if not is_inner:
        if target.is_cpu:
            return -(-rows // CPU_RUNS)
        return _run_of_block(rows, MIN_RUN, row_of(results, target, sums=SUMS), target)
    if rows <= MAX_ON_CHIP or results >= (CPU_UNITS if target.is_cpu else target.sm_count):
        return 0
    runs = CPU_RUNS if target.is_cpu else INNER_BLOCKS * target.sm_count // results
    return _whole_rows(-(-rows // runs), [rows])


def _run_of_rows(whole: Part, reuse: AxisReuse, record: OpRecord, target: Target) -> int:
    """Rows of one block: one wave of them, each with enough rows to be worth its sums."""
    own = whole.patterns[record.outputs[0]]
    rows = size_of(whole, own.reduced)
    if target.is_cpu:
        return -(-rows // CPU_RUNS)
    sums = sum(count for one, count in reuse.patterns.items() if one.kept == own.kept)
    shape = row_shape(size_of(whole, own.kept), sums, target)
    itemsize = min(whole.tensors[name].dtype.bytes for name in whole.global_tensors)
    return _run_of_block(rows, -(-MIN_RUN_BYTES // itemsize), shape, target)


def _run_of_block(rows: int, least: int, shape: RowShape, target: Target) -> int:
    """The rows of a run: at least so many, but for a run on each SM."""
    enough = max(rows // least, target.sm_count)
    run = -(-rows // min(shape.at_once(target), enough))
    return -(-run // shape.threads[1]) * shape.threads[1]


def _whole_rows(chunk: int, extents: list[int]) -> int:
    """The chunk rounded up to whole inner axes, or to whole vectors where it is shorter."""
    inner = prod(extents[1:])
    unit = inner if 1 < inner <= chunk else MIN_CHUNK
    return -(-chunk // unit) * unit
