# SPDX-License-Identifier: Apache-2.0
"""Who is measured: each makes, for a point, the function that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.figure import CLONE, COMPILE, COPY, EAGER, OURS, READ, TUNED
from benchmarks.kernels.operation import Operation, Shape, make_definition

Run = Callable[..., Any]
Make = Callable[[Operation, Shape, Sequence[torch.Tensor]], Run]
Call = Callable[[], object]

# What writes less than this part of its bytes is also held against a sum, which only reads.
_WRITES_LITTLE = 0.02


def _ours(op: Operation, shape: Shape, inputs: Sequence[torch.Tensor]) -> Run:
    return make_definition(op, shape, inputs).entry.prepare().callable()


def _eager(op: Operation, shape: Shape, inputs: Sequence[torch.Tensor]) -> Run:
    return op.run_eager


def _compiled(op: Operation, shape: Shape, inputs: Sequence[torch.Tensor]) -> Run:
    """torch.compile for these sizes only: the best it can do."""
    torch._dynamo.reset()  # else it gives up on a function after eight shapes
    return torch.compile(op.expression, dynamic=False)


def _tuned(op: Operation, shape: Shape, inputs: Sequence[torch.Tensor]) -> Run:
    return torch.compile(op.expression, dynamic=False, mode="max-autotune-no-cudagraphs")


# In this order: eager's error is part of the others' limit.
CONTENDERS: Mapping[str, Make] = {EAGER: _eager, OURS: _ours, COMPILE: _compiled, TUNED: _tuned}


def _words(block: torch.Tensor) -> torch.dtype:
    """The widest type that the bytes of a block are a whole number of."""
    return next(t for t in (torch.int32, torch.uint8) if block.numel() % t.itemsize == 0)


def yardsticks(moved: int, written: int, device: torch.device) -> dict[str, Call]:
    """clone of as many bytes, half of them read and half written; and a sum that only reads."""
    block = torch.empty(max(1, moved // 2), dtype=torch.uint8, device=device).fill_(1)
    found: dict[str, Call] = {CLONE: block.clone}
    if device.type == "cuda":
        # In a graph a clone is a memory node, which a slower copy engine may run.
        found[COPY] = partial(torch.bitwise_not, block.view(_words(block)))
    if written < _WRITES_LITTLE * moved:
        numbers = torch.ones(max(1, moved // 4), device=device)
        found[READ] = numbers.sum
    return found
