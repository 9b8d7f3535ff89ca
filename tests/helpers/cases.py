# SPDX-License-Identifier: Apache-2.0
"""Definitions that run, on each target, held against torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import options

Build = Callable[[FusionDefinition], None]

REAL = tuple(dtype for dtype in DataType if not dtype.is_complex)
TARGETS = ("cpu", "emulator")


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same on every run."""
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(shape, generator=generator).to(dtype)


def ints(
    *shape: int, low: int = -9, high: int = 10, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """Whole numbers in [low, high), the same on every run."""
    generator = torch.Generator().manual_seed(7)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


class Runner:
    """`run(build, inputs, expected)` runs on one target; compares dtype, shape, strides, values.

    Strides: those of `strides`, or row-major ones. Results are poisoned before they are written,
    and the emulator runs the threads of a block in both orders.
    """

    def __init__(self, target: str) -> None:
        self.target = target

    def __call__(
        self,
        build: Build,
        inputs: Sequence[Any],
        expected: Sequence[torch.Tensor],
        *,
        strides: Sequence[tuple[int, ...]] | None = None,
        tolerance: float | None = None,
    ) -> list[torch.Tensor]:
        """Returns the results as well."""
        with FusionDefinition() as fd:
            build(fd)
        results = self.execute(fd, inputs)
        assert len(results) == len(expected)
        for at, (result, value) in enumerate(zip(results, expected, strict=True)):
            layout = value.contiguous().stride() if strides is None else strides[at]
            assert result.stride() == layout, f"result {at} has strides {result.stride()}"
            assert_near(result, value, tolerance)
        return results

    def execute(self, fd: FusionDefinition, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The results, from memory that was poisoned first."""
        with poisoned():
            results = fd.execute(inputs, target=self.target)
            aliased = any(output.alias for output in fd.fusion.outputs)
            if self.target == "emulator" and not aliased:
                with options(emulate_reversed=True):
                    again = fd.execute(inputs, target=self.target)
                for a, b in zip(results, again, strict=True):
                    assert_near(a, b)
        return results


def assert_near(
    result: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None
) -> None:
    """Equal in dtype, shape and values; NaN equals NaN."""
    assert result.dtype is expected.dtype
    if result.dtype.is_floating_point and result.dtype.itemsize == 1:
        result, expected = result.float(), expected.float()  # torch compares no 8-bit floats
    torch.testing.assert_close(
        result, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False
    )


@contextmanager
def poisoned() -> Iterator[None]:
    """New memory is full of NaN, or of the largest integer, so that what is not written shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
