# SPDX-License-Identifier: Apache-2.0
"""Operations across rows and layouts: sums, transposes, and norms over channels of images."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from benchmarks.kernels.operation import EPS, Argument, Operation, Shape, Sizes

GROUPS = 32

_SUMS = Sizes(
    ((-1, 33), (-1, 128)), ((-1, 4096), (-1, 131072)), ((-1, 1024), (-1, 16384)), ((-1, 4096),)
)
_COLUMN_SUMS = Sizes(
    ((-1, 33), (-1, 128)), tuple((-1, n) for n in (64, 1024, 4096, 16384)),
    ((32768, 1024), (32768, 4096), (1_000_000, 64), (1_000_000, 192)), ((-1, 4096),),
)
_MATRICES = Sizes(
    ((-1, 33), (-1, 64), (-1, 2)),
    ((8192, 8192), (16384, 16384), (32768, 1024), (100_000_000, 2)), ((-1, 4095),),
    ((8192, 8192),),
)
_HEADS = Sizes(((-1, 8, 4, 16),), ((64, 2048, 32, 128),))
_IMAGES = Sizes(((-1, 5, 6, 7),), ((64, 256, 56, 56),))
_NHWC = Sizes(((-1, 6, 7, 5),), ((64, 56, 56, 256),))


def _norm_sizes(channels: int, *gate: Shape) -> Sizes:
    return Sizes(((-1, channels, 6, 7),), gate[:1], gate[1:])


def _one(shape: Shape) -> tuple[Argument, ...]:
    return (Argument(shape),)


def _image_norm(shape: Shape) -> tuple[Argument, ...]:
    return Argument(shape), Argument(shape[1:2]), Argument(shape[1:2])


def _normalised(ops: Any, x: Any, dims: list[int]) -> Any:
    variance, mean = ops.var_mean(x, dims, correction=0, keepdim=True)
    return ops.mul(ops.sub(x, mean), ops.rsqrt(ops.add(variance, EPS)))


def _over(dims: list[int]) -> Any:
    """The norm over `dims` of an image, then scale and shift of each channel."""

    def define(ops: Any, shape: Shape, x: Any, weight: Any, bias: Any) -> Any:
        weight, bias = (ops.broadcast(v, [True, False, True, True]) for v in (weight, bias))
        return ops.add(ops.mul(_normalised(ops, x, dims), weight), bias)

    return define


def _group_norm(ops: Any, shape: Shape, x: Any, weight: Any, bias: Any) -> Any:
    batch, channels, *image = shape
    by_group = [GROUPS, channels // GROUPS]
    grouped = ops.reshape(x, [batch, *by_group, *image])
    weight, bias = (
        ops.broadcast(ops.reshape(v, by_group), [True, False, False, True, True])
        for v in (weight, bias)
    )
    unit = _normalised(ops, grouped, [2, 3, 4])
    return ops.reshape(ops.add(ops.mul(unit, weight), bias), list(shape))


def _moved(name: str, dims: tuple[int, ...], sizes: Sizes) -> Operation:
    """A permutation, stored in its own order."""
    return Operation(
        name, "transpose", _one, lambda ops, shape, x: ops.permute(x, list(dims)),
        lambda x: x.permute(dims).contiguous(), sizes, exact=True,
    )


OPERATIONS = (
    Operation(
        "row_sum", "sum", _one, lambda ops, shape, x: ops.sum(x, [1]), lambda x: x.sum(1), _SUMS
    ),
    Operation(
        "column_sum", "sum", _one, lambda ops, shape, x: ops.sum(x, [0]), lambda x: x.sum(0),
        _COLUMN_SUMS,
    ),
    _moved("transpose", (1, 0), _MATRICES),
    _moved("swap_heads", (0, 2, 1, 3), _HEADS),
    _moved("nchw_to_nhwc", (0, 2, 3, 1), _IMAGES),
    _moved("nhwc_to_nchw", (0, 3, 1, 2), _NHWC),
    Operation(
        "batch_norm", "channel norm", _image_norm, _over([0, 2, 3]),
        lambda x, weight, bias: F.batch_norm(x, None, None, weight, bias, training=True, eps=EPS),
        _norm_sizes(5, (256, 64, 112, 112), (32, 256, 56, 56)), passes=2,
    ),
    Operation(
        "group_norm", "channel norm", _image_norm, _group_norm,
        lambda x, weight, bias: F.group_norm(x, GROUPS, weight, bias, EPS),
        _norm_sizes(2 * GROUPS, (64, 256, 56, 56)), passes=1,
    ),
    Operation(
        "instance_norm", "channel norm", _image_norm, _over([2, 3]),
        lambda x, weight, bias: F.instance_norm(x, weight=weight, bias=bias, eps=EPS),
        _norm_sizes(5, (-1, 64, 128, 128)),
    ),
)
