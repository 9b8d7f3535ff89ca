# SPDX-License-Identifier: Apache-2.0
"""Ops that call torch's kernels, which depend on the device: attention and grouped products.

torch draws the random numbers of attention's dropout. torch's seed and offset are UInt64; in a
fusion they are Int with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

_ATEN = torch.ops.aten


def attention(
    operands: Sequence[torch.Tensor],
    dropout_p: float | None,
    is_causal: bool | None,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    """(output, logsumexp, seed, offset). A CPU draws no numbers, so there the last two are zeros.

    operands: query, key, value, and a mask that is added, if there is one.
    """
    query, key, value, *masks = operands
    given = (query, key, value, dropout_p or 0.0, bool(is_causal))
    if query.device.type == "cpu":
        mask = _whole(masks, query, key)
        found = _ATEN._scaled_dot_product_flash_attention_for_cpu(
            *given, attn_mask=mask, scale=scale
        )
        empty = torch.zeros(2, dtype=torch.int64, device="cpu")
        return found[0], found[1], empty, empty[0].clone()
    if masks:
        efficient = _ATEN._scaled_dot_product_efficient_attention
        mask = _whole(masks, query, key)
        output, sums, seed, offset = efficient(*given[:3], mask, True, *given[3:], scale=scale)
        seed, offset = (one.to(query.device) for one in (seed, offset))  # they may be on the host
        return output, sums[..., : query.shape[2]], torch.stack([seed, offset]), offset
    found = _ATEN._scaled_dot_product_flash_attention(*given, scale=scale)
    return found[0], found[1], found[6].view(torch.int64), found[7].view(torch.int64)


def _whole(
    masks: Sequence[torch.Tensor], query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor | None:
    """The mask, expanded to the scores' sizes. On a GPU its rows begin at multiples of 16 bytes."""
    if not masks:
        return None
    (mask,), length = masks, key.shape[2]
    if query.device.type != "cpu" and length % 8:
        mask = F.pad(mask.expand(*mask.shape[:-1], length), (0, 8 - length % 8))[..., :length]
    return mask.expand(*query.shape[:3], length)


def attention_backward(
    operands: Sequence[torch.Tensor],
    dropout_p: float | None,
    is_causal: bool | None,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    """The gradients of query, key and value.

    operands: the gradient of the output, query, key, value, output, logsumexp, seed, offset, and
    the mask, if there is one.
    """
    given, (seed, offset), masks = operands[:6], operands[6:8], operands[8:]
    query, key = given[1:3]
    dropout, causal = dropout_p or 0.0, bool(is_causal)
    if query.device.type == "cpu":
        backward = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
        mask = _whole(masks, query, key)
        return tuple(backward(*given, dropout, causal, attn_mask=mask, scale=scale))
    if masks:
        mask, length = _whole(masks, query, key), query.shape[2]
        sums = F.pad(given[5], (0, -length % 32), value=torch.inf)  # as the kernel wrote them
        backward = _ATEN._scaled_dot_product_efficient_attention_backward
        asked = [True, True, True, False]
        states = seed[0], offset
        if dropout and not torch.cuda.is_current_stream_capturing():
            states = seed[0].cpu(), offset.cpu()  # the host reads them before the launch
        return tuple(backward(*given[:4], mask, given[4], sums, *states, dropout, asked, causal,
                              scale=scale)[:3])  # fmt: skip
    states = (seed.view(torch.uint64), offset.view(torch.uint64))
    lengths = (None, None, query.shape[2], key.shape[2])
    backward = _ATEN._scaled_dot_product_flash_attention_backward
    return tuple(backward(*given, *lengths, dropout, causal, *states, scale=scale))


def grouped_mm(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """One product for each group. An operand in a layout that torch's kernel rejects is copied."""
    return torch._grouped_mm(_dense(a), _dense(b), offsets.int())


def grouped_weight_gradient(
    a: torch.Tensor, gradient: torch.Tensor, offsets: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """The gradient of b[g, k, n] in a product of groups of rows of a[m, k], in b's layout.

    So that of a transposed weight is that of the weight, contiguous, which autograd needs not copy.
    """
    if b.stride(-2) == 1 != b.stride(-1):
        return grouped_mm(gradient.mT, a, offsets).mT
    return grouped_mm(a.mT, gradient, offsets)


def _dense(x: torch.Tensor) -> torch.Tensor:
    """The tensor, copied unless its rows or its columns are contiguous."""
    rows, columns = x.shape[-2:]
    is_dense = x.stride()[-2:] in ((columns, 1), (1, rows))
    return x if is_dense else x.contiguous()
