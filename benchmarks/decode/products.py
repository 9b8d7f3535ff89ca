# SPDX-License-Identifier: Apache-2.0
"""Matrix products of few rows alone, ours and torch's, beside clone's rate.

    linear(x: bf16[rows, k], w: bf16[n, k]), w cold in every call
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.clock import Calls, cpu_times, cuda_times, sets_for
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.explain.shown import table
from thunder_fuser.options import compile_options

OURS, TORCH = "ours", "torch"
LARGE = 8 << 20  # bytes of the weights for which the goal holds
GOAL = 0.70  # of clone's rate
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight [n, k], how often a token of the model reads such a one, and whether it is stored
    as [k, n]."""

    model: str
    name: str
    n: int
    k: int
    count: int
    is_turned: bool = False

    @property
    def bytes(self) -> int:
        return self.n * self.k * DTYPE.itemsize


def _of_llama(
    model: str, layers: int, vocabulary: int, widths: tuple[int, int, int]
) -> tuple[Weight, ...]:
    width, kv, hidden = widths
    return (
        Weight(model, "q, output", width, width, 2 * layers),
        Weight(model, "k, v", kv, width, 2 * layers),
        Weight(model, "gate, up", hidden, width, 2 * layers),
        Weight(model, "down", width, hidden, layers),
        Weight(model, "head", vocabulary, width, 1),
    )


WEIGHTS = (
    *_of_llama("Llama-3.2-1B", 16, 128256, (2048, 512, 8192)),
    Weight("turned", "gate, up", 8192, 2048, 1, is_turned=True),
    Weight("turned", "down", 2048, 8192, 1, is_turned=True),
    *_of_llama("Qwen2.5-0.5B", 24, 151936, (896, 128, 4864)),
    *_of_llama("Llama-3-8B", 32, 128256, (4096, 1024, 14336)),
)
SMALL = _of_llama("small", 2, 1024, (256, 128, 512))
ROWS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds of each contender; floor: those in which clone moves as many bytes.

    schedulers: of ours; error: the largest difference from float64's product over the largest one
    of torch's.
    """

    weight: Weight
    rows: int
    us: Mapping[str, float]
    floor: float
    schedulers: tuple[str, ...]
    error: float

    def of_floor(self, name: str) -> float:
        return self.floor / self.us[name]

    def content(self) -> dict[str, Any]:
        """The figures for the JSON."""
        shares = {name: self.of_floor(name) for name in self.us}
        return {**asdict(self), "of_floor": shares}


def clone_rate(device: torch.device, seconds: float, small: bool) -> float:
    """Bytes a microsecond that clone reads and writes, in its largest of two ways."""
    block = torch.ones((4 if small else 512) << 20, dtype=torch.uint8, device=device)
    calls = {"clone": [block.clone], "not": [partial(torch.bitwise_not, block.view(torch.int32))]}
    return 2 * block.nbytes / min(_times(calls, seconds, device).values())


def measure(
    weight: Weight, rows: int, rate: float, seconds: float, device: torch.device
) -> Measured:
    """One product."""
    copies = sets_for(weight.bytes, device)
    shape = (weight.k, weight.n) if weight.is_turned else (weight.n, weight.k)
    matrices = [torch.randn(shape, dtype=DTYPE, device=device) for _ in range(copies)]
    x = torch.randn(rows, weight.k, dtype=DTYPE, device=device)
    product = torch.matmul if weight.is_turned else F.linear
    runs = {TORCH: product}
    ours = _definition(weight, x, matrices[0])
    segments = ours.program([x, matrices[0]]).segmented.segments
    if rows <= compile_options().few_rows:
        runs[OURS] = ours.entry.prepare().callable()
    calls = {name: [partial(run, x, matrix) for matrix in matrices] for name, run in runs.items()}
    return Measured(
        weight, rows, _times(calls, seconds, device), weight.bytes / rate,
        tuple(segment.scheduler.name for segment in segments),
        _error(x, matrices[0], runs),
    )  # fmt: skip


def _definition(weight: Weight, x: torch.Tensor, matrix: torch.Tensor) -> FusionDefinition:
    with FusionDefinition() as fd:
        product = fd.ops.matmul if weight.is_turned else fd.ops.linear
        fd.add_output(product(fd.from_pytorch(x), fd.from_pytorch(matrix)))
    return fd


def _times(calls: Calls, seconds: float, device: torch.device) -> dict[str, float]:
    if device.type == "cuda":
        spreads, _ = cuda_times(calls, seconds, graphs=True)
    else:
        spreads = cpu_times(calls, seconds, keep=False)
    return {name: spread.us for name, spread in spreads.items()}


def _error(x: torch.Tensor, matrix: torch.Tensor, runs: Mapping[str, Any]) -> float:
    """The largest error of ours over torch's, against float64, of 512 results."""
    part = slice(0, 512)
    turned = runs[TORCH] is torch.matmul
    exact = x.double() @ (matrix[:, part] if turned else matrix[part].t()).double()
    errors = {}
    for name, run in runs.items():
        found = run(x, matrix)
        found = found if isinstance(found, torch.Tensor) else found[0]
        errors[name] = float((found[:, part].double() - exact).abs().max())
    others = [error for name, error in errors.items() if name != TORCH]
    return max(others, default=errors[TORCH]) / max(errors[TORCH], 1e-9)


def text(found: list[Measured]) -> str:
    """The table, and for each model and number of rows what all its products take."""
    head = ("model", "weight", "n", "k", "rows", "floor us", "torch us", "ours us", "of floor")
    lines = [
        (
            one.weight.model, one.weight.name, str(one.weight.n), str(one.weight.k), str(one.rows),
            f"{one.floor:.1f}", f"{one.us[TORCH]:.1f}",
            f"{one.us[OURS]:.1f}" if OURS in one.us else "-",
            f"{one.of_floor(OURS):.2f}" if OURS in one.us else f"({one.of_floor(TORCH):.2f})",
        )
        for one in found
    ]  # fmt: skip
    return "\n".join((table(head, lines), "", *sums(found)))


def sums(found: list[Measured]) -> Iterator[str]:
    """All products of a token of each model: `Llama-3.2-1B, 1 row: ours 0.75 ms, 0.77 of ...`"""
    for model, rows in dict.fromkeys((one.weight.model, one.rows) for one in found):
        of_model = [one for one in found if (one.weight.model, one.rows) == (model, rows)]
        floor = sum(one.floor * one.weight.count for one in of_model)
        for name in (OURS, TORCH):
            if all(name in one.us for one in of_model):
                us = sum(one.us[name] * one.weight.count for one in of_model)
                share = f"{floor / us:.2f} of the floor"
                yield f"{model}, rows {rows}: {name} {us / 1e3:.3f} ms, {share}"


def gaps(found: list[Measured]) -> Iterator[tuple[str, bool, str]]:
    """(product, whether it is met, what it is) for the goal of large weights."""
    for one in found:
        if OURS in one.us and one.weight.bytes >= LARGE and not one.weight.is_turned:
            share = one.of_floor(OURS)
            name = f"{one.weight.model} {one.weight.name}, rows {one.rows}"
            yield name, share >= GOAL, f"{share:.2f} of clone's rate, at least {GOAL}"
