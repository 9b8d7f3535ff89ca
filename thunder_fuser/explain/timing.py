# SPDX-License-Identifier: Apache-2.0
"""A fusion -> seconds a call takes, fused and with its ops run one by one by torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from thunder_fuser.executors.callables import RegionCallable
from thunder_fuser.executors.without_kernel import torch_function
from thunder_fuser.explain.programs import Compiled
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.presegment.specialise import InputKey
from thunder_fuser.runtime.torch_types import to_torch_dtype

_BUDGET_S = 0.05
_LEAST_ROUNDS = 5


def times_on(device: torch.device) -> Callable[[RegionCallable, Compiled], tuple[float, float]]:
    """A function of a fusion and a program of it: seconds of a fused and of an op-by-op call."""

    def times(one: RegionCallable, program: Compiled) -> tuple[float, float]:
        inputs = zip(program.fusion.inputs, program.keys, strict=True)
        arguments = [_argument(program.fusion.tensors[n], key, device) for n, key in inputs]
        by_op = torch_function(one.region, one.name)
        with torch.no_grad():
            return (
                seconds(lambda: program.program.run(*arguments), device),
                seconds(lambda: by_op(*arguments), device),
            )

    return times


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """The least of many short rounds: on a busy machine most of them meet another process."""
    repeats = 10 if device.type == "cuda" else 1  # a wait for the GPU costs more than a launch
    call()
    end = time.perf_counter() + _BUDGET_S
    best = min(_round(call, repeats, device) for _ in range(_LEAST_ROUNDS))
    while time.perf_counter() < end:
        best = min(best, _round(call, repeats, device))
    return best


def _round(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    wait(device)
    return (time.perf_counter() - start) / repeats


def wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
