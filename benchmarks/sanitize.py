# SPDX-License-Identifier: Apache-2.0
"""Small runs of every kind of kernel, for compute-sanitizer.

    compute-sanitizer --tool racecheck python -m benchmarks sanitize --device cuda

With --device cpu they run in the emulator. Numbers are made and compared on the CPU, so that the
only kernels on the device are the fuser's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from benchmarks.kernels.check import Reference
from benchmarks.kernels.operation import make_definition, make_inputs
from benchmarks.kernels.points import OPERATIONS
from benchmarks.options import add_device
from benchmarks.report import Report
from thunder_fuser.options import in_force
from thunder_fuser.runtime.torch_types import target_of_device
from thunder_fuser.target import EMULATOR, Target

LIMIT = {torch.bfloat16: 1e-2, torch.float32: 1e-5}
LEAST_SHARED = 1024  # bytes: no row fits, and what the threads of a block exchange does


@dataclass(frozen=True, slots=True)
class Run:
    """One small problem. `offset` elements of the storage come before the first input."""

    op: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0
    memory: str = "registers"

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.op} {'x'.join(map(str, self.shape))} {dtype} +{self.offset} {self.memory}"


def runs() -> Iterator[Run]:
    """Sizes with and without tails; each place a row can be kept in."""
    for dtype in LIMIT:
        for columns in (1003, 1024):
            for offset in (0, 1):
                yield Run("bias_gelu", (7, columns), dtype, offset)
        for shape in ((7, 2056), (300, 33)):
            yield Run("row_sum", shape, dtype)
            yield Run("column_sum", shape, dtype)
            yield Run("transpose", shape, dtype)
        for shape in ((37, 264), (5, 1003)):
            yield Run("layer_norm_bwd", shape, dtype)
            yield Run("cross_entropy", shape, dtype)
        for memory in ("registers", "shared", "none"):
            for columns in (1000, 1003):
                yield Run("softmax", (5, columns), dtype, memory=memory)
                yield Run("layer_norm", (5, columns), dtype, memory=memory)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)


def run(given: argparse.Namespace, report: Report) -> None:
    base = EMULATOR if given.device.type == "cpu" else target_of_device(0)
    torch.manual_seed(0)
    for one in runs():
        with report.section(str(one)):
            report.figures[str(one)] = found = error_of(one, given.device, base)
            limit = LIMIT[one.dtype]
            report.check(str(one), found <= limit, f"error {found:.2g}, limit {limit:.2g}")
            print(f"ran {one} ({found:.1e})", flush=True)


def error_of(one: Run, device: torch.device, base: Target) -> float:
    """The larger of the relative RMS and the relative largest error of its results."""
    op = OPERATIONS[one.op]
    inputs = make_inputs(op, one.shape, one.dtype, torch.device("cpu"))
    moved = [on_device(tensor, device, one.offset) for tensor in inputs]
    registers = {} if one.memory == "registers" else {"max_registers_bytes": 0}
    with in_force(registers):
        fd = make_definition(op, one.shape, moved)
        results = fd.execute(moved, target=target_with(base, one.memory))
    error = Reference(op, inputs).error([result.cpu() for result in results])
    return max(error.rms, error.largest)


def target_with(base: Target, memory: str) -> Target:
    """The device; if rows are to be kept nowhere, without the shared memory for them."""
    return replace(base, smem_bytes_per_block=LEAST_SHARED) if memory == "none" else base


def on_device(tensor: torch.Tensor, device: torch.device, offset: int) -> torch.Tensor:
    """A copy that begins `offset` elements into its storage."""
    storage = torch.cat([tensor.new_zeros(offset), tensor.flatten()]).to(device)
    return storage[offset:].view(tensor.shape)
