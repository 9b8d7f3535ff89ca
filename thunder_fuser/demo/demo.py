# SPDX-License-Identifier: Apache-2.0
"""The demo: two transformer blocks through the fuser, forward and backward -> a printed report.

For each block and dtype: the forward trace, a table of fusions with their times and those of
torch's ops, the ops that were not fused and why, the cache's counts, and the errors of the fused
and the eager block against float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import benchmark

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.demo.accuracy import Accuracy, accuracy
from thunder_fuser.demo.blocks import BLOCKS, SMALL, Sizes, make_block, make_input
from thunder_fuser.executors.record.torch_function import torch_function
from thunder_fuser.executors.run.region_callable import RegionCallable
from thunder_fuser.explain.jitted import Jitted, fusions_of, jit, trace_text
from thunder_fuser.explain.programs import Compiled, compiled
from thunder_fuser.explain.reports import fusion_table, report, why
from thunder_fuser.explain.shown import table
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.presegment.specialise import InputKey
from thunder_fuser.runtime.binaries import Binaries, binaries
from thunder_fuser.runtime.torch_types import to_torch_dtype

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SAMPLES = 4


@dataclass(frozen=True, slots=True)
class Demo:
    """What to run. device: cpu or cuda; emulate: run the CUDA text on the CPU."""

    device: torch.device
    dtypes: tuple[str, ...] = tuple(DTYPES)
    emulate: bool = False
    small: bool = False

    @property
    def sizes(self) -> Sizes:
        return SMALL if self.small else Sizes()

    @property
    def where(self) -> str:
        return "the emulator" if self.emulate else str(self.device)


def demo(setup: Demo) -> bool:
    """Prints everything; True if every tolerance holds."""
    before = binaries()
    good = [_run_block(setup, name, dtype) for name in BLOCKS for dtype in setup.dtypes]
    print(_compiled(before))
    print("every error is within its tolerance" if all(good) else "an error exceeds its tolerance")
    return all(good)


def _compiled(before: Binaries) -> str:
    """The kernels compiled since, those found in the store, and the time that both took."""
    compiled, loaded, seconds = (now - then for now, then in zip(binaries(), before, strict=True))
    return f"Kernels: {compiled} compiled, {loaded} found in the store, {seconds:.2f} s in all\n"


def _run_block(setup: Demo, name: str, dtype: str) -> bool:
    """One block in one dtype."""
    torch_dtype = DTYPES[dtype]
    title = f"{name} block, {dtype}{list(setup.sizes.shape)}, on {setup.where}"
    print(f"{title}\n{'=' * len(title)}\n")
    block = make_block(name, setup.sizes, torch_dtype, setup.device)
    jitted = jit(block, strict=True, emulate=setup.emulate)
    samples = [make_input(setup.sizes, torch_dtype, setup.device, seed) for seed in range(SAMPLES)]
    cache = FusionCache.get()
    hits, misses = cache.hits, cache.misses
    errors = accuracy(block, jitted, samples)
    counts = f"{cache.hits - hits} fusions of this block found, {cache.misses - misses} new"
    _print_fusions(setup, jitted)
    print(f"Cache: {counts}; {cache.num_fusions()} held now\n")
    return _print_errors(errors)


def _print_fusions(setup: Demo, jitted: Jitted) -> None:
    print(f"Forward trace\n\n{trace_text(jitted)}\n")
    # The emulator's times say nothing about a GPU.
    times = None if setup.emulate else times_of(jitted, setup.device)
    print(f"Fusions\n\n{fusion_table(report(jitted).fusions, times)}\n")
    print(f"Left to torch\n\n{why(jitted)}\n")


def _print_errors(errors: Sequence[Accuracy]) -> bool:
    rows = [
        (error.name, f"{error.fused:.2e}", f"{error.eager:.2e}", f"{error.floor:.2e}",
         "ok" if error.passes else "TOO LARGE")
        for error in errors
    ]
    print(f"RMS error against float64, {SAMPLES} inputs\n")
    print(table(("value", "fused", "eager", "2 ulp", ""), rows), end="\n")
    print("  ok: at most 1.2 times eager's error, or 2 ulp of the dtype\n")
    return all(error.passes for error in errors)


def times_of(jitted: Jitted, device: torch.device) -> dict[str, tuple[float, float]]:
    """{fusion: seconds of a fused and of an op-by-op call of its newest program}"""
    pairs = ((fusion, compiled(fusion)) for fusion in fusions_of(jitted))
    return {f.name: _times(f, programs[-1], device) for f, programs in pairs if programs}


def _times(fusion: RegionCallable, program: Compiled, device: torch.device) -> tuple[float, float]:
    inputs = zip(program.fusion.inputs, program.keys, strict=True)
    arguments = [_argument(program.fusion.tensors[n], key, device) for n, key in inputs]
    by_op = torch_function(fusion.region, fusion.name)
    with torch.no_grad():
        fused = _seconds(lambda: program.program.run(*arguments))
        return fused, _seconds(lambda: by_op(*arguments))


def _seconds(call: Callable[[], object]) -> float:
    """The least of many short rounds: on a busy machine, other processes slow most of them down."""
    timer = benchmark.Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return float(min(timer.blocked_autorange(min_run_time=0.05).times))


def _argument(view: TensorView, key: InputKey, device: torch.device) -> Any:
    """A random argument laid out as the program expects."""
    dtype = to_torch_dtype(view.dtype)
    if view.is_scalar:
        return key.value if key.value is not None else 1
    last = sum((n - 1) * s for n, s in zip(key.sizes, key.strides, strict=True))
    where = torch.device("cpu") if view.is_cpu else device
    values = torch.rand(last + 1 if all(key.sizes) else 0, device=where)
    return (values * (1 if dtype.is_floating_point else 2)).to(dtype).as_strided(
        key.sizes, key.strides
    )
