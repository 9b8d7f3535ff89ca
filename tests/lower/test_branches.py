# SPDX-License-Identifier: Apache-2.0
"""Threads branch to the operand of a cat that they write, where that saves work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.cases import Runner, rand
from helpers.graphs import Graph, meta, rows
from helpers.kernels import scheduled

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import If, statements_in
from thunder_fuser.lower.kernel_passes.branches import branch_at_choices
from thunder_fuser.lower.lower import kernel_of
from thunder_fuser.lower.size_arguments import with_free_sizes
from thunder_fuser.target import CPU, H200, Target

D = DataType


def chain(fd: FusionDefinition, x: Any, count: int) -> Any:
    """`count` operations one after the other."""
    for at in range(count):
        x = fd.ops.add(fd.ops.sin(x), fd.ops.mul(x, 0.5 + at))
    return x


def joined(width: int, count: int = 4, *, summed: bool = False, dim: int = 1) -> Graph:
    """cat of three chains of two tensors, and its sum over rows."""
    fd, x = rows(64, width)
    y = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=D.Float)
    parts = [chain(fd, x, count), chain(fd, y, count), chain(fd, fd.ops.exp(x), count)]
    z = fd.ops.cat(parts, dim)
    fd.add_output(z)
    if summed:
        fd.add_output(fd.ops.sum(z, [0]))
    return fd, [meta(64, width)] * 2


def branches(graph: Graph, target: Target = H200) -> int:
    """How many branches the pass makes in the first kernel."""
    kernel = kernel_of(Context(with_free_sizes(scheduled(graph, target)[0])), "k")
    after = branch_at_choices(kernel)
    assert branch_at_choices(after) == after
    made = [statements_in(one.body) for one in (kernel, after)]
    before, now = (sum(isinstance(s, If) for s in one) for one in made)
    return now - before


@pytest.mark.parametrize("summed", [False, True])
def test_it_fires(summed: bool) -> None:
    assert branches(joined(1024, summed=summed)) == 2


def test_rows_of_one_tensor_each_on_the_cpu() -> None:
    assert branches(joined(1024, dim=0), CPU) == 2


@pytest.mark.parametrize(
    "graph",
    [joined(1024, 0), joined(16), joined(1021)],
    ids=["little to save", "threads side by side differ", "lanes differ"],
)
def test_it_does_not_fire(graph: Graph) -> None:
    assert branches(graph) == 0


@pytest.mark.parametrize("shape", [(3, 1024), (5, 96)])
def test_values(run: Runner, shape: tuple[int, int]) -> None:
    fd, _ = joined(shape[1], summed=True)
    x, y = rand(*shape), rand(*shape, seed=1)

    def right(x: torch.Tensor) -> torch.Tensor:
        for at in range(4):
            x = torch.sin(x) + x * (0.5 + at)
        return x

    z = torch.cat([right(x.double()), right(y.double()), right(x.double().exp())], 1)
    for got, wanted in zip(run.execute(fd, [x, y]), (z, z.sum(0)), strict=True):
        torch.testing.assert_close(got, wanted.float(), rtol=1e-5, atol=1e-3)
