# SPDX-License-Identifier: Apache-2.0
"""Small runs of every kind of kernel, for compute-sanitizer to watch.

    compute-sanitizer --tool racecheck python benchmarks/sanitize.py
    python benchmarks/sanitize.py --device cpu        (the emulator has the same checks)

Numbers are made and compared on the CPU, so that the only kernels on the device are the fuser's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from cases import CASES, make_definition, make_inputs
from harness import Sections, errors

from thunder_fuser import options
from thunder_fuser.host.device import target_of_device
from thunder_fuser.target import EMULATOR, Target

LIMIT = {torch.bfloat16: 1e-2, torch.float32: 1e-5}


@dataclass(frozen=True, slots=True)
class Run:
    """One small problem. `offset` elements of the storage come before the first input."""

    op: str
    rows: int
    columns: int
    dtype: torch.dtype
    offset: int = 0
    memory: str = "registers"

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.op} {self.rows}x{self.columns} {dtype} +{self.offset} {self.memory}"


def runs() -> Iterator[Run]:
    """Sizes with and without tails; each place a row can be kept in."""
    for dtype in LIMIT:
        for columns in (1003, 1024):
            for offset in (0, 1):
                yield Run("bias_gelu", 7, columns, dtype, offset)
        for rows, columns in ((7, 2056), (300, 33)):
            yield Run("row_sum", rows, columns, dtype)
            yield Run("column_sum", rows, columns, dtype)
        for memory in ("registers", "shared", "none"):
            for columns in (1000, 1003):
                yield Run("softmax", 5, columns, dtype, memory=memory)
                yield Run("layer_norm", 5, columns, dtype, memory=memory)


def target_with(base: Target, memory: str) -> Target:
    """The device; if rows are to be kept nowhere, without the shared memory for them."""
    return replace(base, smem_bytes_per_block=0) if memory == "none" else base


def on_device(tensor: torch.Tensor, device: torch.device, offset: int) -> torch.Tensor:
    """A copy that begins `offset` elements into its storage."""
    storage = torch.cat([tensor.new_zeros(offset), tensor.flatten()]).to(device)
    return storage[offset:].view(tensor.shape)


def check(run: Run, device: torch.device, base: Target) -> str:
    """The run's error; AssertionError if it is over the limit."""
    case = CASES[run.op]
    inputs = make_inputs(case, run.rows, run.columns, run.dtype, torch.device("cpu"))
    moved = [on_device(tensor, device, run.offset) for tensor in inputs]
    registers = {} if run.memory == "registers" else {"max_registers_bytes": 0}
    with options(**registers):
        fd = make_definition(case, moved)
        (result,) = fd.execute(moved, target=target_with(base, run.memory))
    exact = case.torch(*(tensor.double() for tensor in inputs))
    rms, largest = errors(result.cpu(), exact)
    assert max(rms, largest) <= LIMIT[run.dtype], f"{run}: errors {rms:.2g} and {largest:.2g}"
    return f"ok {run} ({rms:.1e})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    device = torch.device(parser.parse_args().device)
    checks = Sections()
    base = EMULATOR if device.type == "cpu" else target_of_device(0)
    torch.manual_seed(0)
    for run in runs():
        with checks.section(str(run)):
            print(check(run, device, base), flush=True)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
