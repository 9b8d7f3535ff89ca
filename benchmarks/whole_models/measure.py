# SPDX-License-Identifier: Apache-2.0
"""A model and a contender -> errors, times, memory, and where the device's time goes."""

from __future__ import annotations

import copy
import gc
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.clock import wait
from benchmarks.train_step import off, step
from thunder_fuser.explain import report

STEPS = 3  # of a profile, and before memory is looked at
MOST_KERNELS = 60  # in the JSON
LEAST_BYTES = 8 << 20  # of a kernel that is held against a clone
# A kernel's kind by a part of its name, the first that fits. A generated kernel's name begins so,
# and may contain any other: triton_poi_fused_copy_convolution.
_GENERATED = ("fused_", "triton_", "thunder", "graph_")
_KINDS = (
    ("attention", ("flash", "fmha", "sdpa", "cudnn_generated", "attention")),
    ("convolutions", ("conv", "implicit_gemm", "dgrad", "wgrad", "xmma_fprop")),
    ("products", ("gemm", "cutlass", "nvjet", "addmm", "linear", "::mm", "::bmm", "splitk")),
    ("copies and fills", ("memcpy", "memset", "copy_", "fill", "zero_", "direct_copy")),
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
        double = _doubled(model)
        exact = step(double, double, (_as(x, torch.float64), _as(other, torch.float64)))
        exact = [one.detach() for one in exact]
        del double
        release(device)
        return Subject(model, (_as(x, dtype), _as(other, dtype)), exact)

    def first(self, call: Callable[..., Any]) -> dict[str, float]:
        """Seconds of the first step, and how far loss and gradients are off, of their size.

        held: bytes of a GPU that CUDA graphs reserve after some more steps.
        """
        device = self.inputs[0].device
        before = _in_graphs(device)
        start = time.perf_counter()
        loss, *gradients = step(call, self.model, self.inputs)
        wait(device)
        found = {"first_step_s": time.perf_counter() - start}
        errors = off([loss], self.exact[:1]), off(gradients, self.exact[1:])
        found |= dict(zip(("loss_error", "gradient_error"), errors, strict=True))
        del loss, gradients
        run = self.train(call)
        for _ in range(STEPS if device.type == "cuda" else 0):
            run()
        return found | {"held": _in_graphs(device) - before}

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
        """Bytes that a GPU's step allocates at most, above what is there before; 0 on a CPU."""
        if not self.inputs[0].is_cuda:
            return 0
        release(self.inputs[0].device)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def _doubled(model: nn.Module) -> nn.Module:
    """A copy in float64, in which torch has no product of groups: experts run one by one."""
    double = copy.deepcopy(model).double()
    for one in double.modules():
        if getattr(getattr(one, "config", None), "_experts_implementation", None):
            one.config._experts_implementation = "eager"
    return double


def _in_graphs(device: torch.device) -> int:
    """Bytes of a GPU that CUDA graphs reserve: those of all pools but torch's own.

    All that is reserved would be less by what a contender before this one held, and gave back
    meanwhile: so `reduce-overhead` once seemed to hold less than a model's gradients.
    """
    release(device)
    if device.type != "cuda":
        return 0
    segments = torch.cuda.memory_snapshot(None)
    pools = ((one["segment_pool_id"], one["total_size"]) for one in segments)
    return sum(size for pool, size in pools if tuple(pool) != (0, 0))


def release(device: torch.device) -> None:
    """Gives memory that nothing uses back to the device, for the processes beside this one."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def waits(run: Callable[[], None], device: torch.device) -> int:
    """How often a step waits for the device."""
    run()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(one.message) for one in caught)


@dataclass(frozen=True, slots=True)
class Where:
    """Milliseconds of a step: by kind of kernel, in all and by name with how often it ran.

    On a CPU the kernels are operators, by themselves.
    """

    kinds: Mapping[str, float]
    wall: float
    launches: float
    kernels: Mapping[str, tuple[float, float]]

    def figures(self) -> dict[str, Any]:
        """For the JSON: the most expensive kernels alone."""
        first = sorted(self.kernels.items(), key=lambda one: -one[1][0])[:MOST_KERNELS]
        rest = max(0.0, self.wall - sum(self.kinds.values()))
        kinds = {**self.kinds, "idle": rest, "wall": self.wall, "launches": self.launches}
        return kinds | {"kernels": {name[:160]: times for name, times in first}}


def where_time_goes(run: Callable[[], None], device: torch.device) -> Where:
    """Profiles a few steps."""
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
    names = [*(kind for kind, _ in _KINDS), "generated", "other kernels"]
    kinds = dict.fromkeys(names, 0.0)
    kernels, launches = {}, 0.0
    for event in profiled.key_averages():
        is_kernel = event.device_type == torch.autograd.DeviceType.CUDA
        if event.is_user_annotation or is_kernel != (device.type == "cuda"):
            continue
        us = event.self_device_time_total if is_kernel else event.self_cpu_time_total
        ms, count = us / 1e3 / STEPS, event.count / STEPS
        kinds[_kind(event.key)] += ms
        kernels[event.key] = ms, count
        launches += count
    return Where(kinds, wall, launches, kernels)


@dataclass(frozen=True, slots=True)
class Slow:
    """A generated kernel: its time beside a clone's that moves as many bytes."""

    name: str
    scheduler: str
    ops: int
    mib: float
    us: float
    count: float
    of_clone: float
    where: str

    def __str__(self) -> str:
        return (
            f"{self.of_clone:5.2f} {self.us:8.1f} us x {self.count:4.0f} {self.mib:8.1f} MiB "
            f"{self.scheduler:12} {self.ops:3} ops  {self.name}  {self.where}"
        )


def slow_kernels(jitted: Any, found: Where, device: torch.device) -> list[Slow]:
    """The generated kernels that move LEAST_BYTES or more, the farthest from a clone first."""
    rows = []
    for fusion in report(jitted).fusions:
        for kernel in fusion.kernels:
            moved = kernel.bytes_in + kernel.bytes_out
            if kernel.name in found.kernels and moved >= LEAST_BYTES:
                ms, count = found.kernels[kernel.name]
                us = ms * 1e3 / count
                size = 1 << min(moved.bit_length() - 1, 30)
                clone = clone_us(size, device) * moved / size
                rows.append(Slow(
                    kernel.name, kernel.scheduler, len(kernel.ops), moved / 2**20, us, count,
                    clone / us, _in_package(fusion.where),
                ))  # fmt: skip
    unique = {row.name: row for row in rows}
    return sorted(unique.values(), key=lambda row: row.of_clone)


def _in_package(where: str) -> str:
    """/home/me/site-packages/litgpt/model.py:149 -> litgpt/model.py:149, for the JSON."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        where = where.replace(f"{folder}/", "")
    return where


@cache
def clone_us(size: int, device: torch.device) -> float:
    """Microseconds of torch's clone that moves `size` bytes."""
    source = torch.empty(size // 2, dtype=torch.uint8, device=device)
    return 1e3 * sum(where_time_goes(source.clone, device).kinds.values())


def _kind(name: str) -> str:
    lower = name.lower()
    if lower.startswith(_GENERATED):
        return "generated"
    fits = (kind for kind, parts in _KINDS if any(part in lower for part in parts))
    return next(fits, "other kernels")


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
