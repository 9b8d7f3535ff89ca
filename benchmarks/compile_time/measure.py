# SPDX-License-Identifier: Apache-2.0
"""A depth -> seconds of the first training step, with the fuser and with Thunder alone.

    python -m benchmarks.compile_time.measure '{"layers": 4}'      prints a JSON

Each runs in a process of its own: what one compiled would be there for the next.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import thunder
import torch

from benchmarks.compile_time.layers import Function, other, residual, step
from thunder_fuser.base.stages import timed
from thunder_fuser.explain.jitted import Jitted, claims_of, fusions_of, jit
from thunder_fuser.explain.programs import compiled
from thunder_fuser.options import OptionValue

OURS, ALONE = "ours", "thunder"


@dataclass(frozen=True)
class Wanted:
    """What to measure: how deep, under which options of the fuser, and which of the two first."""

    layers: int
    first: str = ALONE
    options: dict[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of a first training step: by the clock, and of all cores with the compilers' processes."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Measured:
    """What one process found. stages: seconds and entries of each of our own stages."""

    layers: int
    seconds: dict[str, Seconds]
    stages: dict[str, tuple[float, int]]
    regions: int
    ops: int
    largest: int
    kernels: int
    error: float


def measure(wanted: Wanted) -> Measured:
    """Both first steps, after small ones of another function, with the garbage collector on."""
    makers = {OURS: lambda function: jit(function, strict=True, **wanted.options),
              ALONE: lambda function: thunder.jit(function, executors=[])}  # fmt: skip
    order = sorted(makers, key=lambda name: name != wanted.first)
    for name in order:
        step(makers[name](other), 1)
    seconds: dict[str, Seconds] = {}
    facts: dict[str, Any] = {}
    expected = step(residual, wanted.layers)
    for name in order:
        function = makers[name](residual)
        with timed() as stages:
            seconds[name], found = _first_step(function, wanted.layers)
        if name == OURS:
            spent = {stage: (one.seconds, one.calls) for stage, one in stages.items()}
            facts = {"stages": spent, "error": _error(found, expected), **_counts(function)}
        del function, found
    return Measured(wanted.layers, seconds, **facts)


def _first_step(function: Function, layers: int) -> tuple[Seconds, list[torch.Tensor]]:
    gc.collect()  # what was measured before is no burden to this
    wall, cpu = time.perf_counter(), _cpu_seconds()
    found = step(function, layers)
    return Seconds(time.perf_counter() - wall, _cpu_seconds() - cpu), found


def _cpu_seconds() -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(one) for one in who]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference, as a share of the largest expected number of its tensor."""
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def _counts(function: Jitted) -> dict[str, int]:
    sizes = [len(region.leaves) for region in claims_of(function).regions]
    texts = {
        source.text
        for one in fusions_of(function)
        for program in compiled(one)
        for _, source in program.kernels
    }
    return {
        "regions": len(sizes), "ops": sum(sizes), "largest": max(sizes), "kernels": len(texts),
    }  # fmt: skip


if __name__ == "__main__":
    # The tensors are small; on a busy machine threads that wait for each other would take longest.
    torch.set_num_threads(1)
    print(json.dumps(asdict(measure(Wanted(**json.loads(sys.argv[1]))))))
