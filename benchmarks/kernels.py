# SPDX-License-Identifier: Apache-2.0
"""One kernel at a time: its time beside `clone` of as many bytes, eager torch and torch.compile.

    python benchmarks/kernels.py --device cuda --json kernels.json
    python benchmarks/kernels.py --device cpu [--compile]

Every result is first checked against fp64, with outputs full of NaN before the kernel runs. Exits 1
if a check failed or a point could not be measured. The table comes last.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from cases import CASES, Case, bytes_moved, make_definition, make_inputs
from harness import Sections, errors, facts, median_times, poisoned, write_json
from warm_path import host_costs, table

from thunder_fuser.definition import FusionDefinition

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
# The error a result may have where eager's own is smaller: half a unit in the last place of a
# bf16; for f32 what a few thousand additions in one thread lose.
FLOOR = {torch.bfloat16: 2.0**-8, torch.float32: 1e-5}
TENSOR_BYTES = {"cuda": 512 << 20, "cpu": 8 << 20}

# (operation, dtype, columns). Rows fill TENSOR_BYTES. torch.compile takes a second or more a
# point, so only the bf16 points and a few others get it.
POINTS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("add", "bf16", (16384,)),
    ("bias_gelu", "bf16", (4095, 16384)),
    ("silu_mul", "bf16", (16384,)),
    ("softmax", "bf16", (1024, 4095, 4096, 8192, 16384, 32768, 65536, 131072)),
    ("layer_norm", "bf16", (1024, 4095, 4096, 8192, 16384, 32768, 65536, 131072)),
    ("rms_norm", "bf16", (1024, 4095, 4096, 8192, 16384, 32768, 65536, 131072)),
    ("row_sum", "bf16", (4096, 131072)),
    ("column_sum", "bf16", (1024, 16384)),
    ("add", "f32", (16384,)),
    ("bias_gelu", "f32", (16384,)),
    ("silu_mul", "f32", (16384,)),
    ("softmax", "f32", (4096, 32768, 131072)),
    ("layer_norm", "f32", (4096, 32768, 131072)),
    ("rms_norm", "f32", (4096, 32768, 131072)),
    ("row_sum", "f32", (4096,)),
    ("column_sum", "f32", (4096,)),
)
NOT_COMPILED_COLUMNS = (1024, 8192, 65536)  # for all operations but softmax


class Compiler:
    """torch.compile, until it has taken `seconds` in all."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def wants(self, name: str, dtype: str, columns: int) -> bool:
        chosen = name == "softmax" or columns not in NOT_COMPILED_COLUMNS
        return self.left > 0 and dtype == "bf16" and chosen

    def compile(self, case: Case, inputs: list[torch.Tensor]) -> Any:
        """The compiled torch expression, called once. Static sizes: the best it can do."""
        torch._dynamo.reset()  # else it gives up on a function after eight shapes
        start = time.perf_counter()
        function = torch.compile(case.torch, dynamic=False)
        function(*inputs)
        self.left -= time.perf_counter() - start
        return function


def points(only: list[str], dtypes: list[str]) -> Iterator[tuple[str, str, int]]:
    for name, dtype, widths in POINTS:
        if (not only or name in only) and (not dtypes or dtype in dtypes):
            yield from ((name, dtype, columns) for columns in widths)


def measure(
    point: tuple[str, str, int], device: torch.device, compiler: Compiler, runs: int
) -> dict[str, Any]:
    """One point: its errors, then the median time of every contender."""
    name, dtype, columns = point
    case, size = CASES[name], DTYPES[dtype].itemsize
    rows = max(TENSOR_BYTES[device.type] // (columns * size), 1)
    inputs = make_inputs(case, rows, columns, DTYPES[dtype], device)
    fd = make_definition(case, inputs)
    found = {"op": name, "dtype": dtype, "rows": rows, "columns": columns}
    found |= check(case, fd, inputs) | describe(fd, inputs)
    calls = contenders(case, fd, inputs, found["bytes"])
    if compiler.wants(name, dtype, columns):
        try:
            function = compiler.compile(case, inputs)
            calls["compile"] = lambda: function(*inputs)
        except Exception as error:  # a baseline that fails is a fact to report, not our failure
            found["compile_error"] = str(error).splitlines()[0]
    found["us"] = median_times(calls, device, runs)
    return found


def contenders(
    case: Case, fd: FusionDefinition, inputs: list[torch.Tensor], moved: int
) -> dict[str, Any]:
    """What is timed. clone reads as many bytes as it writes, together those the operation moves."""
    run = fd.entry.callable()
    block = torch.empty(moved // 2, dtype=torch.uint8, device=inputs[0].device).random_()
    return {
        "fuser": lambda: run(*inputs),
        "clone": block.clone,
        "eager": lambda: case.torch(*inputs),
    }


def check(case: Case, fd: FusionDefinition, inputs: list[torch.Tensor]) -> dict[str, Any]:
    """The first call, on poisoned outputs: its errors beside eager's."""
    start = time.perf_counter()
    with poisoned():
        (result,) = fd.execute(inputs)
    seconds = time.perf_counter() - start
    exact = case.torch(*(tensor.double() for tensor in inputs))
    ours, eager = errors(result, exact), errors(case.torch(*inputs), exact)
    return {
        "bytes": bytes_moved(inputs, result),
        "first_call_ms": seconds * 1e3,
        "error": {"rms": ours[0], "max": ours[1]},
        "eager_error": {"rms": eager[0], "max": eager[1]},
    }


def describe(fd: FusionDefinition, inputs: list[torch.Tensor]) -> dict[str, Any]:
    program = fd.program(inputs)
    return {
        "schedulers": [segment.scheduler.name for segment in program.segmented.segments],
        "kernels": [
            {"grid": s.grid, "block": s.block, "smem_bytes": s.smem_bytes} for s in program.sources
        ],
    }


def judge(found: dict[str, Any], name: str, checks: Sections) -> None:
    """No worse than eager by a fifth (twice, for the worst element), above a floor."""
    floor, ours, eager = FLOOR[DTYPES[found["dtype"]]], found["error"], found["eager_error"]
    detail = f"error {ours}, eager's {eager}, floor {floor:.2g}"
    passed = ours["rms"] <= max(1.2 * eager["rms"], floor)
    passed = passed and ours["max"] <= max(2 * eager["max"], 2 * floor)
    checks.check(name, passed, detail)


def line(found: dict[str, Any]) -> str:
    """One row of the table; x eager and x compile are how many times faster the fuser is."""
    us = found["us"]
    ours = us["fuser"]
    compiled = f"{us['compile'] / ours:9.2f}" if "compile" in us else f"{'-':>9}"
    return (
        f"{found['op']:10} {found['dtype']:4} {found['rows']:>7}x{found['columns']:<6} "
        f"{ours:9.1f} {found['bytes'] / ours / 1e3:7.0f} {100 * us['clone'] / ours:7.1f} "
        f"{us['eager'] / ours:7.2f} {compiled}"
    )


HEADER = (
    f"{'op':10} {'type':4} {'shape':>14} {'us':>9} {'GB/s':>7} {'% clone':>7} {'x eager':>7} "
    f"{'x compile':>9}"
)


def run_all(given: argparse.Namespace, checks: Sections) -> list[str]:
    """The table's lines; the JSON is written after every point."""
    device = torch.device(given.device)
    compiler = Compiler(given.compile_seconds if given.compile or device.type == "cuda" else 0)
    report: dict[str, Any] = {"facts": facts(device), "points": [], "host_us": {}}
    lines = [HEADER]
    torch.manual_seed(0)
    for point in points(given.op, given.dtype):
        title = " ".join(map(str, point))
        with checks.section(title):
            found = measure(point, device, compiler, given.runs)
            report["points"].append(found)
            lines.append(line(found))
            judge(found, title, checks)
            write_json(given.json, report)
    for place in sorted({"cpu", device.type}):
        with checks.section(f"host cost, {place}"):
            costs = host_costs(torch.device(place), compiler.left > 0 and place == "cuda")
            report["host_us"][place] = costs
            lines += [f"warm call on {place}", table(costs)]
    report |= {"failed": checks.failed, "facts_after": facts(device)}
    write_json(given.json, report)
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", help="the file the figures go to")
    parser.add_argument("--runs", type=int, default=30, help="times the median is of")
    parser.add_argument("--op", action="append", default=[], choices=list(CASES))
    parser.add_argument("--dtype", action="append", default=[], choices=list(DTYPES))
    parser.add_argument("--compile", action="store_true", help="torch.compile on the CPU too")
    parser.add_argument("--compile-seconds", type=float, default=120, help="for torch.compile")
    return parser.parse_args()


def main() -> int:
    checks = Sections()
    lines = run_all(arguments(), checks)
    code = checks.exit_code()
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
