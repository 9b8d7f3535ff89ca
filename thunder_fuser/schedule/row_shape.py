# SPDX-License-Identifier: Apache-2.0
"""The threads of a block and the blocks of a cluster that reduce a row, and the blocks in an SM.

A block of inner_outer keeps its sums over rows in registers, so an SM has few rows in progress, and
each waits for its own reductions. The more columns an SM has in progress, the more rows load while
others wait. All rows are dealt to one wave of blocks, so that every SM is busy to the end:

    26208 rows of 1280 bf16, sums for weight and bias: 160 threads of 8 columns, a block a row,
    5 blocks in an SM -> 660 rows at once on 132 SMs -> runs of 40 rows

Under the option `repeatable`, the order of a reduction's additions depends on its own sizes alone.
A sum rounds, so its bits depend on which thread adds which elements. Without the option a scheduler
takes the widest loads that a part allows, and enough threads to hold the values that it keeps. With
the option, rows of N elements always have the same partial sums, whatever else is in the kernel:

    row sums      vectors of `width`, dealt in turn to the threads of each of `cluster` blocks; if a
                  row has several planes, like a channel of [N, C, H, W], no vector crosses planes
    column sums   runs of rows (presegment/rfactor.py), dealt to the threads along y of a block
    on a CPU      16 sums, dealt in turn (Stream); for sums of columns, one for each column

So `reduction`, `persistent`, `inner_outer` and `nested` give a sum the same bits. Maxima do not
round, so the option does not restrict parts whose reductions are all maxima or minima.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_table import SCANS
from thunder_fuser.target import Target

REGISTERS = 65536  # of an SM, for all its blocks
OWN_REGISTERS = 32  # of a thread, in addition to those of its columns
MOST_REGISTERS = 255
MOST_COLUMNS = 24  # of a thread
ODD_COLUMNS = 8  # of a thread without vectors: more instructions a byte, so more threads share them
ENOUGH = 7680  # columns in progress in an SM: more do not make it faster
THREADS = (8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
CLUSTERS = (1, 2)
# {number of sums: prices of one, two and three vectors of 8 columns a thread}. With several sums,
# one vector leaves little to overlap; three take registers from other blocks.
PRICES = {1: (0.0, 0.03, 0.22), 2: (0.05, 0.0, 0.22)}
FEW_WARPS = 0.6  # if three vectors leave an SM with fewer than nine warps
IDLE = 2.2  # of threads without columns, which still wait at every barrier
SHORT, SHORT_ALONE = 0.5, 1.2  # if columns are fewer than ENOUGH; more for one block in an SM
LEAST_OF_CLUSTER = 96  # threads of a block in a cluster; a row that needs fewer needs no cluster
CLUSTER_PRICE = 0.15  # clusters of more than two blocks would wait for free SMs


@dataclass(frozen=True, slots=True)
class RowShape:
    """threads: (along a row, rows side by side). cluster: blocks of a row. blocks: in one SM.
    width: the elements of a vector, or 0 where the scheduler is free to choose."""

    threads: tuple[int, int]
    cluster: int
    blocks: int
    width: int = 0

    def at_once(self, target: Target) -> int:
        """The number of runs of rows that all SMs work on at once, each in a block or cluster."""
        return max(target.sm_count * max(self.blocks, 1) // self.cluster, 1)


def row_shape(columns: int, sums: int, target: Target) -> RowShape:
    """The cheapest shape for rows of `columns` columns with `sums` sums over rows.

    >>> from thunder_fuser.target import H200
    >>> [(s.threads, s.cluster, s.blocks) for n in (768, 4096) for s in [row_shape(n, 2, H200)]]
    [((96, 1), 1, 8), ((256, 1), 1, 2)]
    >>> [(s.threads, s.cluster, s.blocks) for n in (5120, 16384) for s in [row_shape(n, 2, H200)]]
    [((160, 1), 2, 3), ((512, 1), 2, 1)]
    """
    return _best_shape(columns, sums, CLUSTERS if target.max_cluster > 1 else (1,))


def _best_shape(columns: int, sums: int, clusters: tuple[int, ...]) -> RowShape:
    """The cheapest shape with clusters of these sizes."""
    shapes = [_shape_with(columns, sums, x, c) for x in THREADS for c in clusters]
    return min(shapes, key=lambda shape: _price(shape, columns, sums))


def fits_registers(columns: int, target: Target) -> bool:
    """True if some block or cluster can keep sums for all columns in registers."""
    return columns <= MOST_COLUMNS * THREADS[-1] * min(target.max_cluster, CLUSTERS[-1])


def _shape_with(columns: int, sums: int, x: int, cluster: int, width: int = 0) -> RowShape:
    """The shape with x threads of each block along a row. A column takes registers of its thread:
    one for its input, one for work, and two for each sum; if it is loaded alone, two for each sum,
    but at least four: 64 in all for 8 columns with two sums (NVRTC 13.0, sm_90a, 2026-11)."""
    y = max(128 // x, 1) if cluster == 1 else 1
    each = 2 + 2 * sums if columns % 2 == 0 else 2 * max(sums, 2)
    registers = OWN_REGISTERS + _share(columns, x * cluster) * each
    registers = -(-registers // 8) * 8
    blocks = REGISTERS // (registers * x * y) if registers <= MOST_REGISTERS else 0
    return RowShape((x, y), cluster, min(blocks, 2048 // (x * y)), width)


def _share(columns: int, threads: int) -> int:
    """The columns of a thread: whole vectors of 8 if these divide a row."""
    width = 8 if columns % 8 == 0 else 1
    return -(-columns // (width * threads)) * width


def _price(shape: RowShape, columns: int, sums: int) -> tuple[float, ...]:
    """Sort key: shapes that are impossible come last, the others by their estimated extra time as a
    share of the kernel's.

    Fitted to the backward of norms at 29 widths on an H200, and to their forward, which clusters
    slow down.
    """
    (x, y), cluster = shape.threads, shape.cluster
    share = _share(columns, x * cluster)
    idle = share * x * cluster / columns - 1
    short = max(1 - columns * y * shape.blocks / cluster / ENOUGH, 0)
    alone = shape.blocks == 1
    price = IDLE * idle + CLUSTER_PRICE * (cluster > 1) + FEW_WARPS * (share > 16 and x < 96)
    price += SHORT_ALONE * short if alone else SHORT * short
    price += 0.0 if alone else PRICES[min(sums, 2)][min(-(-share // 8), 3) - 1]
    impossible = share > MOST_COLUMNS or (cluster > 1 and x < LEAST_OF_CLUSTER)
    odd = columns % 2 == 1 and share > ODD_COLUMNS
    return (impossible, shape.blocks == 0, odd, price, x)


# ---- shapes that depend on the sizes of a sum alone (the option `repeatable`)

WIDTH = 8  # elements of a vector: 16 bytes of 16-bit floats, two loads of 32-bit ones
SUMS = 2  # assumed sums over rows, as for a norm's weight and bias, whatever the kernel has
# Elements of a thread in a full block; odd rows take more instructions. A row that fits one full
# block has one, because blocks that reduce a group of rows hold whole rows (nested.py).
FULL, FULL_ODD = 16, 8
MOST_ODD = 12  # elements of a thread in a block for odd rows that is not full
ODD_THREADS = (8, 16, 32, 64, 128, 256)
SETTLED_THREADS = 512  # of a full block
SHORT_CLUSTER = 2  # blocks of a row that inner_outer can still take
# For longer rows: registers hold one value of each element of the row, or two.
LONG = ((8, 32), (8, 64), (16, 32), (16, 64))  # (blocks at most, elements of a thread)
LONG_THREADS = 256


def has_order(part: Part, options: CompileOptions) -> bool:
    """True if the part has sums or products whose order is fixed here."""
    return options.repeatable and any(
        rounds(part, expr.outputs[0]) for expr in (*part.reductions, *part.scans)
    )


def rounds(part: Part, name: str) -> bool:
    """True for sums and products of floats and complex numbers, and for scans of these."""
    dtype, op = part.tensors[name].dtype, part.producer[name].op
    adds = SCANS.get(op, op) in ("sum", "prod")
    return adds and (dtype.is_float or dtype.is_complex)


def row_of(
    columns: int, target: Target, chunk: int = 0, sums: int = 1, plane: int = 0
) -> RowShape:
    """The shape that adds rows of `columns` elements, or runs of `chunk` elements if not 0.

    sums: sums over rows that the kernel has too; plane: the elements of a row that follow one
    another in memory, if kept axes lie between them.
    """
    clusters = 1 if chunk else target.max_cluster
    x, cluster = shape_of(chunk or columns, clusters)
    return _shape_with(chunk or columns, sums, x, cluster, width_of(columns, chunk, plane))


def width_of(*lengths: int) -> int:
    """The elements of a vector. Lengths of a row, its runs or its planes are multiples of it."""
    return gcd(WIDTH, *lengths)


def shape_of(columns: int, clusters: int) -> tuple[int, int]:
    """The threads of a block and the blocks of a cluster for a row.

    >>> shape_of(64, 16), shape_of(768, 16), shape_of(4096, 16), shape_of(16384, 16)
    ((8, 1), (96, 1), (256, 1), (512, 2))
    >>> shape_of(32000, 16), shape_of(50257, 16), shape_of(128256, 16), shape_of(128256, 1)
    ((256, 4), (256, 8), (256, 8), (512, 1))
    """
    full = FULL_ODD if columns % 2 else FULL
    most = min(clusters, SHORT_CLUSTER)
    if columns > full * SETTLED_THREADS * most:
        return _long_shape(columns, clusters)
    cluster = 1 if columns <= full * SETTLED_THREADS else SHORT_CLUSTER
    if columns % 2:
        return next((x for x in ODD_THREADS if columns <= MOST_ODD * x), SETTLED_THREADS), cluster
    return _best_shape(columns, SUMS, (cluster,)).threads[0], cluster


def _long_shape(columns: int, clusters: int) -> tuple[int, int]:
    if clusters == 1:
        return SETTLED_THREADS, 1
    for blocks, most in LONG:
        fitting = min(blocks, clusters)
        if columns <= most * LONG_THREADS * fitting:
            break
    cluster = 1
    while cluster < fitting and columns > most * LONG_THREADS * cluster:
        cluster *= 2
    return LONG_THREADS, cluster


def has_long_rows(columns: int, target: Target) -> bool:
    """True for rows too long for a kernel that also adds them over each other."""
    threads, cluster = shape_of(columns, target.max_cluster)
    return cluster > SHORT_CLUSTER or columns > MOST_COLUMNS * threads * cluster
