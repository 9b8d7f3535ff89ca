# SPDX-License-Identifier: Apache-2.0
"""What a row of the benchmark is: one computation, defined for the fuser and once in torch.

A shape is a tuple of sizes whose first one is -1 where it grows until the largest argument fills
the bytes of the run (fill), or a number that it never exceeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.runtime.torch_types import from_torch_dtype

Shape = tuple[int, ...]
Reference = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Sequence[torch.Tensor]]

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Argument:
    """One input. kind: normal; near_one (0.5 to 1.5); statistic (near_one, kept in the type torch
    keeps statistics in); bf16 in every run; classes (int64 below the last size of the first
    argument); mask (bools)."""

    shape: Shape
    kind: str = "normal"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shapes of a run. `full` has those of `gate` and `more`; `gate_f32` run in float32 too."""

    small: tuple[Shape, ...]
    gate: tuple[Shape, ...]
    more: tuple[Shape, ...] = ()
    gate_f32: tuple[Shape, ...] = ()


@dataclass(frozen=True)
class Operation:
    """define(ops, shape, *tensors) records it; expression(*tensors) is the same in torch.

    torch.compile gets `expression`, and on doubles it is the reference. `eager` is what eager torch
    runs, if another. Both return a tensor or several. `exact`: results are not rounded.
    `reference(inputs, results)` is the reference where results do not follow from the inputs.
    `passes`: how often the input is read by a kernel that cannot keep it on chip.
    """

    name: str
    group: str
    arguments: Callable[[Shape], tuple[Argument, ...]]
    define: Callable[..., Any]
    expression: Callable[..., Any]
    sizes: Sizes
    eager: Callable[..., Any] | None = None
    reference: Reference | None = None
    exact: bool = False
    is_random: bool = False
    passes: int = 1

    def run_eager(self, *tensors: torch.Tensor) -> Any:
        """Eager torch's results."""
        return (self.eager or self.expression)(*tensors)


def fill(op: Operation, shape: Shape, dtype: torch.dtype, limit: int) -> Shape:
    """The shape with its first size such that the largest argument has at most `limit` bytes."""
    one = (1, *shape[1:])
    row = max(math.prod(argument.shape) for argument in op.arguments(one)) * dtype.itemsize
    most = max(1, limit // row)
    return (most if shape[0] == -1 else min(shape[0], most), *shape[1:])


def make_inputs(
    op: Operation, shape: Shape, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """Fresh random arguments."""
    arguments = op.arguments(shape)
    return [_make(argument, arguments[0].shape[-1], dtype, device) for argument in arguments]


def _make(
    argument: Argument, classes: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    shape = argument.shape
    if argument.kind == "classes":
        return torch.randint(classes, shape, device=device)
    if argument.kind == "mask":
        return torch.rand(shape, device=device) < 0.5
    if argument.kind in ("normal", "bf16"):
        own = torch.bfloat16 if argument.kind == "bf16" else dtype
        return torch.randn(shape, device=device, dtype=own)
    # CUDA's kernels keep the statistics of a 16-bit norm in float32, the CPU's in 16 bits.
    wide = argument.kind == "statistic" and device.type == "cuda"
    return torch.rand(shape, device=device).add_(0.5).to(torch.float32 if wide else dtype)


def make_definition(
    op: Operation, shape: Shape, inputs: Sequence[torch.Tensor]
) -> FusionDefinition:
    """The operation for inputs like these; results have the first one's dtype, but those of an
    exact operation their own."""
    dtype = from_torch_dtype(inputs[0].dtype)
    with FusionDefinition() as fd:
        found = op.define(fd.ops, shape, *(fd.from_pytorch(tensor) for tensor in inputs))
        for result in found if isinstance(found, tuple) else (found,):
            fd.add_output(result if op.exact else fd.ops.cast(result, dtype))
    return fd


def as_list(found: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a call as a list."""
    return [found] if isinstance(found, torch.Tensor) else list(found)


def bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    """The memory their elements take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float32, or as it is if wider, as the fuser computes."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def row_vector(ops: Any, vector: Any) -> Any:
    """[columns] -> [1, columns]"""
    return ops.broadcast(vector, [True, False])


def column_vector(ops: Any, vector: Any) -> Any:
    """[rows] -> [rows, 1]"""
    return ops.broadcast(vector, [False, True])
