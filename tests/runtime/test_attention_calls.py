# SPDX-License-Identifier: Apache-2.0
"""Attention of definitions on a GPU: torch's own checks of the arguments, without memory."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_fuser.runtime.eager.torch_calls import attention, attention_backward

MASKS = ((), (1, 1, 1, 13), (3, 8, 13), (8, 1))


def on_gpu(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize("dropout", [None, 0.5])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", [(2,), (2, 5), (2, 5, 4)], ids=str)
def test_shapes(batch: tuple[int, ...], mask: tuple[int, ...], dropout: float | None) -> None:
    capturing = mock.patch("torch.cuda.is_current_stream_capturing", lambda: False)
    with FakeTensorMode(), capturing:
        qkv = [on_gpu(*batch, 3, length, 16) for length in (8, 13, 13)]
        masks = [on_gpu(*mask)] if mask else []
        out, sums, seed, offset = attention([*qkv, *masks], dropout, False, None)
        assert (out.shape, sums.shape) == (qkv[0].shape, (*batch, 3, 8))
        assert (seed.shape, seed.dtype, offset.shape) == ((2,), torch.int64, ())
        kept = [on_gpu(*out.shape), *qkv, out, sums, seed, offset, *masks]
        gradients = attention_backward(kept, dropout, False, None)
        assert [one.shape for one in gradients] == [one.shape for one in qkv]
