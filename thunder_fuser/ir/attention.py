# SPDX-License-Identifier: Apache-2.0
"""Shape rules of torch's kernels for attention, and for matrix products of groups and with scales.

    sdpfa_fwd(T0[n, h, l, e], T1[n, h, s, e], T2[n, h, s, v])  ->  [n, h, l, v], [n, h, l], [2], []
    grouped_mm(T0[m, k], T1[g, k, n], T2[g])                   ->  [m, n]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thunder_fuser.errors import DtypeError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.ir.shapes import may_be_equal

Extents = Sequence[Scalar]

_ATTENDS = (DataType.Half, DataType.BFloat16, DataType.Float)


def _forward(record: OpRecord, operands: list[TensorView]) -> list[Extents]:
    _check_attention(record, operands[:3])
    _check_mask(record, operands[3:], operands)
    query, value = operands[0].shape, operands[2].shape
    return [(*query[:3], value[3]), query[:3], (const(2),), ()]


def _backward(record: OpRecord, operands: list[TensorView]) -> list[Extents]:
    grad, *given = operands[:4]
    _check_attention(record, [*given, grad, operands[4]])
    output = (*given[0].shape[:3], given[2].shape[3])
    for name, view in (("grad_output", grad), ("output", operands[4])):
        _check_shape(record, name, view.shape, output)
    _check_shape(record, "logsumexp", operands[5].shape, output[:3])
    _check_mask(record, operands[8:], given)
    return [view.shape for view in given]


def _check_mask(
    record: OpRecord, mask: Sequence[TensorView], operands: Sequence[TensorView]
) -> None:
    """A mask, if there is one, has the type of the query and sizes that can be scores' sizes."""
    query, key = operands[0].shape, operands[1].shape
    for view in mask:
        _check_one_type(record, [operands[0], view])
        scores = (*query[:3], key[2])[4 - len(view.shape) :]
        own = [b if a is const(1) else a for a, b in zip(view.shape, scores, strict=False)]
        _check_shape(record, "attn_mask", own if len(own) == len(view.shape) else view.shape, scores)


def _check_attention(record: OpRecord, operands: Sequence[TensorView]) -> None:
    """One type; ranks of 4; equal batches and heads, lengths of key and value, and sizes of E."""
    _check_one_type(record, operands, _ATTENDS)
    shapes = [view.shape for view in operands]
    if any(len(shape) != 4 for shape in shapes):
        ranks = ", ".join(str(len(shape)) for shape in shapes)
        raise record.error("", "tensors of rank 4", f"ranks {ranks}")
    query, key, value = shapes[:3]
    _check_shape(record, "key", key, (*query[:2], key[2], query[3]))
    _check_shape(record, "value", value, (*key[:3], value[3]))


def _check_one_type(
    record: OpRecord, views: Sequence[TensorView], allowed: Sequence[DataType] = ()
) -> None:
    types = {view.dtype for view in views}
    if len(types) > 1 or (allowed and not types <= set(allowed)):
        names = " or ".join(dtype.name for dtype in allowed)
        got = ", ".join(view.dtype.name for view in views)
        raise DtypeError(record.op, expected=f"one type {names}".strip(), got=got)


def _check_shape(record: OpRecord, name: str, shape: Extents, wanted: Extents) -> None:
    if not may_be_equal(shape, wanted):
        listed = [f"[{', '.join(map(str, one))}]" for one in (wanted, shape)]
        raise record.error(name, f"sizes {listed[0]}", listed[1])


ATTENTION: dict[str, Callable[[OpRecord, list[TensorView]], list[Extents]]] = {
    "sdpfa_fwd": _forward,
    "sdpfa_bwd": _backward,
}


def grouped_mm(record: OpRecord, operands: list[TensorView]) -> Extents:
    """Groups of rows of mat1, of columns of mat2, or of what is summed over."""
    a, b, offsets = (view.shape for view in operands)
    _check_one_type(record, operands[:2])
    if operands[2].dtype not in (DataType.Int, DataType.Int32):
        got = operands[2].dtype.name
        raise DtypeError("grouped_mm: offsets", expected="Int or Int32", got=got)
    if (len(a), len(b)) not in ((2, 3), (3, 2), (2, 2)) or len(offsets) != 1:
        expected = "matrices, one of them with an axis of groups, or none, and a vector"
        raise record.error("", expected, f"ranks {len(a)}, {len(b)}, {len(offsets)}")
    if not may_be_equal(a[-1:], b[-2:-1]):
        raise record.error("summed axis", "equal sizes", f"{a[-1]}, {b[-2]}")
    groups = b[0] if len(b) == 3 else a[0] if len(a) == 3 else offsets[0]
    _check_shape(record, "offsets", offsets, [groups])
    return (groups,) * (len(a) == len(b)) + (a[-2], b[-1])


def scaled_product(record: OpRecord, operands: list[TensorView]) -> Extents:
    """Scales of a whole tensor, or of each row of mat1 and each column of mat2."""
    a, b, *scales = (view.shape for view in operands)
    if (len(a), len(b)) != (2, 2) or not may_be_equal(a[-1:], b[:1]):
        expected = "matrices [m, k] and [k, n]"
        raise record.error("", expected, " and ".join(str(list(map(str, s))) for s in (a, b)))
    one = const(1)
    rows = ("scale1", scales[0], (a[0], one)), ("scale2", scales[1], (one, b[1]))
    for (name, shape, each), view in zip(rows, operands[2:], strict=True):
        if view.dtype is not DataType.Float:
            raise DtypeError(f"scaled_product: {name}", expected="Float", got=view.dtype.name)
        if any(size is not one for size in shape):
            _check_shape(record, name, shape, each)
    return (a[0], b[1])
