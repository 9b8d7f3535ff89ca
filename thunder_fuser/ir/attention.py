# SPDX-License-Identifier: Apache-2.0
"""Shape rules of torch's kernels for attention.

    sdpfa_fwd(T0[n, h, l, e], T1[n, h, s, e], T2[n, h, s, v])  ->  [n, h, l, v], [n, h, l], [2], []
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
        check_shape(record, name, view.shape, output)
    check_shape(record, "logsumexp", operands[5].shape, output[:3])
    _check_mask(record, operands[8:], given)
    return [view.shape for view in given]


def _check_mask(
    record: OpRecord, mask: Sequence[TensorView], operands: Sequence[TensorView]
) -> None:
    """A mask, if there is one, has the type of the query and sizes that can be scores' sizes."""
    query, key = operands[0].shape, operands[1].shape
    for view in mask:
        check_one_type(record, [operands[0], view])
        scores = (*query[:3], key[2])[4 - len(view.shape) :]
        own = [b if a is const(1) else a for a, b in zip(view.shape, scores, strict=False)]
        check_shape(record, "attn_mask", own if len(own) == len(view.shape) else view.shape, scores)


def _check_attention(record: OpRecord, operands: Sequence[TensorView]) -> None:
    """One type; ranks of 4; equal batches and heads, lengths of key and value, and sizes of E."""
    check_one_type(record, operands, _ATTENDS)
    shapes = [view.shape for view in operands]
    if any(len(shape) != 4 for shape in shapes):
        ranks = ", ".join(str(len(shape)) for shape in shapes)
        raise record.error("", "tensors of rank 4", f"ranks {ranks}")
    query, key, value = shapes[:3]
    check_shape(record, "key", key, (*query[:2], key[2], query[3]))
    check_shape(record, "value", value, (*key[:3], value[3]))


def check_one_type(
    record: OpRecord, views: Sequence[TensorView], allowed: Sequence[DataType] = ()
) -> None:
    types = {view.dtype for view in views}
    if len(types) > 1 or (allowed and not types <= set(allowed)):
        names = " or ".join(dtype.name for dtype in allowed)
        got = ", ".join(view.dtype.name for view in views)
        raise DtypeError(record.op, expected=f"one type {names}".strip(), got=got)


def check_shape(record: OpRecord, name: str, shape: Extents, wanted: Extents) -> None:
    if not may_be_equal(shape, wanted):
        listed = [f"[{', '.join(map(str, one))}]" for one in (wanted, shape)]
        raise record.error(name, f"sizes {listed[0]}", listed[1])


ATTENTION: dict[str, Callable[[OpRecord, list[TensorView]], list[Extents]]] = {
    "sdpfa_fwd": _forward,
    "sdpfa_bwd": _backward,
}
