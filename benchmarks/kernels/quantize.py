# SPDX-License-Identifier: Apache-2.0
"""Quantization of a matrix in blocks, with scales in the tiles that torch's products take."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.kernels.operation import Argument, Operation, Shape, Sizes, wide
from thunder_fuser.ir.dtypes import DataType

_E4M3, _E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
_SIZES = Sizes(
    ((-1, 64), (-1, 128)),
    ((-1, 4096), (-1, 16384)),
    tuple((-1, n) for n in (1024, 2048, 5120, 8192)),
    ((-1, 4096),),
)


def _one(shape: Shape) -> tuple[Argument, ...]:
    return (Argument(shape),)


def _to_float8(ops: Any, shape: Shape, x: Any) -> Any:
    rows, columns = x.shape()
    blocks = ops.reshape(x, [rows, ops.div(columns, 32), 32])
    least = ops.mul(ops.max(ops.abs(blocks), [-1]), 1 / 448)
    near = ops.cast(ops.cast(least, DataType.Float8_e8m0fnu), DataType.Float)
    scale = ops.where(ops.lt(near, least), ops.mul(near, 2.0), near)  # rounded up
    by = ops.broadcast(ops.reciprocal(scale), [False, False, True])
    numbers = ops.cast(ops.mul(blocks, by), DataType.Float8_e4m3fn)
    scales = _ops_in_tiles(ops, ops.cast(scale, DataType.Float8_e8m0fnu))
    return ops.reshape(numbers, [rows, columns]), scales


def _ops_in_tiles(ops: Any, scales: Any) -> Any:
    """Row r, column c of a tile of 128 rows and 4 columns at (r % 32) * 16 + r // 32 * 4 + c."""
    sides = [*zip(scales.shape(), (128, 4), strict=True)]
    counts = [ops.div(ops.add(size, side - 1), side) for size, side in sides]
    sizes = [ops.mul(count, side) for count, (_, side) in zip(counts, sides, strict=True)]
    missing = [ops.sub(whole, size) for whole, (size, _) in zip(sizes, sides, strict=True)]
    padded = ops.pad(scales, [0, missing[1], 0, missing[0]])
    tiles = ops.reshape(padded, [counts[0], 4, 32, counts[1], 4])
    return ops.reshape(ops.permute(tiles, [0, 3, 2, 1, 4]), sizes)


def _torch_to_float8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = wide(x).unflatten(-1, (-1, 32))
    least = blocks.abs().amax(-1) * (1 / 448)
    near = least.to(_E8M0).float()
    scale = torch.where(near < least, near * 2, near)
    numbers = (blocks * scale.reciprocal()[..., None]).flatten(-2).to(_E4M3)
    return numbers, _in_tiles(scale.to(_E8M0))


def _in_tiles(scales: torch.Tensor) -> torch.Tensor:
    """Tiles of 128 rows and 4 columns, with zeros up to whole ones."""
    rows, columns = scales.shape
    bits = F.pad(scales.view(torch.uint8), (0, -columns % 4, 0, -rows % 128))
    tiles = bits.reshape(bits.shape[0] // 128, 4, 32, bits.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(bits.shape).view(scales.dtype)


OPERATIONS = (
    Operation(
        "block_fp8", "quantize", _one, _to_float8, _torch_to_float8, _SIZES, exact=True,
        keeps_types=True,
    ),
)
