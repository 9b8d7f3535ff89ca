# SPDX-License-Identifier: Apache-2.0
"""Functions that Thunder leaves to torch, as parts of regions.

Also functions that are taken apart otherwise than by Thunder. Forward and backward, beside eager
and torch.compile.

"thunder" is Thunder with its torch executor, which calls torch's function as it is. "clone" copies
one operand: what the fastest kernel for as many bytes would take. On a GPU the calls are captured,
so that Python is not in the times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import thunder
import torch
import torch.nn.functional as F

from benchmarks.clock import medians
from benchmarks.options import add_device
from benchmarks.report import Report
from thunder_fuser.explain.jitted import jit

SHAPE = {"cuda": (8192, 4096), "cpu": (1024, 1024)}
SECONDS = 1.0  # of running, for all contenders of one point together
ERROR = 0.05  # of a bf16 gradient, as a share of the largest

HEADER = "bf16, forward and backward               us   x thunder x eager x compile  clone"

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
POINTS: dict[str, Function] = {
    "clip, multiply": lambda x, y: torch.clip(x.multiply(2), -1, 1).multiply(y),
    "huber_loss": F.huber_loss,
    "binary_cross_entropy_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(
        x, y.sigmoid()
    ),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True),
    "cosine_similarity": lambda x, y: F.cosine_similarity(x, y, dim=1),
    "norm": lambda x, y: x.subtract(y).norm(dim=1),
    "roll": lambda x, y: x.roll(1, 1).multiply(y),
    "glu": lambda x, y: F.glu(x).multiply(y[:, ::2]),
    "mish": lambda x, y: F.mish(x).multiply(y),
    "layer_norm": lambda x, row: F.layer_norm(x, row.shape, row, row),
    "rms_norm": lambda x, row: F.rms_norm(x, row.shape, row, 1e-6),
}
OF_ROWS = ("layer_norm", "rms_norm")  # whose second operand is one row


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    parser.add_argument("--point", action="append", default=[], choices=list(POINTS))


def run(given: argparse.Namespace, report: Report) -> None:
    report.lines.append(HEADER)
    for name in given.point or POINTS:
        with report.section(name):
            shape = SHAPE[given.device.type]
            found = measure(POINTS[name], shape, shape[name in OF_ROWS :], given.device)
            report.figures[name] = {"shape": shape, **found}
            report.lines.append(line(name, found["us"]))
            report.check(name, found["error"] <= ERROR, f"error {found['error']:.3g}")


def measure(
    function: Function, shape: tuple[int, ...], second: tuple[int, ...], device: torch.device
) -> dict[str, Any]:
    """The largest error of a gradient beside eager's, and microseconds of every contender.

    shape, second: those of the function's two operands
    """
    torch._dynamo.reset()
    x, y = (torch.randn(size, device=device).bfloat16() for size in (shape, second))
    contenders = {
        "fuser": jit(function, strict=True),
        "thunder": thunder.jit(function, executors=[]),
        "eager": function,
        "compile": torch.compile(function, dynamic=False),
    }
    seed = torch.randn_like(function(x, y))
    steps = {name: _step(one, (x, y), seed) for name, one in contenders.items()}
    error = max(map(_error, steps["fuser"](), steps["eager"]()))
    us = medians({**steps, "clone": x.clone}, SECONDS, device, graphs=True)
    return {"error": error, "us": us}


def _step(
    function: Function, given: tuple[torch.Tensor, ...], seed: torch.Tensor
) -> Callable[[], tuple[torch.Tensor, ...]]:
    leaves = [one.detach().requires_grad_() for one in given]
    return lambda: torch.autograd.grad(function(*leaves), leaves, seed)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double(), expected.double()
    return float((found - expected).abs().max() / expected.abs().max())


def line(name: str, us: dict[str, float]) -> str:
    """One row of the table."""
    ratios = (us[other] / us["fuser"] for other in ("thunder", "eager", "compile"))
    times = " ".join(f"{ratio:7.2f}" for ratio in ratios)
    return f"{name:34} {us['fuser']:8.0f}   {times} {us['clone']:8.0f}"
