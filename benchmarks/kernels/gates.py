# SPDX-License-Identifier: Apache-2.0
"""Figures -> which of the project's bounds they meet, and by how much they miss the others.

A gate is about throughput, so points that fit into a cache are not its business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.kernels.figure import CLONE, COMPILE, READ, Figure

LEAST_BYTES = 150 << 20  # three times the second-level cache of an H200


@dataclass(frozen=True, slots=True)
class Gate:
    """The share of a yardstick's speed that each point of some operations has to reach.

    columns: the first and last size of the last axis it is about.
    """

    name: str
    ops: tuple[str, ...]
    least: float
    of: str = CLONE
    columns: tuple[int, int] = (1, 1 << 62)

    def holds_for(self, figure: Figure) -> bool:
        """Whether a point is its business and was measured."""
        low, high = self.columns
        known = figure.op in self.ops and low <= figure.shape[-1] <= high
        return known and figure.bytes >= LEAST_BYTES and figure.times_faster(self.of) is not None


_FORWARD = ("softmax", "layer_norm", "rms_norm")
GATES = (
    Gate(
        "pointwise and SwiGLU",
        ("add", "bias_gelu", "bias_gelu_bwd", "silu_mul", "silu_mul_bwd"), 0.93,
    ),
    Gate("softmax and norms, 1K to 16K columns", _FORWARD, 0.85, columns=(1024, 16384)),
    Gate("softmax and norms, to 128K columns", _FORWARD, 0.80, columns=(16385, 131072)),
    Gate("cross entropy", ("cross_entropy",), 0.85, of=READ),
    Gate("norm backward", ("layer_norm_bwd", "rms_norm_bwd"), 0.70),
    Gate("transpose", ("transpose", "swap_heads", "nchw_to_nhwc", "nhwc_to_nchw"), 0.80),
    Gate("column sum", ("column_sum",), 0.80),
)
LEAST_OF_COMPILE = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """state: met, MISSED or not measured. lowest: of all points. misses: (point, share)."""

    name: str
    bound: str
    state: str
    points: int = 0
    lowest: float | None = None
    misses: tuple[tuple[str, float], ...] = ()


def verdicts(figures: Sequence[Figure]) -> list[Verdict]:
    """One for each gate, and one for the mean against torch.compile."""
    return [*(_verdict(gate, figures) for gate in GATES), _against_compile(figures)]


def _verdict(gate: Gate, figures: Sequence[Figure]) -> Verdict:
    bound = f"{gate.least:.0%} of {gate.of}"
    shares = {f.title: f.times_faster(gate.of) or 0.0 for f in figures if gate.holds_for(f)}
    # A wrong result has no speed.
    shares |= {f.title: 0.0 for f in figures if f.op in gate.ops and f.state in ("wrong", "failed")}
    if not shares:
        return Verdict(gate.name, bound, "not measured")
    misses = tuple((title, share) for title, share in shares.items() if share < gate.least)
    state = "MISSED" if misses else "met"
    return Verdict(gate.name, bound, state, len(shares), min(shares.values()), misses)


def _against_compile(figures: Sequence[Figure]) -> Verdict:
    name, bound = "all points together", f"{LEAST_OF_COMPILE:.2f} of torch.compile"
    mean, points = geometric_mean(figures, COMPILE)
    if mean is None:
        return Verdict(name, bound, "not measured")
    state = "met" if mean >= LEAST_OF_COMPILE else "MISSED"
    return Verdict(name, bound, state, points, mean)


def geometric_mean(figures: Sequence[Figure], other: str) -> tuple[float | None, int]:
    """How many times faster than another contender, over the points where both were timed."""
    found = [share for f in figures if (share := f.times_faster(other)) is not None]
    if not found:
        return None, 0
    return math.exp(sum(map(math.log, found)) / len(found)), len(found)


def worst(figures: Sequence[Figure], other: str, count: int = 5) -> list[tuple[str, float]]:
    """The points where ours does worst against another contender."""
    found = [(f.title, share) for f in figures if (share := f.times_faster(other)) is not None]
    return sorted(found, key=lambda one: one[1])[:count]
