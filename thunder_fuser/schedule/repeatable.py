# SPDX-License-Identifier: Apache-2.0
"""Under the option `repeatable`: in which order a reduction adds, by its own sizes alone.

A sum rounds, so its bits depend on which thread adds which elements. Else a scheduler takes the
widest loads that a part allows, and as many threads as hold what the part keeps of a row. Here rows
of N elements are always the same partial sums, whatever else the kernel reads, keeps or makes:

    row sums      vectors of `width`, dealt in turn to `threads` of each of `cluster` blocks
    column sums   runs of rows (presegment/rfactor.py), dealt to `rows_of_block` threads
    on a CPU      16 sums, dealt in turn (Stream); of columns, one for each

So `reduction`, `persistent`, `inner_outer` and `nested` give a sum the same bits. Maxima do not
round: parts that have no other reductions are as free as ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_table import SCANS
from thunder_fuser.schedule.row_shape import MOST_COLUMNS, RowShape, best_shape, shape_with
from thunder_fuser.target import Target

WIDTH = 8  # elements of a vector: 16 bytes of 16-bit floats, two loads of 32-bit ones
SUMS = 2  # over rows, as of a norm's weight and bias: the shape is not that of the sums there are
# Elements of a thread, if a block is full; odd rows take more instructions. Up to these a row is
# one block's: a group of rows is reduced by blocks that hold whole ones (nested.py).
FULL, FULL_ODD = 16, 8
MOST_ODD = 12  # in a block that is not
ODD_THREADS = (8, 16, 32, 64, 128, 256)
THREADS = 512
SHORT_CLUSTER = 2  # blocks that share a row which is not long
# Rows too long to be summed over each other as well: one value of a row fits, or two.
LONG = ((8, 32), (8, 64), (16, 32), (16, 64))  # (blocks at most, elements of a thread)
LONG_THREADS = 256


@dataclass(frozen=True, slots=True)
class Row:
    """Who adds a row: vectors of `width`, dealt to `threads` of each of `cluster` blocks."""

    width: int
    threads: int
    cluster: int


def has_order(part: Part, options: CompileOptions) -> bool:
    """True if the part has sums or products whose order is settled here."""
    return options.repeatable and any(
        rounds(part, expr.outputs[0]) for expr in (*part.reductions, *part.scans)
    )


def rounds(part: Part, name: str) -> bool:
    """True for sums and products of floats and complex numbers, also running ones."""
    dtype, op = part.tensors[name].dtype, part.producer[name].op
    adds = SCANS.get(op, op) in ("sum", "prod")
    return adds and (dtype.is_float or dtype.is_complex)


def row_of(columns: int, target: Target, chunk: int = 0) -> Row:
    """Who adds rows of so many columns, or runs of `chunk` of them."""
    clusters = 1 if chunk else target.max_cluster
    return Row(width_of(columns, chunk), *shape_of(chunk or columns, clusters))


def width_of(columns: int, chunk: int = 0) -> int:
    """The elements of a vector, which divide the row and its runs."""
    return gcd(WIDTH, columns, chunk)


def shape_of(columns: int, clusters: int) -> tuple[int, int]:
    """The threads of a block and the blocks of a cluster for a row.

    >>> shape_of(64, 16), shape_of(768, 16), shape_of(4096, 16), shape_of(16384, 16)
    ((8, 1), (96, 1), (256, 1), (512, 2))
    >>> shape_of(32000, 16), shape_of(50257, 16), shape_of(128256, 16), shape_of(128256, 1)
    ((256, 4), (256, 8), (256, 8), (512, 1))
    """
    full = FULL_ODD if columns % 2 else FULL
    most = min(clusters, SHORT_CLUSTER)
    if columns > full * THREADS * most:
        return _long_shape(columns, clusters)
    cluster = 1 if columns <= full * THREADS else SHORT_CLUSTER
    if columns % 2:
        return next((x for x in ODD_THREADS if columns <= MOST_ODD * x), THREADS), cluster
    return best_shape(columns, SUMS, (cluster,)).threads[0], cluster


def _long_shape(columns: int, clusters: int) -> tuple[int, int]:
    if clusters == 1:
        return THREADS, 1
    for blocks, most in LONG:
        fitting = min(blocks, clusters)
        if columns <= most * LONG_THREADS * fitting:
            break
    cluster = 1
    while cluster < fitting and columns > most * LONG_THREADS * cluster:
        cluster *= 2
    return LONG_THREADS, cluster


def settled_shape(columns: int, sums: int, target: Target) -> RowShape:
    """The shape of rows that are also summed over each other, with so many sums."""
    return shape_with(columns, sums, *shape_of(columns, target.max_cluster))


def has_long_rows(columns: int, target: Target) -> bool:
    """True for rows that no kernel also sums over each other."""
    threads, cluster = shape_of(columns, target.max_cluster)
    return cluster > SHORT_CLUSTER or columns > MOST_COLUMNS * threads * cluster
