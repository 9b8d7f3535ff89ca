# SPDX-License-Identifier: Apache-2.0
"""Quantization of a matrix in blocks, with scales in the tiles that torch's products take."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.kernels.operation import Argument, Operation, Shape, Sizes, wide
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.eager.scaled import pack_e2m1

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
    return ops.nv_block_quantize(x, None, True, 32, DataType.Float8_e4m3fn)


def _to_float4(ops: Any, shape: Shape, x: Any) -> Any:
    return ops.nv_block_quantize(x, None, True)


def _torch_to_float8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = wide(x).unflatten(-1, (-1, 32))
    least = blocks.abs().amax(-1) * (1 / 448)
    near = least.to(_E8M0).float()
    scale = torch.where(near < least, near * 2, near)
    numbers = (blocks * scale.reciprocal()[..., None]).flatten(-2).to(_E4M3)
    return numbers, _in_tiles(scale.to(_E8M0))


def _torch_to_float4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = wide(x).unflatten(-1, (-1, 16))
    scales = (blocks.abs().amax(-1) * (1 / 6)).clamp(max=448.0).to(_E4M3)
    scale = scales.float()
    by = torch.where(scale > 0, scale.reciprocal(), 0.0)
    numbers = (blocks * by[..., None]).flatten(-2)
    return pack_e2m1(numbers[..., ::2], numbers[..., 1::2]), _in_tiles(scales)


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
    Operation(
        "block_fp4", "quantize", _one, _to_float4, _torch_to_float4, _SIZES, exact=True,
        keeps_types=True,
    ),
)
