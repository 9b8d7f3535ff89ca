# SPDX-License-Identifier: Apache-2.0
"""Quantization in blocks, made of rows of the op table: 8- and 4-bit floats, a scale a block.

    nv_block_quantize(T0: f32[m, k])    ->  e2m1[m, k], scales e4m3[m, k/16]
    ..., dtype=DataType.Float8_e4m3fn)  ->  e4m3[m, k], scales e8m0[m, k/32]

A number is its element times the scale of its block, divided by the global scale if there is one.
torch._scaled_mm takes such operands, with scales in tiles (`_in_tiles`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import F, Owner, Value, checked
from thunder_fuser.ir.frontend.op_methods import OpMethods
from thunder_fuser.ir.frontend.packed import NUMBERS, PAIRS, Packed, halves
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.op_table import OPS

# {type: numbers in a block}, as torch._scaled_mm has them
BLOCKS = {PAIRS: 16, DataType.Float8_e4m3fn: 32}
TILE = (128, 4)  # rows and columns of scales
LARGEST_E2M1 = 6 * 448.0  # the largest number times the largest scale


def as_row(name: str) -> Callable[[F], F]:
    """Decorates a composite that stands for a row: it keeps the row's signature and docstring."""
    return wraps(getattr(OpMethods, name))  # type: ignore[return-value]


class Quantized(OpMethods):
    """The ops that quantize in blocks."""

    _fd: Owner

    @as_row("cast")
    def cast(self, *args: Any, **kwargs: Any) -> Any:
        """As the row of the table; Float4_e2m1fn_x2 is another name of its numbers' type."""
        bound = OPS["cast"].bind(args, kwargs)
        if bound["dtype"] is PAIRS:
            bound["dtype"] = NUMBERS
        is_same = bound["dtype"] is NUMBERS and isinstance(bound["arg"], Packed)
        return bound["arg"] if is_same else super().cast(**bound)

    @checked
    def nv_block_quantize(
        self,
        input: Tensor,
        global_scale: Any = None,
        swizzle_scales: bool = False,
        block_size: int = 16,
        dtype: DataType = DataType.Float4_e2m1fn_x2,
    ) -> tuple[Tensor, Tensor]:
        """(numbers of the dtype, scales): each block of the last axis is divided by its scale.

        Float4_e2m1fn_x2: blocks of 16, scales Float8_e4m3fn, which the global scale multiplies.
        Float8_e4m3fn: blocks of 32, scales Float8_e8m0fnu, powers of two
        with no global scale. swizzle_scales: scales [m, n] as torch._scaled_mm takes them, in
        tiles, with zeros up to whole ones.
        """
        dtype = PAIRS if dtype.is_packed else dtype
        self._check_quantized(input, block_size, dtype)
        if dtype is PAIRS:
            numbers, scales = self._to_float4(input, global_scale)
        elif global_scale is None:
            numbers, scales = self._to_float8(input)
        else:
            what, do = "nv_block_quantize: global_scale", "multiply the input"
            raise DefinitionError(what, expected="None for 8-bit floats", got="a scale", do=do)
        return numbers, self._in_tiles(scales) if swizzle_scales else scales

    @checked
    def nv_grouped_block_quantize(  # noqa: PLR0917 - nvFuser's
        self,
        input: Tensor,
        input_offsets: Tensor,
        output_offsets: Tensor,
        global_scale: Any = None,
        block_size: int = 16,
        dtype: DataType = DataType.Float4_e2m1fn_x2,
    ) -> tuple[Tensor, Tensor]:
        """As nv_block_quantize of a matrix, with scales in the tiles of their groups; see
        preprocess_grouped_matmul_input_sf."""
        numbers, scales = self.nv_block_quantize(input, global_scale, False, block_size, dtype)
        placed = self.preprocess_grouped_matmul_input_sf(scales, input_offsets, output_offsets)
        return numbers, placed

    @checked
    def preprocess_grouped_matmul_input_sf(
        self, input: Tensor, input_offsets: Tensor, output_offsets: Tensor
    ) -> Tensor:
        """Scales [m, n] of groups of rows -> the tiles of each group, as grouped products take.

        input_offsets: the first row of each group. output_offsets: its first row in the result, a
        multiple of 128. The result has as many rows as m in that many groups may need, 0 between.
        """
        rows, groups = self.size(input, 0), self.size(input_offsets, 0)
        most = self.mul(self.div(self.add(rows, self.mul(groups, TILE[0] - 1)), TILE[0]), TILE[0])
        row, valid = self._rows_of_groups(most, rows, input_offsets, output_offsets)
        taken = self.index_select(input, row, 0)
        return self._in_tiles(self.where(self.broadcast(valid, [False, True]), taken, 0.0))

    def _rows_of_groups(
        self, count: Value, rows: Value, starts: Tensor, placed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """For each row of the result, the row of the input, and whether there is one.

        starts [0, 3, 3], placed [0, 128, 128], 5 rows  ->  0, 1, 2, none, ..., 128: 3, 129: 4, none
        """
        at = self.iota(count, 0, 1, DataType.Int)
        column = self.broadcast(at, [False, True])
        starts, placed = (
            self.broadcast(self.cast(edges, DataType.Int), [True, False])
            for edges in (starts, placed)
        )
        is_past = self.ge(column, placed)  # a row is in the last group that begins at it or before
        begin, first = (self.max(self.where(is_past, edges, 0), [1]) for edges in (starts, placed))
        end = self.min(self.where(is_past, rows, starts), [1])
        row = self.add(begin, self.sub(at, first))
        valid = self.lt(row, end)
        return self.where(valid, row, 0), valid

    # ---- products

    @checked
    def scaled_mm(  # noqa: PLR0917 - nvFuser's
        self,
        mat1: Tensor,
        mat2: Tensor,
        scale1: Tensor,
        scale2: Tensor,
        alpha: Any = None,
        bias: Any = None,
        beta: Any = None,
        dtype: DataType = DataType.BFloat16,
        output_block_scale_size: int = 0,
        output_block_scale_dtype: DataType | None = None,
        output_gamma: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(alpha * (mat1 * scale1) @ (mat2 * scale2) + beta * bias, None, None).

        output_block_scale_size: if not 0, the result is quantized to the dtype in such blocks, and
        the second value has their scales; see nv_block_quantize. output_gamma: the third value is
        the global scale of a Float4_e2m1fn_x2 result, 2688 over its largest element.
        """
        product = partial(self.scaled_product, mat1, mat2, scale1, scale2)
        return self._finished(
            product, alpha, bias, beta, dtype, output_block_scale_size, output_block_scale_dtype,
            output_gamma,
        )

    @as_row("grouped_mm")
    def grouped_mm(
        self, mat1: Any, mat2: Any, offsets: Any, scale1: Any = None, scale2: Any = None,
        *after: Any, **named: Any,
    ) -> Any:
        """As the row of the table; with scales also the arguments of scaled_mm from alpha on."""
        if scale1 is None and scale2 is None:
            return super().grouped_mm(mat1, mat2, offsets, *after, **named)
        product = partial(self.scaled_grouped_product, mat1, mat2, offsets, scale1, scale2)
        return self._finished(product, *after, **named)

    def _finished(  # noqa: PLR0917 - nvFuser's
        self,
        product: Callable[[DataType], Tensor],
        alpha: Any = None,
        bias: Any = None,
        beta: Any = None,
        dtype: DataType = DataType.BFloat16,
        output_block_scale_size: int = 0,
        output_block_scale_dtype: DataType | None = None,
        output_gamma: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """alpha * product + beta * bias, rounded once, the scales of its blocks, and the global
        scale that those are multiplied by."""
        if output_gamma and not (output_block_scale_size and dtype.is_packed):
            what, do = "scaled_mm: output_gamma", "give output_block_scale_size=16 and that dtype"
            got = f"blocks of {output_block_scale_size} and {dtype.name}"
            expected = "a result in blocks of Float4_e2m1fn_x2"
            raise DefinitionError(what, expected=expected, got=got, do=do)
        out = product(dtype if alpha is bias is None and not output_block_scale_size
                      else DataType.Float)  # fmt: skip
        out = out if alpha is None else self.mul(out, alpha)
        if bias is not None:
            out = self.add(out, bias if beta is None else self.mul(bias, beta))
        if not output_block_scale_size:
            return self.cast(out, dtype), None, None
        gamma = self._global_scale(out) if output_gamma else None
        numbers, scales = self.nv_block_quantize(out, gamma, False, output_block_scale_size, dtype)
        if output_block_scale_dtype not in (None, scales.dtype()):
            what, expected = "scaled_mm: output_block_scale_dtype", scales.dtype().name
            raise DtypeError(what, expected=expected, got=str(output_block_scale_dtype))
        return numbers, scales, gamma

    def _global_scale(self, x: Tensor) -> Tensor:
        """The scale that makes the largest element of a tensor LARGEST_E2M1."""
        largest = self.max(self.abs(x))
        return self.where(self.gt(largest, 0.0), self.truediv(LARGEST_E2M1, largest), 1.0)

    # ---- numbers and scales

    def _check_quantized(self, arg: Tensor, block: int, dtype: DataType) -> None:
        call, view = "nv_block_quantize", self._fd.view_of(arg.name)
        if dtype not in BLOCKS:
            expected = " or ".join(allowed.name for allowed in BLOCKS)
            raise DtypeError(f"{call}: dtype", expected=expected, got=dtype.name)
        if not view.dtype.is_float or view.dtype.is_float8:
            raise DtypeError(f"{call}: input", expected="floats", got=view.dtype.name)
        if block != BLOCKS[dtype]:
            expected = f"{BLOCKS[dtype]} for {dtype.name}"
            raise DefinitionError(f"{call}: block_size", expected=expected, got=str(block))
        last = view.shape[-1] if view.shape else None
        if last is None or (last.is_const and last.value % block):
            expected = f"an axis, the last, of blocks of {block}"
            raise DefinitionError(f"{call}: input", expected=expected, got=str(view))

    def _to_float4(self, x: Tensor, global_scale: Any) -> tuple[Tensor, Tensor]:
        low, high = (self._blocks(half, 8) for half in halves(x, x.ndim - 1))
        most = self.max(self.maximum(self.abs(low), self.abs(high)), [-1])
        if global_scale is not None:
            most = self.mul(most, global_scale)
        scales = self.cast(self.minimum(self.mul(most, 1 / 6), 448.0), DataType.Float8_e4m3fn)
        scale = self.cast(scales, DataType.Float)
        by = self.reciprocal(scale)
        by = by if global_scale is None else self.mul(by, global_scale)
        by = self._along_blocks(self.where(self.gt(scale, 0.0), by, 0.0))
        packed = self.pack_e2m1(self.mul(low, by), self.mul(high, by))
        *others, last = x.shape()
        pairs = self.reshape(packed, [*others, self.div(last, 2)])
        return Packed(pairs.name, self._fd, x.ndim - 1), scales

    def _to_float8(self, x: Tensor) -> tuple[Tensor, Tensor]:
        blocks = self._blocks(x, BLOCKS[DataType.Float8_e4m3fn])
        least = self.mul(self.max(self.abs(blocks), [-1]), 1 / 448)
        near = self.cast(self.cast(least, DataType.Float8_e8m0fnu), DataType.Float)
        scale = self.where(self.lt(near, least), self.mul(near, 2.0), near)  # rounded up
        by = self._along_blocks(self.reciprocal(scale))
        numbers = self.cast(self.mul(blocks, by), DataType.Float8_e4m3fn)
        return self.reshape(numbers, x.shape()), self.cast(scale, DataType.Float8_e8m0fnu)

    # ---- shapes

    def _blocks(self, x: Tensor, block: int) -> Tensor:
        """[m, k]  ->  [m, k / block, block]"""
        *others, last = x.shape()
        return self.reshape(x, [*others, self.div(last, block), block])

    def _along_blocks(self, x: Tensor) -> Tensor:
        return self.broadcast(x, [False] * x.ndim + [True])

    def _in_tiles(self, scales: Tensor) -> Tensor:
        """Row r, column c of a tile of 128 rows and 4 columns at (r % 32) * 16 + r // 32 * 4 + c,
        tile after tile; [m, n] padded with 0 to whole tiles."""
        counts = [
            self.div(self.add(self.size(scales, at), size - 1), size)
            for at, size in enumerate(TILE)
        ]
        whole = [self.mul(count, size) for count, size in zip(counts, TILE, strict=True)]
        missing = [self.sub(size, self.size(scales, at)) for at, size in enumerate(whole)]
        padded = self.pad(scales, [0, missing[1], 0, missing[0]])
        tiles = self.reshape(padded, [counts[0], 4, 32, counts[1], 4])
        return self.reshape(self.permute(tiles, [0, 3, 2, 1, 4]), whole)
