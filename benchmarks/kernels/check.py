# SPDX-License-Identifier: Apache-2.0
"""Results of a contender -> how far they are off a wider reference, and whether that is too far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from benchmarks.kernels.figure import Error
from benchmarks.kernels.operation import Operation, as_list

# What a result may be off though eager is not: half a unit in the last place of the 16-bit types;
# for float32 what a few thousand additions in one thread lose.
FLOOR = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 1e-5}
EXACT = Error(0.0, 0.0)
# Eager rounds after each operation, so nothing but a wild result of it is called wrong.
EAGER_FLOORS = 8


class Reference:
    """The right results of a point: on doubles where memory allows, else on float32."""

    def __init__(self, op: Operation, inputs: Sequence[torch.Tensor]) -> None:
        self.op = op
        self.dtype = inputs[0].dtype if op.exact else _wide_dtype(inputs)
        self._inputs = [_cast(tensor, self.dtype) for tensor in inputs]
        self._known = None if op.reference else as_list(op.expression(*self._inputs))

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def error(self, results: Sequence[torch.Tensor]) -> Error:
        """The largest errors of all results; AssertionError if their number or a shape is wrong."""
        exact = self._known or self._given(results)
        if len(results) != len(exact):
            raise AssertionError(f"expected {len(exact)} results, got {len(results)}")
        found = [_error(*pair) for pair in zip(results, exact, strict=True)]
        return Error(*(_largest(values) for values in zip(*found, strict=True)))

    def _given(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert self.op.reference is not None
        return list(self.op.reference(self._inputs, [_cast(t, self.dtype) for t in results]))


def _wide_dtype(inputs: Sequence[torch.Tensor]) -> torch.dtype:
    """float64, unless several copies of the inputs in it would not fit on the device."""
    if not inputs[0].is_cuda:
        return torch.float64
    free, _ = torch.cuda.mem_get_info()
    return torch.float64 if 6 * 8 * sum(t.numel() for t in inputs) < free else torch.float32


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _error(got: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """(RMS, largest) relative error. The first sees a small fault everywhere, the second a large
    one in a few places; NaN where a result is."""
    if got.shape != exact.shape:
        raise AssertionError(f"expected shape {tuple(exact.shape)}, got {tuple(got.shape)}")
    if exact.dtype.is_floating_point and exact.dtype.itemsize == 1:  # torch subtracts none of these
        assert got.dtype is exact.dtype
        got, exact = (one.view(torch.uint8).float() for one in (got, exact))
    tiny = torch.finfo(exact.dtype).tiny
    off = got.to(exact.dtype).sub_(exact) if got.dtype != exact.dtype else got - exact
    rms, largest = off.norm(dtype=torch.float64), off.abs_().max()
    scale = exact.norm(dtype=torch.float64)
    return float(rms / scale.clamp(min=tiny)), float(largest / exact.abs().max().clamp(min=tiny))


def _largest(values: Sequence[float]) -> float:
    """The largest, or NaN if one is."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def limit_for(op: Operation, dtype: torch.dtype, eager: Error) -> Error:
    """No worse than eager by a fifth (twice, for the worst element), above a floor."""
    if op.exact:
        return EXACT
    floor = max(FLOOR.values()) if op.keeps_types else FLOOR[dtype]
    return Error(max(1.2 * eager.rms, floor), max(2 * eager.largest, 2 * floor))


def limit_of_eager(op: Operation, dtype: torch.dtype) -> Error:
    """What eager itself may be off."""
    if op.exact:
        return EXACT
    return Error(EAGER_FLOORS * FLOOR[dtype], 2 * EAGER_FLOORS * FLOOR[dtype])


def fault(error: Error, limit: Error) -> str:
    """What is wrong with an error, or nothing. A NaN is over every limit."""
    if error.rms <= limit.rms and error.largest <= limit.largest:
        return ""
    return (
        f"error {error.rms:.2g} and {error.largest:.2g}, "
        f"limit {limit.rms:.2g} and {limit.largest:.2g}"
    )


@contextmanager
def poisoned() -> Iterator[None]:
    """New tensors are full of NaN meanwhile, so an element that a kernel leaves out is seen."""
    was = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)
