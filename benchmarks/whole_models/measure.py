# SPDX-License-Identifier: Apache-2.0
"""A model and a contender -> errors, times, memory, and where the device's time goes."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.clock import wait
from benchmarks.train_step import off, step

STEPS = 3  # of a profile
# A kernel's kind by a part of its name, the first that fits.
_KINDS = (
    ("attention", ("flash", "fmha", "sdpa", "cudnn_generated", "attention")),
    ("convolutions", ("conv", "implicit_gemm", "dgrad", "wgrad", "xmma_fprop")),
    ("products", ("gemm", "cutlass", "nvjet", "addmm", "linear", "::mm", "::bmm", "splitk")),
    ("copies and fills", ("memcpy", "memset", "copy_", "fill", "zero_", "direct_copy")),
    ("generated", ("fused_", "triton_", "thunder", "graph_")),
)


@dataclass
class Subject:
    """A model on a device, the inputs of a step, and what a step of it should give."""

    model: nn.Module
    inputs: tuple[torch.Tensor, torch.Tensor]
    exact: list[torch.Tensor]

    @staticmethod
    def make(
        model: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype,
        device: torch.device,
    ) -> Subject:  # fmt: skip
        """The exact loss and gradients are taken in float64, where the model is."""
        x, other = (one.to(device) for one in inputs)
        model = model.to(device=device, dtype=dtype).train()
        double = copy.deepcopy(model).double()
        exact = step(double, double, (_as(x, torch.float64), _as(other, torch.float64)))
        return Subject(model, (_as(x, dtype), _as(other, dtype)), exact)

    def first(self, call: Callable[..., Any]) -> dict[str, float]:
        """Seconds of the first step, and how far loss and gradients are off, of their size."""
        start = time.perf_counter()
        loss, *gradients = step(call, self.model, self.inputs)
        wait(self.inputs[0].device)
        found = {"first_step_s": time.perf_counter() - start}
        errors = off([loss], self.exact[:1]), off(gradients, self.exact[1:])
        return found | dict(zip(("loss_error", "gradient_error"), errors, strict=True))

    def train(self, call: Callable[..., Any]) -> Callable[[], None]:
        """A training step as a call."""

        def run() -> None:
            call(*self.inputs).backward()
            self.model.zero_grad(set_to_none=True)

        return run

    def infer(self, call: Callable[..., Any]) -> Callable[[], None]:
        """The forward without gradients, of a model in inference, as a call."""

        def run() -> None:
            with torch.no_grad():
                call(*self.inputs)

        return run

    def peak(self, run: Callable[[], None]) -> int:
        """Bytes that a GPU's step allocates at most, above the model's; 0 on a CPU."""
        if not self.inputs[0].is_cuda:
            return 0
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def where_time_goes(run: Callable[[], None], device: torch.device) -> Mapping[str, float]:
    """Milliseconds of a step by kind of kernel, the rest of its wall time, and how many ran.

    On a CPU they are those of operators, by themselves.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    run()
    wait(device)
    with profile(activities=activities, acc_events=True) as profiled:
        start = time.perf_counter()
        for _ in range(STEPS):
            run()
        wait(device)
        wall = (time.perf_counter() - start) * 1e3 / STEPS
    found = dict.fromkeys([kind for kind, _ in _KINDS] + ["other kernels"], 0.0)
    launches = 0
    for event in profiled.key_averages():
        is_kernel = event.device_type == torch.autograd.DeviceType.CUDA
        if device.type == "cuda" and not is_kernel:
            continue
        us = event.self_device_time_total if is_kernel else event.self_cpu_time_total
        found[_kind(event.key)] += us / 1e3 / STEPS
        launches += event.count
    idle = max(0.0, wall - sum(found.values()))
    return found | {"idle": idle, "wall": wall, "launches": launches / STEPS}


def _kind(name: str) -> str:
    lower = name.lower()
    fits = (kind for kind, parts in _KINDS if any(part in lower for part in parts))
    return next(fits, "other kernels")


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
