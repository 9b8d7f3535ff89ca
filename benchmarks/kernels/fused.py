# SPDX-License-Identifier: Apache-2.0
"""What models compute around their products: masked scores, soft caps, norms of images with their
activations, quantized rows, an optimizer's update."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.kernels.operation import (
    EPS,
    Argument,
    Operation,
    Shape,
    Sizes,
    column_vector,
    wide,
)
from thunder_fuser.ir.dtypes import DataType

CAP = 30.0
GROUPS = 32
FLOAT8_MOST = 448.0
RATE, DECAY, BETA1, BETA2, TINY = 1e-3, 0.1, 0.9, 0.95, 1e-8

_SCORES = Sizes(
    ((-1, 2, 5, 33), (-1, 2, 8, 64)), ((-1, 16, 1024, 1024),),
    ((-1, 16, 512, 512), (-1, 16, 2048, 2048), (-1, 16, 4096, 4096)), ((-1, 16, 1024, 1024),),
)
_ROWS = Sizes(
    ((-1, 33), (-1, 128)), ((-1, 8192), (-1, 16384)), tuple((-1, n) for n in (1024, 4096, 14336)),
    ((-1, 8192),),
)
_CAPPED = Sizes(
    ((-1, 33), (-1, 128)), ((-1, 16384),), tuple((-1, n) for n in (4096, 32000, 256000)),
    ((-1, 16384),),
)
_UPDATES = Sizes(((-1, 33), (-1, 128)), ((-1, 4096),), ((-1, 4095),), ((-1, 4096),))
_IMAGES = Sizes(((-1, 6, 7, 64),), ((64, 56, 56, 256),), ((32, 64, 64, 320), (256, 14, 14, 1024)))
_CHANNELS = Sizes(((-1, 5, 6, 7),), ((64, 256, 56, 56),), ((256, 64, 112, 112), (256, 512, 7, 7)))


def _softmax_under_mask(ops: Any, shape: Shape, x: Any, mask: Any) -> Any:
    masked = ops.where(ops.broadcast(mask, [True, True, False, False]), x, -math.inf)
    exps = ops.exp(ops.sub(masked, ops.max(masked, [-1], keepdim=True)))
    return ops.truediv(exps, ops.sum(exps, [-1], keepdim=True))


def _rows_to_float8(ops: Any, shape: Shape, x: Any) -> Any:
    largest = ops.max(ops.abs(x), [-1])
    scale = ops.truediv(ops.cast(largest, DataType.Float), FLOAT8_MOST)
    return ops.cast(ops.truediv(x, column_vector(ops, scale)), DataType.Float8_e4m3fn), scale


def _torch_rows_to_float8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = wide(x.abs().amax(-1)) / FLOAT8_MOST
    return (wide(x) / scale[:, None]).to(torch.float8_e4m3fn), scale


def _capped_logsumexp(ops: Any, shape: Shape, x: Any) -> Any:
    capped = ops.mul(CAP, ops.tanh(ops.mul(1 / CAP, x)))
    largest = ops.max(capped, [-1], keepdim=True)
    total = ops.sum(ops.exp(ops.sub(capped, largest)), [-1])
    return ops.add(ops.log(total), ops.squeeze(largest, [1]))


def _adamw(ops: Any, shape: Shape, *tensors: Any) -> Any:
    param, mean, square, gradient = tensors
    mean = ops.add(ops.mul(BETA1, mean), ops.mul(1 - BETA1, gradient))
    square = ops.add(ops.mul(BETA2, square), ops.mul(1 - BETA2, ops.mul(gradient, gradient)))
    step = ops.truediv(mean, ops.add(ops.sqrt(square), TINY))
    return ops.sub(ops.mul(1 - RATE * DECAY, param), ops.mul(RATE, step)), mean, square


def _torch_adamw(
    param: torch.Tensor, mean: torch.Tensor, square: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    gradient = gradient.to(param.dtype)
    mean = BETA1 * mean + (1 - BETA1) * gradient
    square = BETA2 * square + (1 - BETA2) * gradient * gradient
    param = (1 - RATE * DECAY) * param - RATE * (mean / (square.sqrt() + TINY))
    return param, mean, square


def _group_norm_silu(ops: Any, shape: Shape, x: Any, weight: Any, bias: Any) -> Any:
    by_group = [GROUPS, shape[-1] // GROUPS]
    grouped = ops.reshape(x, [*shape[:-1], *by_group])
    variance, mean = ops.var_mean(grouped, [1, 2, 4], correction=0, keepdim=True)
    unit = ops.mul(ops.sub(grouped, mean), ops.rsqrt(ops.add(variance, EPS)))
    weight, bias = (
        ops.broadcast(ops.reshape(v, by_group), [True, True, True, False, False])
        for v in (weight, bias)
    )
    return ops.silu(ops.reshape(ops.add(ops.mul(unit, weight), bias), list(shape)))


def _torch_group_norm_silu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    image = x.permute(0, 3, 1, 2)
    return F.silu(F.group_norm(image, GROUPS, weight, bias, EPS)).permute(0, 2, 3, 1)


def _of_channels(ops: Any, vector: Any) -> Any:
    return ops.broadcast(vector, [True, False, True, True])


def _batch_norm_relu_bwd(ops: Any, shape: Shape, *tensors: Any) -> Any:
    dy, x, weight, bias, mean, rstd = tensors
    unit = ops.mul(ops.sub(x, _of_channels(ops, mean)), _of_channels(ops, rstd))
    y = ops.add(ops.mul(unit, _of_channels(ops, weight)), _of_channels(ops, bias))
    dy = ops.where(ops.gt(y, 0.0), dy, 0.0)
    dweight, dbias = (ops.sum(v, [0, 2, 3]) for v in (ops.mul(dy, unit), dy))
    by = 1 / (shape[0] * shape[2] * shape[3])
    through = ops.mul(unit, _of_channels(ops, ops.mul(dweight, by)))
    slope = ops.sub(ops.sub(dy, _of_channels(ops, ops.mul(dbias, by))), through)
    return ops.mul(slope, _of_channels(ops, ops.mul(weight, rstd))), dweight, dbias


def _torch_batch_norm_relu_bwd(dy: Any, x: Any, *vectors: Any) -> Any:
    weight, bias, mean, rstd = (wide(v)[:, None, None] for v in vectors)
    unit = (wide(x) - mean) * rstd
    dy = torch.where(unit * weight + bias > 0, wide(dy), 0.0)
    dweight, dbias = (v.sum((0, 2, 3)) for v in (dy * unit, dy))
    by = x.shape[1] / x.numel()
    slope = dy - by * dbias[:, None, None] - unit * (by * dweight)[:, None, None]
    return (slope * weight * rstd).to(x.dtype), dweight.to(x.dtype), dbias.to(x.dtype)


OPERATIONS = (
    Operation(
        "masked_softmax", "softmax", lambda shape: (Argument(shape), Argument(shape[2:], "mask")),
        _softmax_under_mask,
        lambda x, mask: F.softmax(torch.where(mask, x, -math.inf), -1), _SCORES,
    ),
    Operation(
        "capped_logsumexp", "softmax", lambda shape: (Argument(shape),), _capped_logsumexp,
        lambda x: torch.logsumexp(CAP * torch.tanh(wide(x) * (1 / CAP)), -1).to(x.dtype), _CAPPED,
    ),
    Operation(
        "row_fp8", "quantize", lambda shape: (Argument(shape),), _rows_to_float8,
        _torch_rows_to_float8, _ROWS, exact=True,
    ),
    Operation(
        "adamw", "optimizer",
        lambda shape: (
            *(Argument(shape),) * 2, Argument(shape, "near_one"), Argument(shape, "bf16")
        ),
        _adamw, _torch_adamw, _UPDATES,
    ),
    Operation(
        "group_norm_silu", "channel norm",
        lambda shape: (Argument(shape), *(Argument(shape[-1:]),) * 2), _group_norm_silu,
        _torch_group_norm_silu, _IMAGES,
    ),
    Operation(
        "channel_stats", "channel norm", lambda shape: (Argument(shape),),
        lambda ops, shape, x: ops.var_mean(x, [0, 2, 3], correction=0),
        lambda x: torch.var_mean(x, (0, 2, 3), correction=0), _CHANNELS,
    ),
    Operation(
        "batch_norm_relu_bwd", "channel norm",
        lambda shape: (
            *(Argument(shape),) * 2, *(Argument(shape[1:2], "near_one"),) * 3,
            Argument(shape[1:2], "statistic"),
        ),
        _batch_norm_relu_bwd, _torch_batch_norm_relu_bwd, _CHANNELS, passes=2,
    ),
)
