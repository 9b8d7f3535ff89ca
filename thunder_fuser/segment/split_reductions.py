# SPDX-License-Identifier: Apache-2.0
"""Long reductions with few results are made in two steps, so that all of a device works on them.

    T1 = sum(T0: f32[i0{65536}, i1{1024}], dims=[0])
->  T2 = sum(T0, dims=[0], chunk=1024)   f32[i2{64}, i1{1024}], partial results, one block each
    T1 = sum(T2, dims=[0])

No atomics: the order of additions is fixed, and does not depend on how many threads there are.
Shorter runs of additions also round less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import prod

from thunder_fuser.analysis.part import Part, Parts
from thunder_fuser.analysis.pattern import Pattern
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.schedule.axes import size_of, summed_order
from thunder_fuser.schedule.repeatable import SUMS, has_order, settled_shape
from thunder_fuser.schedule.row_shape import RowShape, row_shape
from thunder_fuser.segment.fresh_names import FreshNames
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


def split_reductions(fusion: Fusion, target: Target, options: CompileOptions) -> Fusion:
    """Reductions that would leave most of the target idle, each as partial results and a rest."""
    whole = Parts(fusion).of(fusion.exprs)
    around = Around(whole)
    chunks = {expr: _chunk(whole, around, expr, target, options) for expr in whole.reductions}
    if not any(chunks.values()):
        return fusion
    names = FreshNames(fusion)
    records: list[OpRecord] = []
    for record in fusion.definition:
        chunk = chunks.get(record, 0)
        records += _two_steps(fusion, record, chunk, names) if chunk else [record]
    return define(tuple(records))


def _two_steps(
    fusion: Fusion, record: OpRecord, chunk: int, names: FreshNames
) -> list[OpRecord]:
    """The partial results, their reduction, and the axes of size 1 that keepdim asks for."""
    dims: tuple[int, ...] = record.attr("dims")  # type: ignore[assignment]
    partial = names()
    kept = names() if record.attr("keepdim") else record.outputs[0]
    steps = [
        replace(record, outputs=(partial,), attrs=(("dims", dims), ("chunk", chunk))),
        replace(record, inputs=(partial,), outputs=(kept,), attrs=(("dims", (0,)),)),
    ]
    if record.attr("keepdim"):
        rank = len(fusion.tensors[names_of(record)[0]].shape)
        flags = tuple(at in dims for at in range(rank))
        attrs = (("is_broadcast_dim", flags),)
        steps.append(OpRecord("broadcast", (kept,), record.outputs, attrs))
    return steps


def _chunk(
    whole: Part, around: Around, record: OpRecord, target: Target, options: CompileOptions
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
    if is_inner and rows <= MAX_ON_CHIP and pattern in around.normalised:
        return 0  # the row stays on chip between its reductions
    itemsize = min(whole.tensors[name].dtype.bytes for name in whole.global_tensors)
    if not is_inner and Pattern(pattern.reduced, pattern.kept) in around.patterns:
        return _run_of_rows(whole, around, record, target)  # inner_outer takes rows and columns
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
        return _run_of_block(rows, MIN_RUN, settled_shape(results, SUMS, target), target)
    if rows <= MAX_ON_CHIP or results >= (CPU_UNITS if target.is_cpu else target.sm_count):
        return 0
    runs = CPU_RUNS if target.is_cpu else INNER_BLOCKS * target.sm_count // results
    return _whole_rows(-(-rows // runs), [rows])


def _run_of_rows(whole: Part, around: Around, record: OpRecord, target: Target) -> int:
    """Rows of one block: one wave of them, each with enough rows to be worth its sums."""
    own = whole.patterns[record.outputs[0]]
    rows = size_of(whole, own.reduced)
    if target.is_cpu:
        return -(-rows // CPU_RUNS)
    sums = sum(count for one, count in around.patterns.items() if one.kept == own.kept)
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


class Around:
    """Of each value: the axes that reductions behind it reduce, and those of values after it.

    patterns: how many reductions keep and reduce which axes; normalised: of these, those of rows
    that are reduced again or needed again after a reduction.
    """

    def __init__(self, whole: Part) -> None:
        self.reduced: dict[str, frozenset[str]] = {}
        self.later: dict[str, frozenset[str]] = {}
        self.patterns = Counter(whole.patterns.values())
        for expr in whole.exprs:
            behind = frozenset[str]().union(*(self._with_own(whole, n) for n in names_of(expr)))
            self.reduced.update(dict.fromkeys(expr.outputs, behind))
        for expr in reversed(whole.exprs):
            names = expr.outputs
            after = frozenset[str]().union(
                *(whole.axes(n) for n in names), *(self.later.get(n, ()) for n in names)
            )
            for name in names_of(expr):
                self.later[name] = self.later.get(name, frozenset()) | after
        self.normalised = {
            one for name, one in whole.patterns.items() if self._is_normalised(name, one.reduced)
        }

    def _with_own(self, whole: Part, name: str) -> frozenset[str]:
        own = whole.domain_map.reduced(whole.tensors[name])
        return self.reduced.get(name, frozenset()).union(own)

    def _is_normalised(self, name: str, reduced: frozenset[str]) -> bool:
        """True if the row was reduced before, or is needed again after this reduction of it."""
        return self.is_needed_again(name, reduced) or not self.reduced[name].isdisjoint(reduced)

    def is_needed_again(self, name: str, reduced: Iterable[str]) -> bool:
        """True if the row is needed again after this reduction of it."""
        return not self.later.get(name, frozenset()).isdisjoint(reduced)
