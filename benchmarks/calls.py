# SPDX-License-Identifier: Apache-2.0
"""What Python does in a warm call of thunder_fuser.jit, piece by piece, and beside others.

    calls      one kernel; a module of many parameters; four Llama-style blocks of small size
    pieces     microseconds of each step of a call, by itself
    guards     microseconds a parameter
"""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import thunder
import torch
from torch import nn

import thunder_fuser
from benchmarks.clock import wait
from thunder_fuser import fuser
from thunder_fuser.demo.blocks import SMALL, make_block, make_input
from thunder_fuser.fast_path.calls import CompiledEntry, fast_path_of
from thunder_fuser.fast_path.guards import GuardFunction
from thunder_fuser.fast_path.torch_state import environment

# Turns of each call, about how long one takes, and how many calls it has at most: more launches
# would wait for the device.
TURNS, SECONDS, MOST = 25, 0.02, 300
PARAMETERS = (10, 100, 300)
BLOCKS = 4

Jit = Callable[[Any], Any]
Args = Sequence[torch.Tensor]


def jits(with_compile: bool) -> dict[str, Jit]:
    """Who is compared; each takes a function or a module."""
    found: dict[str, Jit] = {
        "eager": lambda function: function,
        "thunder.jit": lambda function: thunder.jit(function, executors=[fuser]),
        "thunder_fuser.jit": thunder_fuser.jit,
    }
    if with_compile:
        found["torch.compile"] = lambda function: torch.compile(function, dynamic=False)
    return found


def multiply_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y + y


class Sums(nn.Module):
    """x + p0 + p1 + ...: many parameters, and few kernels."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.randn(8) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one in self.all:
            x = x + one
        return x


def workloads(device: torch.device) -> dict[str, tuple[Any, list[torch.Tensor]]]:
    """{name: (function or module, its arguments)}"""
    made = (make_block("llama", SMALL, torch.float32, device) for _ in range(BLOCKS))
    x, _ = make_input(SMALL, torch.float32, device)
    plain = [torch.randn(32, 32, device=device) for _ in range(2)]
    blocks = nn.Sequential(*made)
    return {"one kernel": (multiply_add, plain), f"{BLOCKS} Llama blocks": (blocks, [x])}


def call_costs(device: torch.device, with_compile: bool) -> dict[str, dict[str, list[float]]]:
    """{workload: {who: microseconds without gradients, of a forward, and of forward + backward}}"""
    return {
        name: costs(jits(with_compile), function, args)
        for name, (function, args) in workloads(device).items()
    }


def costs(jits: Mapping[str, Jit], function: Any, args: Args) -> dict[str, list[float]]:
    """Who takes turns, so that a clock that drifts meets all alike."""
    x, device = args[0].detach().requires_grad_(), args[0].device
    given = [x, *args[1:]]
    with torch.no_grad():
        alone = least({who: partial(jit(function), *args) for who, jit in jits.items()}, device)
    forward = {who: partial(jit(function), *given) for who, jit in jits.items()}
    gradient = torch.ones_like(function(*given))
    steps = {who: partial(_step, call, gradient) for who, call in forward.items()}
    times = (alone, least(forward, device), least(steps, device))
    return {who: [each[who] for each in times] for who in jits}


def _step(forward: Callable[[], torch.Tensor], gradient: torch.Tensor) -> None:
    forward().backward(gradient)


def pieces(device: torch.device) -> dict[str, float]:
    """Microseconds of each step of a call with gradients: one kernel, no module."""
    jitted, (x, y) = thunder_fuser.jit(multiply_add), workloads(device)["one kernel"][1]
    args = (x.requires_grad_(), y)
    result = jitted(*args)
    way = fast_path_of(jitted)
    (known,) = way.all_known()
    guard = _guard(known)
    inputs, of_epilogue = guard(args, {}) or ((), ())
    with torch.no_grad():
        data, _ = known.computation(*inputs)
        steps: dict[str, Callable[[], object]] = {
            "state": lambda: (way.is_special(), environment(), way.all_known()),
            "guards": lambda: guard(args, {}),
            "statistics": lambda: way.count(known.entry),
            "computation": lambda: known.computation(*inputs),
            "epilogue": lambda: known.epilogue(*of_epilogue, *data["output"]),
        }
        times = least(steps, device)
    forward = partial(jitted, *args)
    step = partial(_step, forward, torch.ones_like(result))
    whole = least({"forward": forward, "step": step}, device)
    times["autograd"] = whole["forward"] - sum(times.values())
    return {**times, "forward": whole["forward"], "backward": whole["step"] - whole["forward"]}


def _guard(known: CompiledEntry) -> GuardFunction:
    assert known.guarded is not None
    return known.guarded.guard


def guard_costs(device: torch.device) -> dict[str, float]:
    """{parameters of a module: microseconds a parameter}"""
    return {str(count): _guard_cost(count, device) for count in PARAMETERS}


def _guard_cost(count: int, device: torch.device) -> float:
    module, x = Sums(count).to(device), torch.randn(8, device=device)
    jitted = thunder_fuser.jit(module)
    with torch.no_grad():
        jitted(x)
    guard = _guard(fast_path_of(jitted).all_known()[0])
    return least({"guards": lambda: guard((x,), {})}, device)["guards"] / count


def least(calls: Mapping[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Microseconds of Python in each call, not waiting for the device: the least of its turns."""
    timers = {name: timeit.Timer(call) for name, call in calls.items()}
    for timer in timers.values():
        timer.timeit(3)
    counts = {
        name: max(2, min(MOST, int(SECONDS / timer.timeit(1)))) for name, timer in timers.items()
    }
    found = dict.fromkeys(timers, math.inf)
    for _ in range(TURNS):
        for name, timer in timers.items():
            wait(device)
            took = timer.timeit(counts[name]) / counts[name] * 1e6
            found[name] = min(found[name], took)
    wait(device)
    return found


def lines(found: Mapping[str, Any]) -> list[str]:
    """Tables of what call_costs, pieces and guard_costs found."""
    text = [f"{'us a call':34} {'no grad':>9} {'forward':>9} {'+ backward':>10}"]
    for name, all_of in found["calls"].items():
        for who, (alone, forward, step) in all_of.items():
            text.append(f"{name:15} {who:18} {alone:9.1f} {forward:9.1f} {step:10.1f}")
    text += ["", "thunder_fuser.jit, one kernel with gradients:"]
    text += [f"  {name:14} {cost:8.2f} us" for name, cost in found["pieces"].items()]
    text += [f"guards of {n:>3} parameters: {us:.3f} us each" for n, us in found["guards"].items()]
    return text
