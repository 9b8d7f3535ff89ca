# SPDX-License-Identifier: Apache-2.0
"""Kernels compiled for ten sizes of a batch; what a new size costs."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.kernels.operation import Operation, make_definition, make_inputs
from benchmarks.kernels.points import OPERATIONS
from benchmarks.options import add_compile, add_device
from benchmarks.report import Report
from thunder_fuser.compiler import emit, schedule
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.explain.jitted import jit
from thunder_fuser.options import options
from thunder_fuser.runtime.binaries import binaries
from thunder_fuser.target import Target, named

# (batch, sequence): even and odd, of one row and of 65536.
BATCHES = (
    (1, 512), (2, 512), (4, 384), (8, 128), (3, 77), (5, 100), (16, 1024), (32, 2048), (7, 1000),
    (64, 333),
)  # fmt: skip
COLUMNS = 768
NAMES = (
    "bias_gelu", "silu_mul", "dropout_add", "softmax", "layer_norm", "rms_norm", "transpose",
    "column_sum", "layer_norm_bwd",
)  # fmt: skip
SEQUENCES = (16, 24, 40, 33, 128, 7, 100, 96, 64, 256)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_compile(parser, default=False)


def run(given: argparse.Namespace, report: Report) -> None:
    for target in ("cpu", "h200"):
        with report.section(f"texts for {target}"):
            found = {name: _texts(OPERATIONS[name], named(target)) for name in NAMES}
            report.figures[target] = found
            report.lines += [
                f"{target:5} {name:15} {one['texts']:3} texts of {one['kernels']:3} kernels "
                f"{one['ms']:7.1f} ms a size"
                for name, one in found.items()
            ]
    with tempfile.TemporaryDirectory() as empty, options(cache_dir=empty):
        _compiled(given, report)


def _compiled(given: argparse.Namespace, report: Report) -> None:
    """What is compiled where nothing is on disk."""
    with report.section("calls"):
        shares = {name: _calls(OPERATIONS[name], given.device) for name in NAMES}
        report.figures["calls"] = shares
        report.lines += [
            f"calls {name:15} first {one['first_ms']:8.1f} ms, others {one['other_ms']:8.1f} ms, "
            f"{one['compiled']} compiled"
            for name, one in shares.items()
        ]
    with report.section("block"):
        block = report.figures["block"] = _block(given.device, given.compile)
        report.lines += [f"block {name}: {value}" for name, value in block.items()]


def _shape(batch: int, sequence: int) -> tuple[int, int]:
    return batch * sequence, COLUMNS


def _texts(op: Operation, target: Target) -> dict[str, Any]:
    """Different kernel texts for all sizes, and Python's median time; nothing is compiled."""
    texts, count, times = set(), 0, []
    fd: FusionDefinition | None = None
    for batch in BATCHES:
        shape = _shape(*batch)
        arguments = op.arguments(shape)
        inputs = [torch.empty(a.shape, dtype=torch.bfloat16, device="meta") for a in arguments]
        fd = fd or make_definition(op, shape, inputs)
        start = time.process_time()
        segmented = fd.plan(inputs, target=target)
        aligned = dict.fromkeys(segmented.fusion.inputs, 16)
        made = [emit(schedule(s, aligned)) for s in segmented.segments]
        times.append((time.process_time() - start) * 1e3)
        texts |= {source.text for source in made if source}
        count += sum(source is not None for source in made)
    return {"texts": len(texts), "kernels": count, "ms": statistics.median(times)}


def _calls(op: Operation, device: torch.device) -> dict[str, Any]:
    """Milliseconds of the first call, and the median of those of all other sizes.

    Each less those of a second call, which only runs the kernels.
    """
    before, times = binaries().compiled, []
    fd: FusionDefinition | None = None
    for batch in BATCHES:
        shape = _shape(*batch)
        inputs = make_inputs(op, shape, torch.bfloat16, device)
        fd = fd or make_definition(op, shape, inputs)
        times.append(_milliseconds(fd, inputs) - _milliseconds(fd, inputs))
    compiled = binaries().compiled - before
    return {"first_ms": times[0], "other_ms": statistics.median(times[1:]), "compiled": compiled}


def _milliseconds(fd: FusionDefinition, inputs: Sequence[torch.Tensor]) -> float:
    start = time.perf_counter()
    fd.execute(inputs)
    return (time.perf_counter() - start) * 1e3


class Block(torch.nn.Module):
    """What stands between the matrix products of a transformer, and two of them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.gelu(self.up(self.norm(x)), approximate="tanh")
        x = x + self.down(inner)
        return torch.softmax(x, -1) * x.mean(1, keepdim=True)


def _block(device: torch.device, with_compile: bool) -> dict[str, Any]:
    """Kernels compiled for each sequence length, forward and backward, and seconds for all."""
    model = Block().to(device)
    before = binaries().compiled
    counts, seconds = _train(jit(model, strict=True), device)
    new = [after - start for start, after in zip([before, *counts], counts, strict=False)]
    found = {"lengths": SEQUENCES, "compiled": new, "seconds": seconds}
    if with_compile:
        found["torch.compile seconds"] = _train(torch.compile(model), device)[1]
    return found


def _train(call: Callable[..., torch.Tensor], device: torch.device) -> tuple[list[int], float]:
    counts = []
    start = time.perf_counter()
    for length in SEQUENCES:
        x = torch.randn(4, length, 64, device=device, requires_grad=True)
        call(x).sum().backward()
        counts.append(binaries().compiled)
    return counts, time.perf_counter() - start
