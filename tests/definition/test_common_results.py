# SPDX-License-Identifier: Apache-2.0
"""Equal results are tensors of their own, whatever else is equal to them."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.explain.jitted import jit


@pytest.mark.parametrize("results", [2, 3])
@pytest.mark.parametrize("is_read", [False, True])
def test_no_memory_is_shared(run: Runner, results: int, is_read: bool) -> None:
    """is_read: by an op whose operand is the same once more."""

    def build(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(torch.empty(4, 6))
        if is_read:
            fd.add_output(fd.ops.neg(fd.ops.exp(t)))
        for _ in range(results):
            fd.add_output(fd.ops.exp(t))

    x = rand(4, 6)
    made = run(build, [x], [*[-x.exp()] * is_read, *[x.exp()] * results])
    assert len({one.data_ptr() for one in made}) == len(made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e5m2])
def test_gradients_of_equal_results(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.to(dtype).to(torch.int8), x.to(dtype), x.to(dtype)

    x = torch.tensor([0.5, 2.0], dtype=torch.float16, requires_grad=True)
    _, first, second = jit(function, strict=True)(x)
    assert first is not second and first.data_ptr() != second.data_ptr()
    seeds = [torch.ones(2).to(dtype)] * 2
    (gradient,) = torch.autograd.grad([first, second], [x], seeds)
    assert gradient.tolist() == [2.0, 2.0]
