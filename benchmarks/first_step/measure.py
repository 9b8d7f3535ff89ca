# SPDX-License-Identifier: Apache-2.0
"""A model and what compiles it -> seconds of the first training step, and what it did.

    python -m benchmarks.first_step.measure '{"model": "gpt2", "contender": "ours"}'   prints a JSON

What a process needs once (imports, a device's context) is done before, by a step of another
function. What is compiled lies in folders that the environment names.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import resource
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import thunder
import torch

from benchmarks.clock import wait
from benchmarks.whole_models.zoo import ENTRIES
from thunder_fuser.base.stages import timed
from thunder_fuser.explain.jitted import jit
from thunder_fuser.runtime.binaries import binaries

OURS, ALONE, COMPILE = "ours", "Thunder", "torch.compile"
_MAKERS: dict[str, Callable[[Any], Any]] = {
    OURS: lambda function: jit(function, strict=True),
    ALONE: thunder.jit,
    COMPILE: lambda function: torch.compile(function, dynamic=False),
}


@dataclass(frozen=True)
class Wanted:
    """What to measure. counts: the calls of a profile, which slows the step down."""

    model: str
    contender: str
    device: str = "cpu"
    counts: bool = False


@dataclass(frozen=True)
class Measured:
    """Of a first training step: seconds by the clock and of all cores with compilers' processes.

    calls: of Python functions, 0 if they were not counted. kernels and found: compiled, and loaded
    from the store. stages: entries of each of our own stages.
    """

    seconds: float
    cpu_seconds: float
    loss: float
    calls: int
    kernels: int
    found: int
    stages: dict[str, int] = field(default_factory=dict)


def measure(wanted: Wanted) -> Measured:
    """The first step of a model with random weights, the same at each call."""
    device, make = torch.device(wanted.device), _MAKERS[wanted.contender]
    entry = ENTRIES[wanted.model]
    torch.manual_seed(0)
    model, inputs = entry.make(getattr(entry, device.type))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = model.to(device=device, dtype=dtype).train()
    batch = [one.to(device) for one in inputs()]
    batch = [one.to(dtype) if one.is_floating_point() else one for one in batch]
    _warm_up(make, device)
    profile = cProfile.Profile() if wanted.counts else None
    before, clock, cpu = binaries(), time.perf_counter(), _cpu_seconds()
    with timed() as stages, profile or nullcontext():
        loss = make(model)(*batch)
        loss.backward()
        wait(device)
    after = binaries()
    return Measured(
        time.perf_counter() - clock, _cpu_seconds() - cpu, float(loss.detach()),
        pstats.Stats(profile).total_calls if profile else 0,  # type: ignore[attr-defined]
        after.compiled - before.compiled, after.from_store - before.from_store,
        {name: one.calls for name, one in stages.items()},
    )  # fmt: skip


def _warm_up(make: Callable[[Any], Any], device: torch.device) -> None:
    x = torch.rand(8, 8, device=device, requires_grad=True)
    make(lambda x: (torch.sin(x) @ x * 2).sum())(x).backward()
    wait(device)


def _cpu_seconds() -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, who))


if __name__ == "__main__":
    print(json.dumps(asdict(measure(Wanted(**json.loads(sys.argv[1]))))))
