# SPDX-License-Identifier: Apache-2.0
"""The demo's two transformer blocks: errors against fp64 and times, beside eager and torch.compile.

    python benchmarks/blocks.py --device cuda --json blocks.json
    python benchmarks/blocks.py --device cpu

Forward and backward through thunder.jit. Exits 1 if the RMS error of an output or a gradient is
over 1.2 times eager's own, with a floor of two units in the last place of its dtype.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import thunder
import torch
from harness import Sections, facts, median_times, two_ulps, write_json
from torch import nn

from thunder_fuser import fuser
from thunder_fuser.explain.blocks import BLOCKS, SMALL, Sizes, make_block, make_input

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
# GPT-2's own width, and that of Llama 7B.
SIZES = {
    "cuda": {
        "gpt2": Sizes(batch=8, sequence=1024, width=768, heads=12, hidden=3072),
        "llama": Sizes(batch=2, sequence=2048, width=4096, heads=32, hidden=11008),
    },
    "cpu": {"gpt2": Sizes(), "llama": Sizes()},
}
SECONDS = 2.0  # of running, for all contenders of one point together

Step = Callable[[], list[torch.Tensor]]


def step(module: nn.Module, block: nn.Module, x: torch.Tensor, seed: torch.Tensor) -> Step:
    """Forward and backward: the output, then the gradients of the input and of each parameter."""

    def run() -> list[torch.Tensor]:
        wanted = [x, *block.parameters()]
        result = module(x)
        return [result.detach(), *torch.autograd.grad(result, wanted, seed)]

    return run


def make_step(block: nn.Module, x: torch.Tensor, seed: torch.Tensor, module: Any = None) -> Step:
    """The step of the block, or of a `module` made of it, with an input of its own."""
    return step(block if module is None else module, block, x.detach().requires_grad_(), seed)


def measure(
    name: str, sizes: Sizes, dtype: torch.dtype, device: torch.device, with_compile: bool
) -> dict[str, Any]:
    """One block in one dtype: worst error over its limit, and microseconds of every contender."""
    block = make_block(name, sizes, dtype, device)
    x, seed = make_input(sizes, dtype, device)
    jitted = thunder.jit(block, executors=[fuser], fuser_strict=True)
    calls = {"fuser": make_step(block, x, seed, jitted), "eager": make_step(block, x, seed)}
    start = time.perf_counter()
    ours = calls["fuser"]()
    found: dict[str, Any] = {"first_call_s": time.perf_counter() - start}
    exact = exact_step(block, x, seed)
    found["errors"] = compare(block, ours, calls["eager"](), exact)
    del ours, exact
    if with_compile:
        found |= add_compiled(calls, block, x, seed)
    found["us"] = median_times(calls, device, runs_for(calls, device))
    return found


def add_compiled(
    calls: dict[str, Step], block: nn.Module, x: torch.Tensor, seed: torch.Tensor
) -> dict[str, Any]:
    """Adds torch.compile to the contenders; says how long its first call took, or why it failed."""
    torch._dynamo.reset()
    compiled = make_step(block, x, seed, torch.compile(block, dynamic=False))
    start = time.perf_counter()
    try:
        compiled()
    except Exception as error:  # a baseline that fails is a fact to report, not our failure
        return {"compile_error": f"{type(error).__name__}: {error}"}
    calls["compile"] = compiled
    return {"compile_first_call_s": time.perf_counter() - start}


def exact_step(block: nn.Module, x: torch.Tensor, seed: torch.Tensor) -> list[torch.Tensor]:
    """The same step in fp64, from the same rounded numbers."""
    return make_step(deepcopy(block).double(), x.double(), seed.double())()


def compare(
    block: nn.Module, ours: list[torch.Tensor], eager: list[torch.Tensor],
    exact: list[torch.Tensor],
) -> dict[str, dict[str, float]]:
    """For the output and each gradient: our RMS error, eager's, and the limit."""
    names = ["output", "x", *(name for name, _ in block.named_parameters())]
    found = {}
    for name, got, usual, right in zip(names, ours, eager, exact, strict=True):
        base = rms_off(usual, right)
        limit = max(1.2 * base, two_ulps(right, got.dtype))
        found[name] = {"fuser": rms_off(got, right), "eager": base, "limit": limit}
    return found


def over_limit(found: dict[str, dict[str, float]]) -> list[str]:
    """Each result whose error is over its limit (or is NaN), with how many times over."""
    return [
        f"{name} {error['fuser'] / error['limit']:.3g}x" for name, error in found.items()
        if not error["fuser"] <= error["limit"]
    ]


def rms_off(got: torch.Tensor, right: torch.Tensor) -> float:
    return float((got.double() - right).square().mean().sqrt())


def runs_for(calls: dict[str, Step], device: torch.device) -> int:
    """As many runs, 5 to 30, as fit into SECONDS."""
    start = time.perf_counter()
    for call in calls.values():
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return max(5, min(30, int(SECONDS / (time.perf_counter() - start))))


def line(name: str, dtype: str, found: dict[str, Any]) -> str:
    """One row of the table."""
    us, errors = found["us"], found["errors"]
    worst = max(errors, key=lambda key: errors[key]["fuser"] / errors[key]["limit"])
    share = errors[worst]["fuser"] / errors[worst]["limit"]
    compiled = f"{us['compile'] / us['fuser']:9.2f}" if "compile" in us else f"{'-':>9}"
    return (
        f"{name:6} {dtype:5} {us['fuser']:10.0f} {us['eager'] / us['fuser']:8.2f} {compiled} "
        f"{share:7.2f} ({worst}) {found['first_call_s']:7.1f}"
    )


HEADER = "block  dtype    fwd+bwd us  x eager x compile  worst error / limit (of), first call s"


def run_all(given: argparse.Namespace, checks: Sections) -> list[str]:
    device = torch.device(given.device)
    report: dict[str, Any] = {"facts": facts(device), "blocks": {}}
    lines = [HEADER]
    for name in given.block or BLOCKS:
        sizes = SMALL if given.small else SIZES[device.type][name]
        for dtype in given.dtype or DTYPES:
            title = f"{name} {dtype}"
            with checks.section(title):
                found = measure(name, sizes, DTYPES[dtype], device, dtype in given.compile)
                report["blocks"][title] = {"sizes": str(sizes), **found}
                lines.append(line(name, dtype, found))
                worse = over_limit(found["errors"])
                checks.check(title, not worse, f"RMS error over its limit: {', '.join(worse)}")
            write_json(given.json, report)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", help="the file the figures go to")
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument("--block", action="append", default=[], choices=list(BLOCKS))
    parser.add_argument("--dtype", action="append", default=[], choices=list(DTYPES))
    parser.add_argument(
        "--compile", action="append", choices=list(DTYPES),
        help="dtypes that torch.compile is timed with; on CUDA bf16 if not given",
    )
    given = parser.parse_args()
    given.compile = given.compile or ["bf16"] * (given.device == "cuda")
    return given


def main() -> int:
    checks = Sections()
    lines = run_all(arguments(), checks)
    code = checks.exit_code()
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
