# SPDX-License-Identifier: Apache-2.0
"""Two transformer blocks beside eager torch and torch.compile.

The demo's blocks, forward and backward; on CUDA also in CUDA graphs (the option cuda_graphs, beside
torch.compile's mode reduce-overhead). Fails if the RMS error of an output or a gradient against
float64 is over 1.2 times eager's own, with a floor of two units in the last place of its dtype.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.clock import medians
from benchmarks.kernels.points import DTYPES
from benchmarks.models import GPT2_SIZES
from benchmarks.options import add_device, add_small
from benchmarks.report import Report
from thunder_fuser.demo.accuracy import accuracy, results
from thunder_fuser.demo.blocks import BLOCKS, SMALL, Sizes, make_block, make_input
from thunder_fuser.explain.jitted import jit

# GPT-2's own width, and that of Llama 7B.
SIZES = {
    "cuda": {
        "gpt2": GPT2_SIZES,
        "llama": Sizes(batch=2, sequence=2048, width=4096, heads=32, hidden=11008),
    },
    "cpu": {"gpt2": Sizes(), "llama": Sizes()},
}
IN_A_ROW = 10
SECONDS = 4.0  # of running, for all contenders of one point together
HEADER = (
    "block  dtype    fwd+bwd us  in graphs  x eager x compile  graphs x reduce-overhead  "
    "worst error / limit (of), first call s"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_small(parser)
    parser.add_argument("--block", action="append", default=[], choices=list(BLOCKS))
    parser.add_argument("--dtype", action="append", default=[], choices=("bf16", "f32"))
    parser.add_argument(
        "--compile", action="append", choices=list(DTYPES),
        help="dtypes that torch.compile is timed with; on CUDA bf16 if not given",
    )


def run(given: argparse.Namespace, report: Report) -> None:
    device = given.device
    compiled = given.compile or ["bf16"] * (device.type == "cuda")
    report.lines.append(HEADER)
    for name in given.block or BLOCKS:
        sizes = SMALL if given.small else SIZES[device.type][name]
        for dtype in given.dtype or ("bf16", "f32"):
            title = f"{name} {dtype}"
            with report.section(title):
                block = make_block(name, sizes, DTYPES[dtype], device)
                sample = make_input(sizes, DTYPES[dtype], device)
                found = measure(block, sample, dtype in compiled)
                report.figures[title] = {"sizes": str(sizes), **found}
                report.lines.append(line(name, dtype, found))
                worse = [name for name, share in found["shares"].items() if not share <= 1]
                report.check(title, not worse, f"RMS error over its limit: {', '.join(worse)}")
            if device.type == "cuda":
                torch.cuda.empty_cache()


Sample = tuple[torch.Tensor, torch.Tensor]


def measure(block: nn.Module, sample: Sample, with_compile: bool) -> dict[str, Any]:
    """Errors over their limits, and microseconds of every contender."""
    jitted = jit(block, strict=True)
    start = time.perf_counter()
    results(jitted, block, *sample)
    found: dict[str, Any] = {"first_call_s": time.perf_counter() - start}
    found["shares"] = {one.name: one.fused / one.limit for one in accuracy(block, jitted, [sample])}
    calls = {
        "fuser": lambda: results(jitted, block, *sample),
        "eager": lambda: results(block, block, *sample),
    }
    if sample[0].is_cuda:
        graphs = jit(block, strict=True, cuda_graphs=True)
        calls["graphs"] = lambda: results(graphs, block, *sample)
    if with_compile:
        torch._dynamo.reset()
        found |= add_compiled(calls, block, sample)
        if sample[0].is_cuda:
            reduced = add_compiled(calls, block, sample, "reduce-overhead")
            found |= {f"reduced_{key}": value for key, value in reduced.items()}
    rows = {name: _in_a_row(call) for name, call in calls.items()}
    us = medians(rows, SECONDS, sample[0].device)
    found["us"] = {name: one / IN_A_ROW for name, one in us.items()}
    return found


def _in_a_row(call: Callable[[], Any]) -> Callable[[], None]:
    """Steps without a wait between them, as in training: the host may run ahead of the device."""

    def run() -> None:
        for _ in range(IN_A_ROW):
            call()

    return run


def add_compiled(
    calls: dict[str, Callable[[], Any]], block: nn.Module, sample: Sample, mode: str = "default"
) -> dict[str, Any]:
    """Adds torch.compile to the contenders; says how long its first call took, or why it failed."""
    compiled = torch.compile(block, dynamic=False, mode=mode)
    start = time.perf_counter()
    try:
        results(compiled, block, *sample)
    except Exception as error:  # a baseline that fails is a fact to report, not our failure
        return {"compile_error": f"{type(error).__name__}: {error}"}
    name = "compile" if mode == "default" else mode
    calls[name] = lambda: results(compiled, block, *sample)
    return {"compile_first_call_s": time.perf_counter() - start}


def line(name: str, dtype: str, found: dict[str, Any]) -> str:
    """One row of the table."""
    us, shares = found["us"], found["shares"]
    worst = max(shares, key=lambda key: shares[key])
    graphs = f"{us['graphs']:10.0f}" if "graphs" in us else f"{'-':>10}"
    compiled = f"{us['compile'] / us['fuser']:9.2f}" if "compile" in us else f"{'-':>9}"
    has_both = "graphs" in us and "reduce-overhead" in us
    reduced = f"{us['reduce-overhead'] / us['graphs']:25.2f}" if has_both else f"{'-':>25}"
    return (
        f"{name:6} {dtype:5} {us['fuser']:10.0f} {graphs} {us['eager'] / us['fuser']:8.2f} "
        f"{compiled} {reduced} {shares[worst]:7.2f} ({worst}) {found['first_call_s']:7.1f}"
    )
