# SPDX-License-Identifier: Apache-2.0
"""Ops that are torch's kernels, where the kernel depends on the device: attention, scaled products.

Random numbers of attention's dropout are torch's. Its seed and offset are UInt64 to torch; as
values of a fusion they are Int, of the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_ATEN = torch.ops.aten


def attention(
    tensors: tuple[torch.Tensor, ...],
    dropout_p: float | None,
    is_causal: bool | None,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    """(output, logsumexp, seed, offset). A CPU draws no numbers, so its last two are zeros.

    tensors: query, key and value.
    """
    given = (*tensors, dropout_p or 0.0, bool(is_causal))
    if tensors[0].device.type == "cpu":
        found = _ATEN._scaled_dot_product_flash_attention_for_cpu(*given, scale=scale)
        empty = torch.zeros(2, dtype=torch.int64)
        return found[0], found[1], empty, empty[0].clone()
    found = _ATEN._scaled_dot_product_flash_attention(*given, scale=scale)
    return found[0], found[1], found[6].view(torch.int64), found[7].view(torch.int64)


def attention_backward(
    tensors: Sequence[torch.Tensor],
    dropout_p: float | None,
    is_causal: bool | None,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    """The gradients of query, key and value.

    tensors: the gradient of the output, query, key, value, output, logsumexp, seed, offset.
    """
    *given, seed, offset = tensors
    dropout, causal = dropout_p or 0.0, bool(is_causal)
    if given[0].device.type == "cpu":
        backward = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
        return tuple(backward(*given, dropout, causal, scale=scale))
    states = (seed.view(torch.uint64), offset.view(torch.uint64))
    lengths = (None, None, given[1].shape[2], given[2].shape[2])
    backward = _ATEN._scaled_dot_product_flash_attention_backward
    return tuple(backward(*given, *lengths, dropout, causal, *states, scale=scale))


def grouped_mm(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """One product a group; an operand that torch's kernel does not take as it lies is copied."""
    return torch._grouped_mm(_dense(a), _dense(b), offsets.int())


def _dense(x: torch.Tensor) -> torch.Tensor:
    """Rows or columns without gaps between their elements."""
    rows, columns = x.shape[-2:]
    is_dense = x.stride()[-2:] in ((columns, 1), (1, rows))
    return x if is_dense else x.contiguous()


def scaled_product(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """(a * scale_a) @ (b * scale_b), added in float."""
    is_8_bit = a.dtype.itemsize == 1 and b.dtype.itemsize == 1
    if not is_8_bit or (a.device.type == "cpu" and scale_a.numel() * scale_b.numel() != 1):
        wide = torch.float64 if a.dtype is torch.float64 else torch.float32
        left, right = a.to(wide) * scale_a.to(wide), b.to(wide) * scale_b.to(wide)
        return (left @ right).to(dtype)
    columns = b.t().contiguous().t()  # the only layout that torch's kernel takes
    return torch._scaled_mm(a, columns, scale_a, scale_b, out_dtype=dtype)
