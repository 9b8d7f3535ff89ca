# SPDX-License-Identifier: Apache-2.0
"""The options of a run -> the points to measure: an operation, a dtype and a shape each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from benchmarks.kernels import columns, fused, pointwise, quantize, rows, views
from benchmarks.kernels.operation import Operation, Shape, fill
from thunder_fuser.errors import InputError

OPERATIONS: Mapping[str, Operation] = {
    op.name: op
    for table in (pointwise, rows, columns, views, quantize, fused)
    for op in table.OPERATIONS
}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
SIZES = ("small", "gate", "full")
_USUAL_DTYPES = {"small": ("bf16", "f32"), "gate": ("bf16", "f32"), "full": tuple(DTYPES)}
BYTES = {
    "small": {"cpu": 1 << 14, "cuda": 1 << 14},
    "gate": {"cpu": 16 << 20, "cuda": 512 << 20},
    "full": {"cpu": 64 << 20, "cuda": 1 << 30},
}


@dataclass(frozen=True, slots=True)
class Point:
    """What one line of the table is about."""

    op: Operation
    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.op.name} {self.dtype} {'x'.join(map(str, self.shape))}"

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


def points(pattern: str, dtypes: Iterable[str], sizes: str, device: torch.device) -> list[Point]:
    """The points of the operations whose name the pattern finds; no dtypes: the usual ones.

    Raises InputError if the pattern is none, or finds no operation.
    """
    chosen = tuple(dtypes) or _USUAL_DTYPES[sizes]
    operations = _matching(pattern)
    limit = BYTES[sizes][device.type]
    found = {
        Point(op, dtype, fill(op, shape, DTYPES[dtype], limit)): None
        for dtype in chosen  # the first one whole, should the time not be enough for all
        for op in operations
        for shape in _shapes(op, dtype, sizes)
    }
    return list(found)


def _matching(pattern: str) -> list[Operation]:
    try:
        found = [op for name, op in OPERATIONS.items() if re.search(pattern, name)]
    except re.error as error:
        raise InputError("--ops", expected="a regular expression", got=f"{pattern!r}") from error
    if not found:
        raise InputError("--ops", expected=f"one of {', '.join(OPERATIONS)}", got=f"{pattern!r}")
    return found


def _shapes(op: Operation, dtype: str, sizes: str) -> tuple[Shape, ...]:
    if sizes == "small":
        return op.sizes.small
    if sizes == "full":
        return (*op.sizes.gate, *op.sizes.more)
    return op.sizes.gate if dtype == "bf16" else op.sizes.gate_f32
