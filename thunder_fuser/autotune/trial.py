# SPDX-License-Identifier: Apache-2.0
"""Runs kernels with different schedules of one part on the same arguments: results and times.

The arguments are random numbers in the part's types, sizes and strides. A result's memory is filled
with NaN or -1 before a kernel writes it, so a missing element is detected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod, sqrt
from statistics import median_high
from typing import Any

import torch

from thunder_fuser.analysis.part import Part
from thunder_fuser.base.threads import cached_property
from thunder_fuser.host.programs.launchers import Launcher
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.schedule.row_shape import rounds
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.store.entry import Binary, Recipe

FLUSH_BYTES = 64 << 20  # written over a CPU's caches
FLUSHED_CACHES = 2  # of a GPU
ULPS = 16  # for pointwise work: a CPU has different functions for vectors and single elements
LARGEST_INTEGER = 100
PACKED = (torch.float4_e2m1fn_x2,)


@dataclass(frozen=True)
class Arguments:
    """The arguments of a part's kernels: the values of inputs, and the memory of results.

    first: copies of the inputs that results overwrite.
    """

    part: Part
    device: torch.device
    values: tuple[Any, ...]
    results: tuple[torch.Tensor, ...]
    first: dict[str, torch.Tensor] = field(default_factory=dict)

    def pointers(self) -> list[Any]:
        """Addresses and numbers, in the order of the kernel's parameters."""
        known = [v.data_ptr() if isinstance(v, torch.Tensor) else v for v in self.values]
        return [*known, *(result.data_ptr() for result in self.results)]

    def restore(self) -> None:
        """Restores the inputs that results overwrite, and marks other results as unwritten."""
        taken = dict(self.part.overwrites)
        for name, result in zip(self.part.outputs, self.results, strict=True):
            if name in taken:
                readable(result).copy_(self.first[taken[name]])
            else:
                _poison(result)


def arguments_of(part: Part, device: torch.device) -> Arguments:
    """Arguments that any kernel of the part can be called with."""
    most = _largest_integer(part)
    taken = dict(part.overwrites)
    names = dict.fromkeys((*part.inputs, *taken.values()))
    tensors = {name: _value(part, name, device, most) for name in names}
    results = tuple(
        tensors[taken[n]] if n in taken else _empty(part.tensors[n], part.strides[n], device)
        for n in part.outputs
    )
    first = {name: readable(tensors[name]).clone() for name in taken.values()}
    for expr in part.exprs:
        if expr.op == "index_store" and (at := tensors.get(str(expr.inputs[1]))) is not None:
            places = torch.arange(at.numel(), device=device) % expr.integer("size")
            at.copy_(places.view_as(at))  # of two equal ones either slice may win
    values = tuple(tensors[name] for name in part.inputs)
    return Arguments(part, device, values, results, first)


def _largest_integer(part: Part) -> int:
    """A bound for integers, so that they are valid indices of every axis that is indexed."""
    looked_up = [e for e in part.exprs if e.row.kind is OpKind.INDEX]
    sizes = [size for e in looked_up for n in (*e.inputs, *e.outputs)
             if n in part.tensors for size in part.tensors[str(n)].sizes]  # fmt: skip
    return max(min(sizes, default=LARGEST_INTEGER), 1)


def _value(part: Part, name: str, device: torch.device, most: int) -> Any:
    view = part.tensors[name]
    if view.by_value:
        if view.dtype.is_float:
            return 0.5
        return True if view.dtype.short == "bool" else min(1, most - 1)
    memory = _empty(view, part.strides[name], device)
    count = memory.untyped_storage().nbytes() // memory.element_size()
    flat = memory.as_strided((count,), (1,))
    readable(flat).copy_(readable(_random(count, memory.dtype, device, most)))
    return memory


def _random(count: int, dtype: torch.dtype, device: torch.device, most: int) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), device=device).bool()
    if dtype.is_complex:
        return torch.randn(count, dtype=dtype, device=device)
    if dtype in PACKED:
        return torch.randint(0, 256, (count,), dtype=torch.uint8, device=device).view(dtype)
    if dtype.is_floating_point:
        return torch.randn(count, device=device).to(dtype)
    low = 0 if most < LARGEST_INTEGER else 1  # 1, so that no divisor is zero
    return torch.randint(low, max(most, low + 1), (count,), device=device).to(dtype)


def _empty(view: TensorView, strides: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.empty_strided(view.sizes, strides, dtype=to_torch_dtype(view.dtype), device=device)


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its bytes if torch has no kernels for its type."""
    return tensor.view(torch.uint8) if tensor.dtype in PACKED else tensor


def _poison(result: torch.Tensor) -> None:
    if result.dtype.itemsize == 1 and result.is_floating_point():
        result.view(torch.uint8).fill_(255)
    elif result.is_floating_point() or result.is_complex():
        result.fill_(float("nan"))
    else:
        result.fill_(1 if result.dtype in (torch.bool, torch.uint8) else -1)


@dataclass(frozen=True)
class Trial:
    """A schedule and its compiled kernel. times: seconds of its calls so far."""

    scheduled: ScheduledFusion
    launcher: Launcher
    binaries: tuple[tuple[Recipe, Binary], ...]
    times: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the seconds of a call."""
        return median_high(self.times)


class Bench:
    """Runs trials of one part on one device, on the same arguments."""

    def __init__(self, part: Part, device: torch.device) -> None:
        self.arguments = arguments_of(part, device)
        self.part, self.device = part, device
        self.reference: list[torch.Tensor] = []

    # ---- results

    def run(self, trial: Trial) -> list[torch.Tensor]:
        """The results of a call on restored arguments."""
        with self._current():
            self.arguments.restore()
            self._call(trial)()
            self._wait()
            return [readable(result).clone() for result in self.arguments.results]

    def is_right(self, trial: Trial) -> bool:
        """True if the results equal those of the first trial, except for rounding."""
        results = self.run(trial)
        if not self.reference:
            self.reference = results
        bound = _bound(self.part)
        pairs = zip(results, self.reference, strict=True)
        return all(_is_near(result, expected, bound) for result, expected in pairs)

    def _call(self, trial: Trial) -> Callable[[], object]:
        source = trial.launcher.source
        assert source is not None
        run, arguments = trial.launcher.run, [*self.arguments.pointers(), *source.sizes]
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device).cuda_stream
            return lambda: run(stream, tuple(arguments))
        threads = torch.get_num_threads() if source.threaded else 1
        return lambda: run(*arguments, threads)

    def _current(self) -> AbstractContextManager[object]:
        """Makes the device the current one, because events are recorded on its stream."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # ---- times

    @cached_property
    def _flush(self) -> torch.Tensor:
        """The memory that is written before each call, to flush the caches."""
        size = FLUSH_BYTES
        if self.device.type == "cuda":
            facts = torch.cuda.get_device_properties(self.device)
            size = FLUSHED_CACHES * max(int(facts.L2_cache_size), 1 << 20)
        return torch.empty(size // 4, dtype=torch.int32, device=self.device)

    def rounds(self, trials: Sequence[Trial], least: int, most: int, until: float) -> None:
        """Times each trial once in each round, so that a drifting clock affects all alike.

        Ends after `most` rounds, or after `least` if `until` (time.monotonic) is past. Each round
        begins with another trial, because the first one after a wait may be slower than the rest.
        """
        with self._current():
            calls = [(trial, self._call(trial)) for trial in trials]
            for number in range(most):
                if number >= least and time.monotonic() > until:
                    return
                calls = calls[1:] + calls[:1]
                if self.device.type == "cuda":
                    self._cuda_round(calls)
                else:
                    self._cpu_round(calls)

    def _cpu_round(self, calls: Sequence[tuple[Trial, Callable[[], object]]]) -> None:
        for trial, call in calls:
            self._flush.add_(1)
            begin = time.perf_counter()
            call()
            trial.times.append(time.perf_counter() - begin)

    def _cuda_round(self, calls: Sequence[tuple[Trial, Callable[[], object]]]) -> None:
        """Times a round. The flushes also keep the device busy until the launch is enqueued."""
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls]
        self._flush.zero_()  # keeps it busy for the first call too
        for (_, call), (start, end) in zip(calls, pairs, strict=True):
            self._flush.zero_()
            start.record()
            call()
            end.record()
        self._wait()
        for (trial, _), (start, end) in zip(calls, pairs, strict=True):
            trial.times.append(start.elapsed_time(end) / 1e3)


# ---- what counts as equal


def _bound(part: Part) -> float:
    """The allowed difference of sums in another order, in units in the last place of the largest
    element."""
    sums = [e for e in (*part.reductions, *part.scans) if rounds(part, e.outputs[0])]
    most = 1
    for expr in sums:
        read = part.tensors[str(expr.inputs[0])].sizes
        most = max(most, prod(read))
    return ULPS + 4 * sqrt(most) if sums else float(ULPS)


def _is_near(result: torch.Tensor, expected: torch.Tensor, bound: float) -> bool:
    """True if elements differ by few units in the last place of their type, or by `bound` units of
    the computation's type relative to the largest element. Integers must be equal."""
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(result, expected)
    dtype = torch.float64 if expected.dtype is torch.float64 else torch.float32
    if expected.is_complex():
        result, expected = torch.view_as_real(result), torch.view_as_real(expected)
        dtype = expected.dtype
    a, b = result.to(dtype), expected.to(dtype)
    finite = b[b.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    relative = ULPS * torch.finfo(expected.dtype).eps
    absolute = bound * torch.finfo(dtype).eps * largest
    return torch.allclose(a, b, rtol=relative, atol=absolute, equal_nan=True)
