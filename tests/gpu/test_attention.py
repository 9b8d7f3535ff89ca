# SPDX-License-Identifier: Apache-2.0
"""Attention on a CUDA device is one kernel of torch, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients

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
    names = ("attention_forward", "sdpafx_grad_forward", "sdpaex_grad_forward")
    assert any(name in text for name in names)
    assert "matmul" not in text


def of_heads(x: torch.Tensor, is_causal: bool, scale: float | None) -> torch.Tensor:
    """Heads of one tensor [B, L, 3 * H * E], as a model has them: none lies alone in memory."""
    q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in x.chunk(3, dim=-1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("is_causal", "scale"), [(True, None), (False, None), (True, 0.3)])
@pytest.mark.parametrize(("length", "width"), [(128, 64), (192, 128), (100, 64), (128, 20)])
def test_strided_heads(
    dtype: torch.dtype, length: int, width: int, is_causal: bool, scale: float | None
) -> None:
    """cuDNN's kernel on Hopper, for whole tiles; another of torch's elsewhere."""
    def run(x: torch.Tensor) -> torch.Tensor:
        return of_heads(x, is_causal, scale)

    x = torch.randn(2, length, 12 * width, device="cuda", dtype=dtype)
    jitted = jit(run)
    got = with_gradients(jitted, [x])
    assert_as_exact_as_eager(got, with_gradients(run, [x]), with_gradients(run, [x.double()]))
    text = str(final_traces(jitted)[0])
    whole = length % 64 == 0 and width % 8 == 0
    hopper = torch.cuda.get_device_capability()[0] == 9
    assert ("attention_forward" in text) == (whole and hopper)
