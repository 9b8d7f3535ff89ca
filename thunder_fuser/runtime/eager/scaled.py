# SPDX-License-Identifier: Apache-2.0
"""Products of matrices with scales, by torch's kernels if the device has them, else in Float.

Scales are Float: one number, or one for each row and column. Or there is one scale for each block
of the summed axis: e4m3 for 16 4-bit floats, e8m0 for 32 e4m3, in the tiles that
ir/frontend/quantized.py describes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.runtime.eager.torch_calls import grouped_mm

# Compute capabilities: from Ada on torch has products of 8-bit floats, from Hopper on those of
# groups, from Blackwell on those with scales of blocks.
ADA, HOPPER, BLACKWELL = (8, 9), (9, 0), (10, 0)
_PACKED = torch.float4_e2m1fn_x2


def scaled_product(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """(a * scale_a) @ (b * scale_b), added in float."""
    if _has_kernel(a, b, scale_a, scale_b, dtype):
        columns, scales = _whole(b.t()).t(), (scale_a.contiguous(), scale_b.contiguous())
        return torch._scaled_mm(_whole(a), columns, *scales, out_dtype=dtype)
    if scale_a.dtype.itemsize == 1:
        return (_of_blocks(a, scale_a) @ _of_blocks(b.t(), scale_b).t()).to(dtype)
    return (_scaled(a, scale_a) @ _scaled(b, scale_b)).to(dtype)


def _has_kernel(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor,
    dtype: torch.dtype,
) -> bool:  # fmt: skip
    """True if torch has a kernel for such a product on the device.

    A GPU's takes whole steps of 16 elements, and not e5m2 for both; scales of rows and columns
    give BFloat16.
    """
    if not a.dtype.itemsize == b.dtype.itemsize == 1:
        return False
    if scale_a.dtype.itemsize == 1:
        return _is_from(a.device, BLACKWELL)
    is_one = scale_a.numel() == scale_b.numel() == 1
    if a.device.type == "cpu":
        return is_one
    if a.dtype is b.dtype is torch.float8_e5m2 or not _is_from(a.device, ADA):
        return False
    of_rows = scale_a.shape == (a.shape[0], 1) and scale_b.shape == (1, b.shape[1])
    fits = is_one or (of_rows and dtype is torch.bfloat16)
    return fits and all(size and not size % 16 for size in b.shape)


def _whole(x: torch.Tensor) -> torch.Tensor:
    """Rows without gaps, at multiples of 16 bytes: the layout that a GPU's kernels take."""
    is_whole = x.stride() == contiguous_strides(x.shape) and not x.storage_offset() % 16
    return x if is_whole else x.clone(memory_format=torch.contiguous_format)


def _is_from(device: torch.device, capability: tuple[int, int]) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= capability


def _scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The product in Float, or Double; one number may have any rank."""
    return _wide(x) * (scale if scale.numel() > 1 else scale.reshape(()))


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype is torch.float64 else x.float()


def _of_blocks(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The numbers [m, k] of quantized elements, from scales in tiles."""
    values, block = _values(x)
    return _times(values, from_tiles(scales, values.shape[0], values.shape[1] // block), block)


def _of_groups(x: torch.Tensor, scales: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """As _of_blocks, but the tiles of each group of rows begin at a multiple of 128 rows.

    ends [3, 3, 140]: tiles begin at rows [0, 128, 128], so row 3 has the scales of row 128.
    """
    values, block = _values(x)
    ends = ends.long()
    counts = ends.diff(prepend=ends.new_zeros(1))
    whole = (counts + 127) // 128 * 128
    shift = (whole.cumsum(0) - whole) - (ends - counts)
    row = torch.arange(x.shape[0], device=x.device)
    group = torch.searchsorted(ends, row, right=True).clamp(max=len(ends) - 1)
    place = torch.where(row < ends[-1], row + shift[group], 0)  # rows outside groups: any scale
    linear = from_tiles(scales, scales.shape[0], values.shape[1] // block)
    return _times(values, linear[place], block)


def _values(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The elements as float32, and the number of elements in a block."""
    return (unpack_e2m1(x), 16) if x.dtype is _PACKED else (x.float(), 32)


def _times(values: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    return values * scales.float().repeat_interleave(block, 1)


def from_tiles(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales in tiles of 128 rows and 4 columns  ->  [rows, columns]"""
    high, wide = -(-rows // 128), -(-columns // 4)
    tiles = scales.reshape(high, wide, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(128 * high, 4 * wide)[:rows, :columns]


def scaled_grouped_product(operands: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """A grouped product with scales, added in float. torch has a kernel on Hopper.

    operands: a, b, the ends of groups, and the scales: one number, [m, 1] or [groups, m, 1] and
    [1, n] or [groups, 1, n], or those of blocks in the tiles of each group.
    """
    a, b, offsets, scale_a, scale_b = operands
    if scale_a.dtype.itemsize == 1:
        left = _of_groups(a, scale_a, offsets)
        pairs = zip(b.mT, scale_b.reshape(b.shape[0], -1), strict=True)
        right = torch.stack([_of_blocks(*pair) for pair in pairs])
        return grouped_mm(left, right.mT, offsets).to(dtype)
    is_e4m3 = a.dtype is b.dtype is torch.float8_e4m3fn
    is_of_rows = a.dim() == 2 and b.dim() == 3 and dtype is torch.bfloat16
    is_hopper = _is_from(a.device, HOPPER) and not _is_from(a.device, BLACKWELL)
    if is_e4m3 and is_of_rows and is_hopper and not a.shape[1] % 16:
        scales = scale_a.reshape(-1).contiguous(), scale_b.reshape(b.shape[0], -1).contiguous()
        sizes = ((a.shape[0],), (b.shape[0], b.shape[2]))
        if tuple(tuple(scale.shape) for scale in scales) == sizes:
            matrices, ends = (_whole(a), _whole(b.mT).mT), offsets.int()
            return torch._scaled_grouped_mm(*matrices, *scales, ends, out_dtype=dtype)
    if a.dim() == b.dim():  # groups of summed elements: each has scales of its own for its product
        product = grouped_mm(_wide(a), _wide(b), offsets)
        return _scaled(_scaled(product, scale_a), scale_b).to(dtype)
    return grouped_mm(_scaled(a, scale_a), _scaled(b, scale_b), offsets).to(dtype)


_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# The middles between two 4-bit floats. They are rounded to the even code: 0, 1, 1, 2, 2, 4, 4.
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def pack_e2m1(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Two numbers as two 4-bit floats, rounded to nearest even, in one element."""
    return (_e2m1(low) | _e2m1(high) << 4).view(torch.float4_e2m1fn_x2)


def _e2m1(x: torch.Tensor) -> torch.Tensor:
    """The codes, as uint8: a sign and three bits for 0, 0.5, 1, 1.5, 2, 3, 4, 6; NaN is 6."""
    size = x.abs().nan_to_num(nan=6.0)
    above = [size >= middle if at % 2 else size > middle for at, middle in enumerate(_MIDDLES)]
    return torch.stack(above).sum(0, dtype=torch.uint8) | x.signbit().to(torch.uint8) << 3


def cast_e2m1(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A cast from or to 4-bit floats, of which each has a byte, in its low half."""
    wide = unpack_e2m1(x.unsqueeze(-1))[..., 0] if x.dtype is _PACKED else _wide(x)
    return _e2m1(wide).view(dtype) if dtype is _PACKED else wide.to(dtype)


def unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """The numbers of 4-bit floats, as float32: twice as many along the last axis."""
    bits = packed.view(torch.uint8)
    codes = torch.stack([bits & 15, bits >> 4], -1).flatten(-2)
    sizes = torch.tensor(_SIZES + tuple(-size for size in _SIZES), device=packed.device)
    return sizes[codes.int()]
