# SPDX-License-Identifier: Apache-2.0
"""Ops that call torch's kernels, which depend on the device: attention and grouped products.

torch draws the random numbers of attention's dropout. torch's seed and offset are UInt64; in a
fusion they are Int with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

    operands: query, key, value, each [*batch, H, L, E], and a mask that is added, if there is one.
    """
    batch, qkv = operands[0].shape[:-3], [*map(_flat, operands[:3])]
    mask = _flat_mask(operands[3:], operands[0])
    settings = (dropout_p or 0.0, bool(is_causal))
    if qkv[0].device.type == "cpu":
        flash = _ATEN._scaled_dot_product_flash_attention_for_cpu
        output, sums = flash(*qkv, *settings, attn_mask=mask, scale=scale)
        seed, offset = (torch.zeros(size, dtype=torch.int64, device="cpu") for size in ((2,), ()))
    elif mask is not None:
        output, sums, *states = masked_attention(qkv, mask, *settings, scale)
        seed, offset = (state.to(output.device) for state in states)  # they may be on the host
        sums, seed = sums[..., : output.shape[2]], torch.stack([seed, offset])
    else:
        results = _ATEN._scaled_dot_product_flash_attention(*qkv, *settings, scale=scale)
        (output, sums), (seed, offset) = results[:2], (x.view(torch.int64) for x in results[6:8])
    return output.unflatten(0, batch), sums.unflatten(0, batch), seed, offset


def masked_attention(
    qkv: Sequence[torch.Tensor], mask: torch.Tensor, dropout_p: float, is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """As `attention` of [N, H, L, E], by torch's kernel for a GPU that adds a mask.

    The mask broadcasts to the scores. logsumexp has 32 * n rows; seed and offset may be on the
    host.
    """
    qkv = [*map(rows, qkv)]
    arguments = (_scores_of(mask, qkv[0], qkv[1]), True, dropout_p, is_causal)
    return tuple(_ATEN._scaled_dot_product_efficient_attention(*qkv, *arguments, scale=scale))


def masked_gradients(
    gradient: torch.Tensor, qkv: Sequence[torch.Tensor], mask: torch.Tensor,
    kept: Sequence[torch.Tensor], *, dropout_p: float, is_causal: bool, scale: float | None,
    of_mask: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The gradients of query, key, value and, if asked for, of the expanded mask.

    kept: what `masked_attention` returned, or without dropout the first two.
    """
    operands, (out, sums, *states) = [*map(rows, (gradient, *qkv))], kept
    out = out.transpose(1, 2).contiguous().transpose(1, 2)  # the kernel derives its strides
    seed, offset = states or [sums.new_empty((), dtype=torch.int64)] * 2
    return tuple(_ATEN._scaled_dot_product_efficient_attention_backward(
        *operands, _scores_of(mask, qkv[0], qkv[1]), out, sums, seed, offset, dropout_p,
        [True, True, True, of_mask], is_causal, scale=scale,
    ))  # fmt: skip


def _scores_of(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The mask, expanded to the scores' sizes, in rows that begin at multiples of 16 bytes."""
    mask, length = mask[(None,) * (4 - mask.ndim)], key.shape[2]
    mask = mask.expand(-1, -1, -1, length)
    *steps, last = mask.stride()
    if last != 1 or any(step % 8 for step in (*steps, mask.storage_offset())):
        mask = F.pad(mask, (0, -length % 8)).contiguous()[..., :length]
    return mask.expand(*query.shape[:3], length)


def rows(x: torch.Tensor) -> torch.Tensor:
    """The tensor, copied if the kernels cannot read its rows, on a GPU in words of 16 bytes."""
    in_words = x.is_cuda and not x.shape[-1] * x.itemsize % 16
    starts = (*x.stride()[:-1], x.storage_offset()) if in_words else ()
    is_readable = x.stride(-1) == 1 and not any(start * x.itemsize % 16 for start in starts)
    return x if is_readable else x.clone(memory_format=torch.contiguous_format)


def _flat(x: torch.Tensor) -> torch.Tensor:
    """[*batch, H, L, E]  ->  [N, H, L, E]"""
    return rows(x.flatten(0, -4))


def _flat_mask(masks: Sequence[torch.Tensor], query: torch.Tensor) -> torch.Tensor | None:
    """A mask of scores [*batch, H, L, S], if there is one  ->  one of [N, H, L, S]"""
    if not masks:
        return None
    mask = masks[0][(None,) * (query.ndim - masks[0].ndim)]
    return mask.expand(*query.shape[:-3], -1, -1, -1).flatten(0, -4)


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
    batch, (seed, offset) = operands[1].shape[:-3], operands[6:8]
    gradient, *qkv, output = map(_flat, operands[:5])
    sums, mask = operands[5].flatten(0, -3), _flat_mask(operands[8:], operands[1])
    settings: dict[str, Any] = {"dropout_p": dropout_p or 0.0, "is_causal": bool(is_causal)}
    settings["scale"] = scale
    if gradient.device.type == "cpu":
        backward = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
        gradients = backward(gradient, *qkv, output, sums, attn_mask=mask, **settings)
    elif mask is not None:
        sums = F.pad(sums, (0, -sums.shape[2] % 32), value=torch.inf)  # as the kernel wrote them
        states = [seed[0], offset]
        if dropout_p and not torch.cuda.is_current_stream_capturing():
            states = [state.cpu() for state in states]  # the host reads them before the launch
        gradients = masked_gradients(gradient, qkv, mask, (output, sums, *states), **settings)
    else:
        backward = _ATEN._scaled_dot_product_flash_attention_backward
        states = [state.view(torch.uint64) for state in (seed, offset)]
        gradients = backward(
            gradient, *qkv, output, sums, None, None, qkv[0].shape[2], qkv[1].shape[2],
            philox_seed=states[0], philox_offset=states[1], **settings,
        )  # fmt: skip
    return tuple(x.unflatten(0, batch) for x in gradients[:3])


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
    """The tensor, copied unless its rows or its columns lie without gaps, at whole 16 bytes."""
    (rows, columns), strides, step = x.shape[-2:], x.stride()[-2:], 16 // x.itemsize
    if strides in ((columns, 1), (1, rows)) and not max(strides) % step:
        return x
    return F.pad(x, (0, -columns % step)).contiguous()[..., :columns]
