# SPDX-License-Identifier: Apache-2.0
"""Rows that a GPU has in progress: the threads and blocks of one, and how many it has at once.

A block of inner_outer keeps its sums over rows in registers, so few rows are in progress, and each
waits for its own reductions. What counts is how much of them an SM has at once: with more, some
rows load while others wait. All rows are shared out so that every SM is busy to the end, in one
wave of blocks:

    26208 rows of 1280 bf16, sums for weight and bias: 160 threads of 8 columns, a block a row,
    5 blocks in an SM -> 660 rows at once on 132 SMs -> runs of 40 rows
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """threads: (along a row, rows side by side). cluster: blocks of a row. blocks: in one SM."""

    threads: tuple[int, int]
    cluster: int
    blocks: int

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
    return best_shape(columns, sums, CLUSTERS if target.max_cluster >= MOST_CLUSTER else (1,))


def best_shape(columns: int, sums: int, clusters: tuple[int, ...]) -> RowShape:
    """The shape of the least price, with clusters of these sizes."""
    shapes = [shape_with(columns, sums, x, c) for x in THREADS for c in clusters]
    return min(shapes, key=lambda shape: _price(shape, columns, sums))


def fits(columns: int, target: Target) -> bool:
    """True if some block or cluster keeps the sums of a row in registers."""
    return columns <= MOST_COLUMNS * THREADS[-1] * min(target.max_cluster, MOST_CLUSTER)


def shape_with(columns: int, sums: int, x: int, cluster: int) -> RowShape:
    """With x threads of each block along a row, whose columns take registers of them:
    a word of what is read, one of work, and two words a sum."""
    y = max(128 // x, 1) if cluster == 1 else 1
    registers = OWN_REGISTERS + _share(columns, x * cluster) * (2 + 2 * sums)
    registers = -(-registers // 8) * 8
    blocks = REGISTERS // (registers * x * y) if registers <= MOST_REGISTERS else 0
    return RowShape((x, y), cluster, min(blocks, 2048 // (x * y)))


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
