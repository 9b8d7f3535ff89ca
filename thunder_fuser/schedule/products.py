# SPDX-License-Identifier: Apache-2.0
"""The scheduler of matrix products of three to eight rows, which tensor cores sum.

    T8[m, n] = sum over k of T0[m, k] * T1[n, k]        T0, T1: both bf16 or f16; or T1 of 8 bits

    [N, M, K] -> [N.o@blockIdx.x, N.i{16}@threadIdx.x, M.o, M.i@threadIdx.y, K]

A block computes 16 columns of the results, for all rows. Its warps share K, and each thread gets
one sum of each product, from which it computes the results: silu(gate) * up is one kernel of two
products. No loop walks K; see sum_of_products.h.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, log2
from typing import NamedTuple

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.analysis.part import Part, offset
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.schedule.axes import MAX_BYTES, size_of
from thunder_fuser.schedule.reduction import Reduction, Rows
from thunder_fuser.schedule.scheduled import HeuristicParams, ScheduledFusion, Transforms
from thunder_fuser.schedule.scheduler import NoMatch
from thunder_fuser.target import Target

COLUMNS = 16  # of a block
FEWEST_ROWS, MOST_ROWS = 3, 8  # one or two rows are as fast by plain sums; 16 are faster in torch
# Threads of an SM, each with 64 registers. And threads along the rows of a block: only 8 of them
# have one, but all share K.
SM_THREADS, FEWEST_THREADS, MOST_THREADS = 1024, 8, 32
# Types of matrices whose values both bf16 and f16 hold.
NARROW = frozenset({DataType.Int8, DataType.UInt8, DataType.Float8_e4m3fn, DataType.Float8_e5m2})


class Matrix(NamedTuple):
    """An input [rows, k] of 16 or 8 bits: the position of its first element, the elements from row
    to row, and the axes that make the rows, the outermost first."""

    name: str
    first: int
    stride: int
    axes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Products(Reduction):
    """Sums of products of a few rows with matrices, all of one size, and what reads the sums."""

    name = "products"

    @classmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> Rows | NoMatch:
        products = [matrices_of(part, total) for total in part.reductions]
        axes = {(*matrix.axes, *rows.axes) for rows, matrix in filter(None, products)}
        if target.is_cpu or None in products or len(axes) != 1:
            return NoMatch(cls.name, "not only products of 16-bit rows with matrices")
        match = super().find(part, target, options)
        if isinstance(match, NoMatch):
            return match
        if match.has_order or match.chunk:
            return NoMatch(cls.name, "its sums have a fixed order, or several blocks share one")
        (kept,) = axes
        rows = size_of(part, kept[1:])
        if set(kept) != set(match.kept) or not FEWEST_ROWS <= rows <= MOST_ROWS:
            return NoMatch(cls.name, f"it takes {FEWEST_ROWS} to {MOST_ROWS} rows, not {rows}")
        return replace(match, kept=kept)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        """The schedule above; that of any sum where memory is not aligned for vectors."""
        if not all(self._is_aligned(total, alignment) for total in self.part.reductions):
            return self.as_sum.schedule(alignment)
        s, (y, steps, blocks) = Transforms(self.domain), self._shape()
        block, column = s.split(self.kept[0], COLUMNS)
        _, row = s.split(s.merge(self.kept[1:]), y)
        s.bind(BIDX=block, TIDX=column, TIDY=row)
        params = HeuristicParams(self.name, threads=(COLUMNS, y), unroll=steps, blocks=blocks)
        return self.scheduled((params, tuple(s.applied)), alignment)

    def _shape(self) -> tuple[int, int, int]:
        """Threads along the rows of a block, the steps of 64 elements of K that a warp loads at
        once, and how many blocks an SM must hold: all blocks run at once, if they can (ADR 83)."""
        columns = (self.kept_size + self.beside) / size_of(self.part, self.kept[1:])
        blocks = ceil(columns / COLUMNS / self.target.sm_count)  # of an SM
        if blocks == 1:
            return self._threads(MOST_THREADS, 2), 2, 0
        narrow = any(self.part.tensors[name].dtype in NARROW for name in self.part.inputs)
        y = self._threads(SM_THREADS // COLUMNS // blocks, 1 + narrow)
        return y, 1 + narrow, SM_THREADS // (COLUMNS * y)

    def _threads(self, wanted: int, steps: int) -> int:
        """A power of two, with so many steps for each warp."""
        most = min(wanted, MOST_THREADS, self.reduced_size // (32 * steps))
        return 1 << int(log2(max(most, FEWEST_THREADS)))

    @property
    def as_sum(self) -> Reduction:
        """The match of a plain sum."""
        fields = self.part, self.target, self.options, self.kept, self.reduced
        return Reduction(*fields, inner=self.inner, plane=self.plane, beside=self.beside)

    def _is_aligned(self, total: OpRecord, alignment: dict[str, int]) -> bool:
        operands = matrices_of(self.part, total)
        assert operands is not None

        def fits(operand: Matrix) -> bool:
            """True if eight numbers are loaded at once, and eight rows are apart by 32 bits."""
            places = self.reduced_size, operand.first, operand.stride
            at_once = 8 * self.part.tensors[operand.name].dtype.bytes
            aligned = alignment.get(operand.name, MAX_BYTES) % at_once == 0
            return aligned and operand.stride < 2**28 and not any(place % 8 for place in places)

        return all(map(fits, operands))


def matrices_of(part: Part, total: OpRecord) -> tuple[Matrix, Matrix] | None:
    """The rows and the matrix of sum(cast(rows) * cast(matrix)), if the kernel reads both from
    memory with the summed axis as the fastest one; None for another sum."""
    name, product = total.outputs[0], part.producer.get(names_of(total)[0])
    if total.op != "sum" or product is None or product.op != "mul":
        return None
    demand, (summed, *more) = part.demand, part.patterns[name].reduced
    if more or part.tensors[product.outputs[0]].dtype is not DataType.Float:
        return None
    sides = [_read(part, point, summed) for point in demand.reads[demand.operands[name]]]
    operands = sorted(filter(None, sides), key=lambda side: size_of(part, side.axes))
    if len(operands) != 2:
        return None
    rows, matrix = operands
    of_rows, of_matrix = (part.tensors[side.name].dtype for side in operands)
    if not of_rows.is_half or of_matrix not in {of_rows, *NARROW}:
        return None
    is_one = len(matrix.axes) == 1 and matrix.axes[0] not in rows.axes
    return (rows, matrix) if is_one and rows.axes else None


def _read(part: Part, point: Point, summed: str) -> Matrix | None:
    """What an operand of a product reads, through casts to float and moves; None if it computes, if
    the summed axis is not the fastest, or if its rows are not equally far from each other."""
    dtypes = set()
    while (maker := part.producer.get(point.name)) is not None:
        reads = part.demand.reads[point]
        if len(reads) != 1 or not (maker.op == "cast" or maker.row.kind is OpKind.MOVEMENT):
            return None
        dtypes.add(part.tensors[point.name].dtype)
        (point,) = reads
    stored = part.tensors[point.name].dtype
    terms, first = offset(point.index, part.strides[point.name]).terms
    strides = {str(at): stride for at, stride in terms if at.op == "sym"}
    is_whole = len(strides) == len(terms) and point.condition.is_const
    wider = {DataType.Half, DataType.BFloat16} if stored in NARROW else set[DataType]()
    is_exact = (stored.is_half or wider) and dtypes <= {stored, DataType.Float, *wider}
    if not is_whole or not is_exact or strides.pop(summed, 0) != 1:
        return None
    axes = tuple(sorted(strides, key=strides.__getitem__, reverse=True))
    if any(strides[a] != strides[b] * size_of(part, [b]) for a, b in pairwise(axes)):
        return None
    return Matrix(point.name, first, min(strides.values(), default=0), axes)
