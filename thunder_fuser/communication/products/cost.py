# SPDX-License-Identifier: Apache-2.0
"""A cost model: does a product with communication run as a pipeline, and in how many chunks?

It simulates the pipeline and the collective with the machine's rates: one clock for the matrix
products, one for the copy engine. It reads only sizes, dtype, the number of ranks and the rates
that the ranks have agreed on, so all ranks decide alike.

>>> print(decide(KINDS[0], 16384, 8192, 4096, dtype="bfloat16", world=2, rates=H200))
all_gather_matmul 16384 x 8192 x 4096 bfloat16, 2 ranks: pipeline in 2 chunks; \
predicted: pipeline 1.467 ms, collective 1.989 ms
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, isfinite

from thunder_fuser.errors import CommunicationError

KINDS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")
LEAST_CHUNK = 8 << 20  # bytes of a copy: smaller ones were not measured
_CHUNKS = (1, 2, 4, 8)
# The constants below and H200 are those of benchmarks/results/h200_overlap.json.
# Rows and columns of a kernel's tile, and its rate relative to the largest tile's.
_TILES = ((128, 256, 1.0), (128, 128, 0.95), (64, 128, 0.85), (64, 64, 0.7))
_RAMP = 4e-6  # seconds at a product's begin and end, when few multiprocessors are busy
_CONTENTION = 1e-13  # seconds by which each byte that is copied delays the products beside it
# The latency of a copy that follows another one. A get waits for the peer's flag, a put does not.
_NEXT_PUT, _NEXT_GET = 8e-6, 14e-6
_EQUAL = 1.005  # predictions that differ by a smaller factor count as equal
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """The rates of a machine: seconds, bytes a second in one direction, operations a second.

    flops: pairs (dtype, rate of a large matrix product). launch: from the end of one kernel to
    the begin of the next. copy: by a copy engine to a peer; 0 if no peer can be reached.
    collective: what a rank receives in an all-gather. units: multiprocessors; each computes a tile.
    """

    flops: tuple[tuple[str, float], ...]
    launch: float
    copy: float
    copy_latency: float
    collective: float
    collective_latency: float
    units: int

    def rate(self, dtype: str) -> float:
        """Operations a second of products in this dtype; the lowest rate if it has none."""
        known = dict(self.flops)
        return known.get(dtype, min(known.values()))


# Measured on two H200 of one host without multicast; what tests and predictions use.
H200 = Bandwidths(
    flops=(("bfloat16", 791e12), ("float16", 760e12), ("float32", 51e12)), launch=2.8e-6,
    copy=394e9, copy_latency=19e-6, collective=255e9, collective_latency=22e-6, units=132,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decision:
    """How a product with communication runs, and the predicted seconds of both alternatives."""

    kind: str
    sizes: tuple[int, int, int]
    dtype: str
    world: int
    pipeline: bool
    chunks: int
    pipeline_seconds: float
    collective_seconds: float

    @property
    def way(self) -> str:
        """What runs, in words."""
        plural = "s" * (self.chunks > 1)
        return f"pipeline in {self.chunks} chunk{plural}" if self.pipeline else "collective"

    def __str__(self) -> str:
        m, k, n = self.sizes
        return (
            f"{self.kind} {m} x {k} x {n} {self.dtype}, {self.world} ranks: {self.way};"
            f" predicted: pipeline {_ms(self.pipeline_seconds)},"
            f" collective {_ms(self.collective_seconds)}"
        )


@dataclass(frozen=True, slots=True)
class _ProductSizes:
    """What is predicted. m, k, n: the whole product on a rank is [m, k] @ [k, n]."""

    m: int
    k: int
    n: int
    dtype: str
    world: int
    rates: Bandwidths

    @property
    def rows(self) -> int:
        """The rows of each rank's part."""
        return ceil(self.m / self.world)

    def product(self, rows: int) -> float:
        """The seconds of a product with so many rows."""
        tiles = (
            (ceil(ceil(rows / high) * ceil(self.n / wide) / self.rates.units) * high * wide / rate)
            for high, wide, rate in _TILES
        )
        flops = 2 * self.k * min(tiles) * self.rates.units
        return self.rates.launch + _RAMP + flops / self.rates.rate(self.dtype)

    def bytes(self, columns: int) -> int:
        """The bytes of a rank's part with so many columns."""
        return self.rows * columns * BYTES.get(self.dtype, 8)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms" if isfinite(seconds) else "impossible"


def decide(
    kind: str, m: int, k: int, n: int, *, dtype: str, world: int, rates: Bandwidths
) -> Decision:
    """Chooses the shorter predicted time; a collective if no copy engine reaches a peer.

    Of equal predictions it takes the one with the most chunks: there a late peer delays least.

    m, k, n: one rank computes [m, k] @ [k, n]. dtype: a name, as "bfloat16".
    """
    if kind not in KINDS:
        raise CommunicationError("kind", expected=f"one of {', '.join(KINDS)}", got=repr(kind))
    problem = _ProductSizes(m, k, n, dtype, world, rates)
    collective = _collective_seconds(kind, problem)
    can = rates.copy > 0 and world > 1 and m >= world and (kind == KINDS[0] or not m % world)
    times = {chunks: _SECONDS[kind](problem, chunks) for chunks in _chunks(kind, problem)}
    best = min(times.values())
    chunks = max(n for n, seconds in times.items() if seconds <= best * _EQUAL) if can else 1
    seconds = times[chunks] if can else float("inf")
    return Decision(
        kind, (m, k, n), dtype, world, seconds < collective, chunks, seconds, collective
    )


def pipeline_seconds(
    kind: str, m: int, k: int, n: int, *, dtype: str, world: int, rates: Bandwidths, chunks: int
) -> float:
    """The predicted seconds of a pipeline in so many chunks; the arguments are `decide`'s."""
    return _SECONDS[kind](_ProductSizes(m, k, n, dtype, world, rates), chunks)


def _chunks(kind: str, problem: _ProductSizes) -> list[int]:
    """The numbers of chunks whose copies are large enough. A scatter needs at least two: with one,
    no product would run during its copies."""
    size = problem.bytes(problem.k if kind == KINDS[0] else problem.n)
    least = 1 if kind == KINDS[0] else 2
    return [n for n in _CHUNKS if n == least or (n > least and size >= n * LEAST_CHUNK)]


def _collective_seconds(kind: str, problem: _ProductSizes) -> float:
    rates = problem.rates
    if problem.world == 1 or not rates.collective:
        return problem.product(problem.m)
    size = problem.bytes(problem.k if kind == KINDS[0] else problem.n)
    rounds = 2 if kind == KINDS[2] else 1
    sent = rounds * (problem.world - 1) * size / rates.collective
    return problem.product(problem.m) + rates.collective_latency + sent


def _gather_seconds(problem: _ProductSizes, chunks: int) -> float:
    if not problem.rates.copy:
        return float("inf")
    size, latency = problem.bytes(problem.k) / chunks, problem.rates.copy_latency
    product = problem.product(ceil(problem.rows / chunks))
    clock, copies = problem.product(problem.rows), 0.0
    for number in range((problem.world - 1) * chunks):
        copies += (min(latency, _NEXT_PUT) if number else latency) + size / problem.rates.copy
        clock = max(clock + _CONTENTION * size, copies) + product
    return clock


def _ring(problem: _ProductSizes, chunks: int) -> list[float]:
    """The seconds until each chunk of this rank's own sum is complete."""
    if not problem.rates.copy:
        return [float("inf")]
    size, latency = problem.bytes(problem.n) / chunks, problem.rates.copy_latency
    delay = _CONTENTION * size
    product = problem.product(ceil(problem.rows / chunks))
    clock = copies = 0.0
    done = [0.0] * chunks
    for step in range(problem.world):
        for at in range(chunks):
            if step:  # all ranks are equally fast, so the rank before has its chunk when we do
                waited = min(latency, _NEXT_GET) if copies else latency
                copies = max(copies, done[at]) + waited + size / problem.rates.copy
                clock = max(clock, copies) + delay
            clock += product
            done[at] = clock
    return done


def _all_reduce_seconds(problem: _ProductSizes, chunks: int) -> float:
    copies = 0.0
    for done in _ring(problem, chunks):
        latency = min(problem.rates.copy_latency, _NEXT_GET)
        sent = latency + problem.bytes(problem.n) / chunks / problem.rates.copy
        copies = max(copies, done) + (problem.world - 1) * sent
    return copies


_SECONDS: dict[str, Callable[[_ProductSizes, int], float]] = {
    KINDS[0]: _gather_seconds,
    KINDS[1]: lambda problem, chunks: _ring(problem, chunks)[-1],
    KINDS[2]: _all_reduce_seconds,
}
