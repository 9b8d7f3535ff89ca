# SPDX-License-Identifier: Apache-2.0
"""Results in the memory of donated arguments, on a CUDA device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.explain.jitted import jit

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]

SHAPES = ((1, 1), (3, 4097), (513, 1000), (8192, 4096))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_written_in_place(shape: tuple[int, int], dtype: torch.dtype) -> None:
    own = DataType.BFloat16 if dtype is torch.bfloat16 else DataType.Float
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=own, donated=True)
        y = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=own)
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(x, 3.0), y), own))
    for _ in range(3):
        a, b = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
        expected, place = (a.float() * 3 + b.float()).to(dtype), a.data_ptr()
        (found,) = fd.execute([a, b])
        torch.testing.assert_close(found, expected)
        assert found.data_ptr() == place


def loss(x: Any, w: Any, target: Any) -> Any:
    return F.cross_entropy(x @ w.t(), target)


def test_logits_become_their_gradient() -> None:
    """One tensor of [4096, 32000] less at the peak, and the same gradients."""
    x, w = (torch.randn(n, 64, device="cuda").bfloat16().requires_grad_() for n in (4096, 32000))
    target = torch.randint(0, 32000, (4096,), device="cuda")
    found, peaks = [], []
    for on in (True, False):
        jitted = jit(loss, strict=True, donation=on)
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            found.append(torch.autograd.grad(jitted(x, w, target), (x, w)))
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] - peaks[0] >= 0.99 * 4096 * 32000 * 2
    assert all(map(torch.equal, found[1], found[3]))
    result = jit(loss, strict=True)(x, w, target)
    for last in (False, True):
        again = torch.autograd.grad(result, (x, w), retain_graph=not last)
        assert all(map(torch.equal, again, found[1]))
