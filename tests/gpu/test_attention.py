# SPDX-License-Identifier: Apache-2.0
"""Attention on a CUDA device is one kernel of torch, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from exactness import assert_as_exact_as_eager, with_gradients

from thunder_fuser.executors.traces import final_traces, jit

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q * 2, k, v, is_causal=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_one_kernel_of_torch(dtype: torch.dtype) -> None:
    made = [torch.randn(2, 4, 64, 32, device="cuda", dtype=dtype) for _ in range(3)]
    jitted = jit(attention)
    got = with_gradients(jitted, made)
    exact = with_gradients(attention, [one.double() for one in made])
    assert_as_exact_as_eager(got, with_gradients(attention, made), exact)
    text = str(final_traces(jitted)[0])
    assert "sdpafx_grad_forward" in text or "sdpaex_grad_forward" in text
    assert "matmul" not in text
