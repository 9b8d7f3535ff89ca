# SPDX-License-Identifier: Apache-2.0
"""Sums over views: no argument has the axes that a kernel walks."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.kernels.operation import Argument, Operation, Shape, Sizes, wide
from thunder_fuser.ir.dtypes import DataType

UNUSED = 47  # columns of a vocabulary that is padded to whole tiles
HEADS = 8

_SUMS = Sizes(((-1, 64), (-1, 129)), ((8192, 3072), (-1, 4096)), ((32768, 1024), (8192, 768)))
_WORDS = Sizes(((-1, 130),), ((-1, 50304),), ((-1, 32768), (4096, 8192)))
_HEADS = Sizes(((-1, HEADS, 5, 16),), ((8, HEADS, 2048, 64),), ((4, HEADS, 4096, 128),))


def _three(shape: Shape) -> tuple[Argument, ...]:
    return (Argument(shape),) * 3


def _joined(ops: Any, shape: Shape, *parts: Any) -> Any:
    whole = ops.cat(list(parts), 1)
    return whole, ops.sum(whole, [0])


def _logsumexp(ops: Any, shape: Shape, x: Any) -> Any:
    used = ops.cast(ops.slice(x, [0, 0], [shape[0], shape[1] - UNUSED]), DataType.Float)
    most = ops.max(used, [1])
    shifted = ops.sub(used, ops.broadcast(most, [False, True]))
    return ops.add(most, ops.log(ops.sum(ops.exp(shifted), [1])))


def _heads(ops: Any, shape: Shape, x: Any) -> Any:
    batch, heads, length, width = shape
    ends, half = [batch, heads, length], width // 2
    left = ops.slice(x, [0, 0, 0, 0], [*ends, half])
    right = ops.slice(x, [0, 0, 0, half], [*ends, width])
    turned = ops.permute(ops.cat([ops.neg(right), left], -1), [0, 2, 1, 3])
    rows = ops.reshape(turned, [batch, length, heads * width])
    return rows, ops.sum(rows, [0, 1])


def _heads_in_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = x.chunk(2, -1)
    rows = torch.cat((-right, left), -1).transpose(1, 2).flatten(2)
    return rows, rows.sum((0, 1))


def _joined_in_torch(*parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.cat(parts, 1)
    return whole, whole.sum(0)


OPERATIONS = (
    Operation("joined_sum", "view sum", _three, _joined, _joined_in_torch, _SUMS),
    Operation(
        "slice_sum", "view sum", lambda shape: (Argument(shape),),
        lambda ops, shape, x: ops.sum(ops.slice(x, [0, 0], [shape[0], shape[1] - 16]), [0]),
        lambda x: x[:, :-16].sum(0), _SUMS,
    ),
    Operation(
        "padded_words", "view sum", lambda shape: (Argument(shape),), _logsumexp,
        lambda x: wide(x[:, :-UNUSED]).logsumexp(1).to(x.dtype), _WORDS,
    ),
    Operation(
        "head_sum", "view sum", lambda shape: (Argument(shape),), _heads, _heads_in_torch, _HEADS
    ),
)
