# SPDX-License-Identifier: Apache-2.0
"""Ops that torch runs: types and sizes of their results, and checks of their operands.

    T2, T3 = topk(T0: f32[i0{8}, i1{50}], k=4)    ->  f32[i2{8}, i3{4}], i64[i4{8}, i5{4}]

Their results have new axes, because no kernel spans a torch call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.indexed import check_index
from thunder_fuser.ir.record import Literal, OpRecord
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.ir.shapes import matmul, may_be_equal, normalise_axis
from thunder_fuser.ir.type_rules import check_literals, result_types

Extents = Sequence[Scalar]


def results(record: OpRecord, operands: list[TensorView]) -> list[tuple[DataType, Extents]]:
    """The dtype and the extents of each result; DefinitionError or DtypeError naming the operand.

    Operands are tensors, except that the last one of `scatter` may be a number.
    """
    extents = _RULES[record.op](record, operands)
    return [(dtype, extents) for dtype in result_types(record, operands)]


def _product(record: OpRecord, operands: list[TensorView]) -> Extents:
    if len({view.dtype for view in operands}) != 1:
        raise DtypeError(
            record.op, expected="one dtype", got=", ".join(v.dtype.name for v in operands)
        )
    return matmul(record, [view.domain.no_reductions for view in operands])


def _like_first(record: OpRecord, operands: list[TensorView]) -> Extents:
    """sort, argsort: the sizes of the operand."""
    _check_ordered(record, operands[0])
    shape = operands[0].shape
    normalise_axis(record.attr("dim"), max(len(shape), 1), record.op)
    return shape


def _topk(record: OpRecord, operands: list[TensorView]) -> Extents:
    shape, k = operands[0].shape, record.attr("k")
    dim = normalise_axis(record.attr("dim"), max(len(shape), 1), "topk")
    _check_ordered(record, operands[0])
    if operands[0].dtype is DataType.Bool:
        raise DtypeError("ops.topk", expected="numbers", got="Bool", do="cast to DataType.Int")
    longest = shape[dim] if shape else const(1)
    if not isinstance(k, int) or k < 0 or (longest.is_const and k > longest.value):
        raise DefinitionError("topk: k", expected=f"0 to {longest}", got=repr(k))
    return tuple(const(k) if at == dim else extent for at, extent in enumerate(shape))


def _check_ordered(record: OpRecord, view: TensorView) -> None:
    """DtypeError for complex numbers, which have no order, and for 8-bit floats."""
    if view.dtype.is_complex or view.dtype.is_float8:
        raise DtypeError(
            f"ops.{record.op}: arg", expected="real numbers of a type with arithmetic",
            got=view.dtype.name,
        )  # fmt: skip


def _write(record: OpRecord, operands: list[TensorView]) -> Extents:
    """Ops that write into a copy of the first operand: its sizes. The source has its dtype."""
    target, index, source = operands
    check_index(record, index)
    check_literals(record, record.inputs[2:], [target.dtype])
    if source.dtype is not target.dtype and not isinstance(record.inputs[2], Literal):
        raise DtypeError(
            f"{record.op}: src", expected=target.dtype.name, got=source.dtype.name,
            do="cast it first",
        )  # fmt: skip
    if "dim" in record.row.parameters.parameters:
        normalise_axis(record.attr("dim"), max(len(target.shape), 1), record.op)
    _CHECKS[record.op](record, operands)
    return target.shape


def _check_along(record: OpRecord, operands: list[TensorView]) -> None:
    """scatter: equal ranks; an index no longer than the source and, but along dim, the target."""
    target, index, source = operands
    dim = normalise_axis(record.attr("dim"), max(len(target.shape), 1), record.op)
    others = [target] if isinstance(record.inputs[2], Literal) else [target, source]
    for other in others:
        if len(other.shape) != len(index.shape):
            raise DefinitionError(
                f"{record.op}: index", expected=f"rank {len(other.shape)}",
                got=f"rank {len(index.shape)}",
            )  # fmt: skip
        for at, (size, most) in enumerate(zip(index.shape, other.shape, strict=True)):
            free = other is target and at == dim
            if not free and size.is_const and most.is_const and size.value > most.value:
                raise DefinitionError(
                    f"{record.op}: axis {at} of the index", expected=f"at most {most}",
                    got=str(size),
                )  # fmt: skip


def _check_slices(record: OpRecord, operands: list[TensorView]) -> None:
    """index_add, index_copy: the source has one slice for each element of the index."""
    target, index, source = operands
    if len(index.shape) > 1:
        raise DefinitionError(
            f"{record.op}: index", expected="rank 0 or 1", got=f"rank {len(index.shape)}"
        )
    dim = normalise_axis(record.attr("dim"), max(len(target.shape), 1), record.op)
    count = index.shape[0] if index.shape else const(1)
    expected = tuple(count if at == dim else s for at, s in enumerate(target.shape))
    _check_shape(record, source, expected)


def _check_put(record: OpRecord, operands: list[TensorView]) -> None:
    """index_put: the sizes of the index replace the first size of the target."""
    target, index, source = operands
    if not target.shape:
        raise DefinitionError(record.op, expected="a tensor with axes", got="rank 0")
    _check_shape(record, source, (*index.shape, *target.shape[1:]))


def _check_shape(record: OpRecord, source: TensorView, expected: Sequence[Scalar]) -> None:
    if not may_be_equal(source.shape, expected):
        raise DefinitionError(
            f"{record.op}: src", expected=f"sizes {list(map(str, expected))}",
            got=f"{list(map(str, source.shape))}",
        )  # fmt: skip


def _embedding_backward(record: OpRecord, operands: list[TensorView]) -> Extents:
    grad, indices = operands
    count = record.attr("num_weights")
    check_index(record, indices)
    if not isinstance(count, int) or count < 0:
        raise DefinitionError(
            "embedding_backward: num_weights", expected="a size >= 0", got=repr(count)
        )
    if not grad.dtype.is_float:
        raise DtypeError("embedding_backward: grad", expected="a float", got=grad.dtype.name)
    if not grad.shape or not may_be_equal(grad.shape[:-1], indices.shape):
        raise DefinitionError(
            "embedding_backward: grad", expected="the sizes of the indices and one more axis",
            got=f"{list(map(str, grad.shape))} and {list(map(str, indices.shape))}",
        )  # fmt: skip
    return (const(count), grad.shape[-1])


_Check = Callable[[OpRecord, list[TensorView]], None]
_CHECKS: dict[str, _Check] = {
    "scatter": _check_along,
    "scatter_add": _check_along,
    "index_add": _check_slices,
    "index_copy": _check_slices,
    "index_put": _check_put,
    "index_put_accumulate": _check_put,
}
_RULES: dict[str, Callable[[OpRecord, list[TensorView]], Extents]] = {
    "matmul": _product,
    "linear": _product,
    **dict.fromkeys(_CHECKS, _write),
    "embedding_backward": _embedding_backward,
    "argsort": _like_first,
    "sort": _like_first,
    "topk": _topk,
}
