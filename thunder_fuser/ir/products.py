# SPDX-License-Identifier: Apache-2.0
"""Shape rules of grouped and of scaled matrix products, which torch computes.

    grouped_mm(T0[m, k], T1[g, k, n], T2[g])                          ->  [m, n]
    scaled_product(T0[m, k], T1[k, n], T2[m, 1], T3[1, n])            ->  [m, n]
    scaled_grouped_product(T0[m, k], T1[g, k, n], T2[g], T3, T4)      ->  [m, n]
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.errors import DtypeError
from thunder_fuser.ir.attention import Extents, check_one_type, check_shape
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.ir.scalar import Scalar, const, product
from thunder_fuser.ir.shapes import may_be_equal

# {type of elements: (type of scales, numbers in a block, numbers in an element)}
_OF_BLOCKS = {
    DataType.Float4_e2m1fn_x2: (DataType.Float8_e4m3fn, 16, 2),
    DataType.Float8_e4m3fn: (DataType.Float8_e8m0fnu, 32, 1),
}


def grouped_mm(record: OpRecord, operands: list[TensorView]) -> Extents:
    """A product for each group of rows of mat1, of columns of mat2, or of summed elements."""
    a, b, offsets = (view.shape for view in operands)
    check_one_type(record, operands[:2])
    if operands[2].dtype not in (DataType.Int, DataType.Int32):
        got = operands[2].dtype.name
        raise DtypeError("grouped_mm: offsets", expected="Int or Int32", got=got)
    if (len(a), len(b)) not in ((2, 3), (3, 2), (2, 2)) or len(offsets) != 1:
        expected = "matrices, one of them with an axis of groups, or none, and a vector"
        raise record.error("", expected, f"ranks {len(a)}, {len(b)}, {len(offsets)}")
    if not may_be_equal(a[-1:], b[-2:-1]):
        raise record.error("summed axis", "equal sizes", f"{a[-1]}, {b[-2]}")
    groups = b[0] if len(b) == 3 else a[0] if len(a) == 3 else offsets[0]
    check_shape(record, "offsets", offsets, [groups])
    return (groups,) * (len(a) == len(b)) + (a[-2], b[-1])


def scaled_grouped_product(record: OpRecord, operands: list[TensorView]) -> Extents:
    """As grouped_mm, with a scale for each whole tensor, for each row of mat1 and column of mat2,
    or, if groups are of rows, for each block."""
    result = grouped_mm(record, operands[:3])
    a, b, offsets = (view.shape for view in operands[:3])
    if all(view.dtype.is_float8 for view in operands[3:]):
        _check_tiles_of_groups(record, operands)
        return result
    both, one = (offsets[0],) * (len(a) == len(b)), const(1)
    rows, columns = (*both, *a[:-1], one), (*both, *b[:-2], one, b[-1])
    for name, view, each in zip(("scale1", "scale2"), operands[3:], (rows, columns), strict=True):
        _check_scale(record, name, view, each)
    return result


def scaled_product(record: OpRecord, operands: list[TensorView]) -> Extents:
    """A scale for each whole tensor, for each row of mat1 and column of mat2, or for each block."""
    a, b = (view.shape for view in operands[:2])
    if (len(a), len(b)) != (2, 2) or not may_be_equal(a[-1:], b[:1]):
        expected = "matrices [m, k] and [k, n]"
        raise record.error("", expected, " and ".join(str(list(map(str, s))) for s in (a, b)))
    one = const(1)
    rows = ("scale1", operands[2], a[0], (a[0], one)), ("scale2", operands[3], b[1], (one, b[1]))
    is_of_blocks = all(view.dtype.is_float8 for view in operands[2:])
    for name, view, count, each in rows:
        if is_of_blocks:
            _check_tiles(record, name, view, operands[:2], count)
        else:
            _check_scale(record, name, view, each)
    return (a[0], b[1])


def _check_tiles_of_groups(record: OpRecord, operands: list[TensorView]) -> None:
    """scale1 has the tiles of one group of rows after the other, scale2 those of each mat2."""
    (a, b), (scale1, scale2) = operands[:2], operands[3:]
    if (len(a.shape), len(b.shape)) != (2, 3):
        expected = "groups of rows, mat1 [m, k] and mat2 [groups, k, n], where scales are of blocks"
        raise record.error("", expected, f"ranks {len(a.shape)}, {len(b.shape)}")
    columns = _whole_tiles(record, "scale1", scale1, (a, b), a.shape[0])[1]
    if len(scale1.shape) != 2 or not may_be_equal(scale1.shape[1:], [columns]):
        raise record.error("scale1", f"rows of {columns} scales, in tiles", _sizes(scale1))
    each = product(_whole_tiles(record, "scale2", scale2, (a, b), b.shape[2]))
    if not may_be_equal([product(scale2.shape)], [b.shape[0] * each]):
        raise record.error("scale2", f"{each} scales for each group, in tiles", _sizes(scale2))


def _check_scale(record: OpRecord, name: str, view: TensorView, each: Extents) -> None:
    if view.dtype is not DataType.Float:
        raise DtypeError(f"{record.op}: {name}", expected="Float", got=view.dtype.name)
    if any(size is not const(1) for size in view.shape):
        check_shape(record, name, view.shape, each)


def _check_tiles(
    record: OpRecord, name: str, view: TensorView, operands: Sequence[TensorView], rows: Scalar
) -> None:
    """Scales of blocks fill whole tiles of 128 rows and 4 columns."""
    wanted = _whole_tiles(record, name, view, operands, rows)
    if not may_be_equal([product(view.shape)], [product(wanted)]):
        raise record.error(name, f"{wanted[0]} x {wanted[1]} scales, in tiles", _sizes(view))


def _whole_tiles(
    record: OpRecord, name: str, view: TensorView, operands: Sequence[TensorView], rows: Scalar
) -> list[Scalar]:
    """The rows and columns of scales in whole tiles, for so many rows of the operands' type;
    DtypeError if the scales have another type."""
    dtype, block, packed = _OF_BLOCKS.get(operands[0].dtype, (None, 1, 1))
    if view.dtype is not dtype or operands[1].dtype is not operands[0].dtype:
        known = ", ".join(f"{own.name} for {of.name}" for of, (own, *_) in _OF_BLOCKS.items())
        given = " and ".join(one.dtype.name for one in operands)
        got = f"{view.dtype.name} for {given}"
        raise DtypeError(f"{record.op}: {name}", expected=f"Float, or {known}", got=got)
    columns = (operands[0].shape[-1] * packed + (block - 1)) // block
    return [(rows + 127) // 128 * 128, (columns + 3) // 4 * 4]


def _sizes(view: TensorView) -> str:
    return f"[{', '.join(map(str, view.shape))}]"
