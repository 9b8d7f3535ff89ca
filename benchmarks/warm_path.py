# SPDX-License-Identifier: Apache-2.0
"""Python's time in a warm call of one small kernel, beside torch.add's; and in calls of
thunder_fuser.jit, with and without gradients, beside thunder.jit and torch.compile."""

from __future__ import annotations

import argparse
import statistics
import time
import timeit
from collections.abc import Callable

import torch

import thunder_fuser
from benchmarks.calls import call_costs, guard_costs, lines, pieces
from benchmarks.clock import wait
from benchmarks.kernels.operation import make_definition
from benchmarks.kernels.points import OPERATIONS
from benchmarks.options import add_compile, add_device
from benchmarks.report import Report
from thunder_fuser.explain.jitted import jit
from thunder_fuser.host.call.dispatch import make_dispatch

SHAPE = (32, 32)
CALLS, BATCHES = 500, 11
LOOKUPS, TURNS, ARGUMENTS = 5000, 60, 8


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_compile(parser, default=False)


def run(given: argparse.Namespace, report: Report) -> None:
    with report.section("warm call"):
        costs = report.figures["us"] = host_costs(given.device, given.compile)
        report.lines += [
            f"{name:18} {cost:8.2f} us a call {cost / costs['torch.add']:6.2f} x torch.add"
            for name, cost in costs.items()
        ]
    with report.section("finding the program"):
        costs = report.figures["lookup_us"] = lookup_costs(given.device)
        report.lines += [f"{name:14} {cost:8.3f} us an argument" for name, cost in costs.items()]
    with report.section("calls"):
        report.figures["calls"] = call_costs(given.device, given.compile)
        report.figures["pieces"] = pieces(given.device)
        report.figures["guards"] = guard_costs(given.device)
        report.lines += ["", *lines(report.figures)]


def host_costs(device: torch.device, with_compile: bool = False) -> dict[str, float]:
    """Microseconds a call: torch.add, the region's own function, and functions around a region."""
    a, b = (torch.randn(SHAPE, device=device) for _ in range(2))
    # A product is fused with the sum: Thunder leaves a region of one op to torch.
    calls = {
        "torch.add": torch.add,
        "region": make_definition(OPERATIONS["add"], SHAPE, [a, b]).entry.prepare().callable(),
        "thunder.jit": jit(lambda x, y: x * y + y, strict=True),
        "thunder_fuser.jit": thunder_fuser.jit(lambda x, y: x * y + y),
    }
    if with_compile:
        calls["torch.compile"] = torch.compile(lambda x, y: x * y + y, dynamic=False)
    for call in calls.values():
        for _ in range(20):
            call(a, b)
    return {name: host_time(lambda f=f: f(a, b), device) for name, f in calls.items()}  # type: ignore[misc]


def lookup_costs(device: torch.device) -> dict[str, float]:
    """Microseconds an argument to find a call's runner, all checks of the argument included.

    That is what a dispatch of many arguments takes beyond its runner, over their number.
    """
    return {kind: _lookup_cost(kind, device) for kind in ("tensor", "complex")}


def _lookup_cost(kind: str, device: torch.device) -> float:
    """The least of turns, each with both timers."""
    dtype = torch.complex64 if kind == "complex" else torch.float32
    names = [f"t{at}" for at in range(ARGUMENTS)]
    call = make_dispatch([(name, kind) for name in names], lambda _: _nothing, checked=False)
    scope = {name: torch.ones(SHAPE, dtype=dtype, device=device) for name in names}
    timers = [
        timeit.Timer(f"f({', '.join(names)})", globals={**scope, "f": function})
        for function in (_nothing, call)
    ]
    turns = [[timer.timeit(LOOKUPS) for timer in timers] for _ in range(TURNS)]
    bare, found = map(min, zip(*turns, strict=True))
    return max(found - bare, 0.0) / LOOKUPS / ARGUMENTS * 1e6


def _nothing(*arguments: object) -> None:
    pass


def host_time(call: Callable[[], object], device: torch.device) -> float:
    """Microseconds that Python spends in a call, not waiting for the device; median of batches."""
    times = []
    for _ in range(BATCHES):
        wait(device)
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    wait(device)
    return statistics.median(times)
