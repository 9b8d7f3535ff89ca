# SPDX-License-Identifier: Apache-2.0
"""Who works on a row: threads of a block, blocks of a cluster, and how many an SM has at once.

A block of inner_outer keeps its sums over rows in registers, so few rows are in progress, and each
waits for its own reductions. What counts is how much of them an SM has at once: with more, some
rows load while others wait. All rows are shared out so that every SM is busy to the end, in one
wave of blocks:

    26208 rows of 1280 bf16, sums for weight and bias: 160 threads of 8 columns, a block a row,
    5 blocks in an SM -> 660 rows at once on 132 SMs -> runs of 40 rows

Under the option `repeatable` the order in which a reduction adds follows from its own sizes alone.
A sum rounds, so its bits depend on which thread adds which elements. Without the option a scheduler
takes the widest loads that a part allows, and as many threads as hold what the part keeps of a row.
With it, rows of N elements are always the same partial sums, whatever else the kernel reads, keeps
or makes:

    row sums      vectors of `width`, dealt in turn to the threads of each of `cluster` blocks; a
                  row of several planes, as a channel's of [N, C, H, W], has none across two planes
    column sums   runs of rows (presegment/rfactor.py), dealt to the threads along y of a block
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
from thunder_fuser.target import Target

REGISTERS = 65536  # of an SM, for the blocks that it has at once
OWN_REGISTERS = 32  # of a thread, beside what its columns take
MOST_REGISTERS = 255
MOST_COLUMNS = 24  # of a thread
ODD_COLUMNS = 8  # without vectors each byte takes more instructions: more threads share them
ENOUGH = 7680  # columns in progress in an SM: more of them bring nothing
THREADS = (8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
MOST_CLUSTER = 4
CLUSTERS = (1, 2, MOST_CLUSTER)
# A thread's columns, in vectors of 8: with several sums one leaves little to overlap, and three
# take registers from other blocks.
PRICES = {1: (0.0, 0.03, 0.22), 2: (0.05, 0.0, 0.22)}  # by sums
FEW_WARPS = 0.6  # where three vectors leave an SM with less than nine warps
IDLE = 2.2  # threads without columns still wait in every barrier
SHORT, SHORT_ALONE = 0.5, 1.2  # of ENOUGH; a block alone in an SM waits for itself
LEAST_OF_CLUSTER = 96  # threads; smaller blocks are enough for a row by themselves
CLUSTER_PRICES = {2: 0.15, 4: 1.0}  # those of more than two blocks find room late


@dataclass(frozen=True, slots=True)
class RowShape:
    """threads: (along a row, rows side by side). cluster: blocks of a row. blocks: in one SM.
    width: the elements of a vector, or 0 where they are not settled."""

    threads: tuple[int, int]
    cluster: int
    blocks: int
    width: int = 0

    def at_once(self, target: Target) -> int:
        """The runs of rows, one after another in a block or cluster, that all SMs work on."""
        return max(target.sm_count * max(self.blocks, 1) // self.cluster, 1)


def row_shape(columns: int, sums: int, target: Target) -> RowShape:
    """The shape for rows of so many columns with so many sums over rows.

    >>> from thunder_fuser.target import H200
    >>> [(s.threads, s.cluster, s.blocks) for n in (768, 4096) for s in [row_shape(n, 2, H200)]]
    [((96, 1), 1, 8), ((256, 1), 1, 2)]
    >>> [(s.threads, s.cluster, s.blocks) for n in (5120, 16384) for s in [row_shape(n, 2, H200)]]
    [((160, 1), 2, 3), ((512, 1), 2, 1)]
    """
    return _best_shape(columns, sums, CLUSTERS if target.max_cluster >= MOST_CLUSTER else (1,))


def _best_shape(columns: int, sums: int, clusters: tuple[int, ...]) -> RowShape:
    """The shape of the least price, with clusters of these sizes."""
    shapes = [_shape_with(columns, sums, x, c) for x in THREADS for c in clusters]
    return min(shapes, key=lambda shape: _price(shape, columns, sums))


def fits_registers(columns: int, target: Target) -> bool:
    """True if some block or cluster keeps the sums of a row in registers."""
    return columns <= MOST_COLUMNS * THREADS[-1] * min(target.max_cluster, MOST_CLUSTER)


def _shape_with(columns: int, sums: int, x: int, cluster: int, width: int = 0) -> RowShape:
    """With x threads of each block along a row, whose columns take registers of them:
    a word of what is read, one of work, and two words a sum."""
    y = max(128 // x, 1) if cluster == 1 else 1
    registers = OWN_REGISTERS + _share(columns, x * cluster) * (2 + 2 * sums)
    registers = -(-registers // 8) * 8
    blocks = REGISTERS // (registers * x * y) if registers <= MOST_REGISTERS else 0
    return RowShape((x, y), cluster, min(blocks, 2048 // (x * y)), width)


def _share(columns: int, threads: int) -> int:
    """The columns of a thread, in whole vectors where rows are."""
    width = 8 if columns % 8 == 0 else 1
    return -(-columns // (width * threads)) * width


def _price(shape: RowShape, columns: int, sums: int) -> tuple[float, ...]:
    """What cannot be, then about the share of a kernel's time that the shape costs.

    From the norms' backward at 29 widths on an H200, and their forward, which a cluster slows down.
    """
    (x, y), cluster = shape.threads, shape.cluster
    share = _share(columns, x * cluster)
    idle = share * x * cluster / columns - 1
    short = max(1 - columns * y * shape.blocks / cluster / ENOUGH, 0)
    alone = shape.blocks == 1
    price = IDLE * idle + CLUSTER_PRICES.get(cluster, 0.0) + FEW_WARPS * (share > 16 and x < 96)
    price += SHORT_ALONE * short if alone else SHORT * short
    price += 0.0 if alone else PRICES[min(sums, 2)][min(-(-share // 8), 3) - 1]
    impossible = share > MOST_COLUMNS or (cluster > 1 and x < LEAST_OF_CLUSTER)
    odd = columns % 2 == 1 and share > ODD_COLUMNS
    return (impossible, shape.blocks == 0, odd, price, x)


# ---- settled by the sizes of a sum

WIDTH = 8  # elements of a vector: 16 bytes of 16-bit floats, two loads of 32-bit ones
SUMS = 2  # over rows, as of a norm's weight and bias: the shape is not that of the sums there are
# Elements of a thread, if a block is full; odd rows take more instructions. Up to these a row is
# one block's: a group of rows is reduced by blocks that hold whole ones (nested.py).
FULL, FULL_ODD = 16, 8
MOST_ODD = 12  # in a block that is not
ODD_THREADS = (8, 16, 32, 64, 128, 256)
SETTLED_THREADS = 512
SHORT_CLUSTER = 2  # blocks that share a row which is not long
# Rows too long to be summed over each other as well: one value of a row fits, or two.
LONG = ((8, 32), (8, 64), (16, 32), (16, 64))  # (blocks at most, elements of a thread)
LONG_THREADS = 256


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


def row_of(
    columns: int, target: Target, chunk: int = 0, sums: int = 1, plane: int = 0
) -> RowShape:
    """Who adds rows of so many columns, or runs of `chunk` of them, in vectors of a settled width.

    sums: over rows, where the rows are summed over each other as well; plane: the columns that
    follow one another in memory, if kept axes lie between the others.
    """
    clusters = 1 if chunk else target.max_cluster
    x, cluster = shape_of(chunk or columns, clusters)
    return _shape_with(chunk or columns, sums, x, cluster, width_of(columns, chunk, plane))


def width_of(*lengths: int) -> int:
    """The elements of a vector, which divide the row, and its runs and planes if it has them."""
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
    """True for rows that no kernel also sums over each other."""
    threads, cluster = shape_of(columns, target.max_cluster)
    return cluster > SHORT_CLUSTER or columns > MOST_COLUMNS * threads * cluster
