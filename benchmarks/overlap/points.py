# SPDX-License-Identifier: Apache-2.0
"""What `python -m benchmarks overlap` measures, and the bounds of its times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.bounds import Bound
from thunder_fuser.communication.products.cost import KINDS

GATHER, SCATTER, _ = KINDS
SHAPES = (
    (16384, 8192, 8192), (16384, 8192, 4096), (16384, 8192, 2048), (8192, 4096, 2048),
    (4096, 8192, 1024),
)  # fmt: skip
HEADLINE = (32768, 16384, 8192)  # on four GPUs and more: that of NVIDIA/Fuser#5259
MANY = 4
SMALL = ((120, 48, 32), (240, 16, 40))
# {n: how many times faster than NCCL} at the most rows, how many times faster than torch at all.
OVER_NCCL = {8192: 1.2, 4096: 1.35, 2048: 1.5}
OVER_TORCH = 1.15
HEADLINE_OVER_NCCL, HEADLINE_OF_ALONE = 1.21, 0.95  # speeds, on four ranks and more


@dataclass(frozen=True, slots=True)
class Point:
    """The product [m, k] @ [k, n] of one rank.

    Gathered: [m, k] lies in shards. Scattered: the result does. The table of shapes has the
    columns that a rank holds as n; in the scatter, which is the gather's counterpart in a
    transformer block, these are k.
    """

    kind: str
    m: int
    k: int
    n: int

    @property
    def held(self) -> int:
        """Columns or rows of the weight that this rank holds."""
        return self.n if self.kind == GATHER else self.k

    @property
    def flops(self) -> int:
        """Operations of each rank's product."""
        return 2 * self.m * self.k * self.n

    def __str__(self) -> str:
        return f"{self.kind} {self.m} x {self.k} x {self.n}"


def shapes(ranks: int) -> tuple[tuple[int, int, int], ...]:
    """What so many ranks measure, one on each GPU."""
    return (HEADLINE, *SHAPES) if ranks >= MANY else SHAPES


def points(shapes: tuple[tuple[int, int, int], ...]) -> Iterator[Point]:
    """Each shape both ways."""
    for m, k, n in shapes:
        yield Point(GATHER, m, k, n)
    for m, k, n in shapes:
        yield Point(SCATTER, m, n, k)


def bounds(point: Point, ms: Mapping[str, Any], ranks: int = 2) -> Iterator[Bound]:
    """What the times of a point must meet on H200: ours as decided over another's."""
    return _of_two(point, ms) if ranks < MANY else _of_many(point, ms)


def _of_many(point: Point, ms: Mapping[str, Any]) -> Iterator[Bound]:
    if point.m == HEADLINE[0]:
        for other, factor in (("NCCL", HEADLINE_OVER_NCCL), ("alone", HEADLINE_OF_ALONE)):
            yield Bound(f"{point}, over {other}", 1 / factor, ms["decided"] / ms[other])


def _of_two(point: Point, ms: Mapping[str, Any]) -> Iterator[Bound]:
    most = max(m for m, _, _ in SHAPES)
    times = OVER_NCCL.get(point.held, 1.0) if point.m == most else 1.0
    for other, factor in (("NCCL", times), ("torch", OVER_TORCH)):
        if ms.get(other):
            yield Bound(f"{point}, over {other}", 1 / factor, ms["decided"] / ms[other])
