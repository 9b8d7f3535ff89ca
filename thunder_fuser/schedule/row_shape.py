# SPDX-License-Identifier: Apache-2.0
"""Rows that a GPU has in progress: the threads and blocks of one, and how many it has at once.

A block of inner_outer keeps its sums over rows in registers, so few rows are in progress, and each
waits for its own reductions. What counts is how much of them an SM has at once: with more, some
rows load while others wait. All rows are shared out so that every SM is busy to the end, in one
wave of blocks:

    43690 rows of 6144 bf16, sums for weight and bias: 384 threads of 8 columns, 2 blocks a row,
    2 blocks in an SM -> 132 rows at once on 132 SMs -> runs of 331 rows
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
THREADS = (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
MOST_CLUSTER = 4


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

    Clusters of more than two blocks are for rows that fit no smaller one: they find room late.

    >>> from thunder_fuser.target import H200
    >>> [(s.threads, s.cluster, s.blocks) for n in (1024, 4096) for s in [row_shape(n, 2, H200)]]
    [((64, 2), 1, 4), ((256, 1), 1, 2)]
    >>> [(s.threads, s.cluster, s.blocks) for n in (6144, 16384) for s in [row_shape(n, 2, H200)]]
    [((384, 1), 2, 2), ((512, 1), 2, 1)]
    """
    clusters = (1, 2, MOST_CLUSTER) if target.max_cluster >= MOST_CLUSTER else (1,)
    shapes = [(shape_with(columns, sums, x, c), columns) for x in THREADS for c in clusters]
    return min(shapes, key=lambda shape: _badness(*shape))[0]


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


def _badness(shape: RowShape, columns: int) -> tuple[float, ...]:
    (x, y), cluster, blocks = shape.threads, shape.cluster, shape.blocks
    share = _share(columns, x * cluster)
    in_progress = min(columns * y * blocks // cluster, ENOUGH)
    return (
        share > MOST_COLUMNS,
        cluster > 2,
        blocks == 0,
        columns % 2 == 1 and share > ODD_COLUMNS,
        -in_progress,
        blocks < 2,
        cluster,
        share,
        x,
    )
