# SPDX-License-Identifier: Apache-2.0
"""The loss of a language model without its logits, on a CUDA device: exactness, peak, bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients

from thunder_fuser.explain.jitted import final_traces, jit

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]

ROWS, WIDTH, CLASSES = 1000, 64, 8001


def operands(dtype: torch.dtype, classes: int = CLASSES) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (ROWS, WIDTH), (classes, WIDTH), (classes,)
    h, w, b = (torch.randn(*shape, device="cuda") for shape in shapes)
    target = torch.randint(0, classes, (ROWS,), device="cuda")
    target[1::4] = -100
    return [h.to(dtype), (w * 0.1).to(dtype), b.to(dtype), target]


def capped(h: Any, w: Any, b: Any, target: Any) -> Any:
    x = F.linear(h, w, b)
    return F.cross_entropy(5.0 * torch.tanh(x / 5.0), target)


def plain(h: Any, w: Any, b: Any, target: Any) -> Any:
    return F.cross_entropy(F.linear(h, w, b), target)


def smoothed(h: Any, w: Any, b: Any, target: Any) -> Any:
    weight = b.detach().abs() + 0.5  # of classes
    x = F.linear(h, w, b)
    return F.cross_entropy(x, target, weight, label_smoothing=0.1, reduction="sum")


def widened(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [v.double() if v.is_floating_point() else v for v in values]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [64, 300, 999])
@pytest.mark.parametrize("function", [plain, capped, smoothed])
def test_as_exact_as_eager(function: Any, rows: int, dtype: torch.dtype) -> None:
    values, jitted = operands(dtype), jit(function, strict=True, loss_rows=rows)
    got = with_gradients(jitted, values)
    assert_as_exact_as_eager(
        got, with_gradients(function, values), with_gradients(function, widened(values))
    )
    names = {bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols}
    assert any(name.startswith("chunkedLoss") for name in names)
    assert all(map(torch.equal, got, with_gradients(jitted, values)))


def test_the_peak_is_that_of_a_chunk() -> None:
    """The whole logits are 8 chunks; their gradient lies in the same memory in both."""
    values, classes = operands(torch.bfloat16, 64000), 64000
    leaves = [v.requires_grad_(v.is_floating_point()) for v in values]
    peaks = []
    for rows in (0, 125):
        jitted = jit(plain, strict=True, loss_rows=rows)
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            torch.autograd.grad(jitted(*leaves), leaves[:3])
        peaks.append(torch.cuda.max_memory_allocated() - before)
    chunk, weight = 128 * classes * 2, classes * WIDTH * 2
    assert peaks[0] >= ROWS * classes * 2
    # Beside a chunk lie the float32 sums of the weight's gradient; later, this gradient in bf16.
    assert peaks[1] <= 1.1 * (2 * weight + max(chunk, weight))
