# SPDX-License-Identifier: Apache-2.0
"""Attention goes to torch's kernels where they take it, and is taken apart on the CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from thunder_fuser.executors.traces import jit
from thunder_fuser.explain.report import why


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_on_the_cpu_it_is_taken_apart_and_says_so() -> None:
    jitted = jit(attention)
    q, k, v = (torch.randn(2, 3, 16, 8) for _ in range(3))
    torch.testing.assert_close(jitted(q, k, v), attention(q, k, v))
    assert "attention on the CPU, which Thunder takes apart" in str(why(jitted))
