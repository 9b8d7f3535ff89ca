# SPDX-License-Identifier: Apache-2.0
"""The types an op computes in, the types of its results, and which operands it refuses.

    add(T0: bf16, T1: i32)          operands f32, f32      result f32
    abs(T0: c64)                    operand c64            result f32
    sum(T0: i32)                                           result i64
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir.dtypes import DataType, category, fits, promote
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.record import Literal, Operand, OpRecord


class Typed(Protocol):
    """What the rules read of an operand: a TensorView, or a ValueType."""

    @property
    def dtype(self) -> DataType:
        """The type of the elements."""

    @property
    def is_scalar(self) -> bool:
        """True for a number, False for a tensor of any rank."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a value whose axes are not known."""

    dtype: DataType
    is_scalar: bool = False


def result_types(record: OpRecord, operands: Sequence[Typed]) -> list[DataType]:
    """The type of each result of an op, without checks of the operands."""
    row = record.row
    if row.kind is OpKind.POINTWISE:
        return [_pointwise_types(record, operands)[1]]
    if row.kind in (OpKind.REDUCTION, OpKind.SCAN):
        return [collected_type(record, operands[0].dtype)]
    if row.kind in (OpKind.FACTORY, OpKind.RANDOM):
        return [made_type(record)]
    if row.kind is OpKind.SCALAR:
        return [DataType.Int]
    if row.kind is OpKind.MOVEMENT:
        return [promote(*(operand.dtype for operand in operands))]
    own = operands[row.source].dtype
    return [own if dtype is None else dtype for dtype in row.results]


def gives_scalar(record: OpRecord, operands: Sequence[Typed]) -> bool:
    """True if the result of an op is a scalar: a size, or computed only from scalars."""
    kind = record.row.kind
    if kind is OpKind.POINTWISE or record.op == "set":
        return all(operand.is_scalar for operand in operands)
    return kind is OpKind.SCALAR


def collected_type(record: OpRecord, dtype: DataType) -> DataType:
    """The type of a reduction or scan over elements of a type."""
    if record.attr("dtype") is not None:
        return dtype_of(record)
    if record.row.rule is DtypeRule.ACCUMULATE:
        return dtype.accumulate
    return dtype if record.row.kind is OpKind.REDUCTION else dtype.compute


def made_type(record: OpRecord) -> DataType:
    """The type of elements made from nothing: the `dtype` attribute, Int for an iota without."""
    if record.op == "iota" and record.attr("dtype") is None:
        return DataType.Int
    return dtype_of(record)


def pointwise_types(
    record: OpRecord, operands: Sequence[TensorView]
) -> tuple[list[DataType], DataType]:
    """(compute type of each operand, type of the result); DtypeError for unsupported types."""
    _check_computes(record, operands)
    compute, result = _pointwise_types(record, operands)
    _check_row(record, compute)
    return compute, result


def _pointwise_types(
    record: OpRecord, operands: Sequence[Typed]
) -> tuple[list[DataType], DataType]:
    rule, count = record.row.rule, len(operands)
    if rule is DtypeRule.ATTRIBUTE:
        return [operands[0].dtype], dtype_of(record)
    if rule is DtypeRule.PREDICATE:
        return [operands[0].dtype.compute], DataType.Bool
    if rule is DtypeRule.LOGICAL:
        return [DataType.Bool] * count, DataType.Bool
    if rule is DtypeRule.SELECT:
        common = common_type(operands[1:])
        return [DataType.Bool, common, common], common
    common = common_type(operands).compute
    if rule in (DtypeRule.FLOAT, DtypeRule.COMPLEX) and category(common) < 2:
        common = DataType.Float
    return [common] * count, _result_type(rule, common)


def common_type(operands: Sequence[Typed]) -> DataType:
    """torch's promotion: tensors decide, a scalar only if its category is higher."""
    tensors = [v.dtype for v in operands if not v.is_scalar]
    scalars = [v.dtype for v in operands if v.is_scalar]
    if not tensors:
        return promote(*scalars)
    common = promote(*tensors)
    strongest = max(map(category, scalars), default=0)
    if strongest <= category(common):
        return common
    return {2: DataType.Float, 3: common.complex}.get(strongest, DataType.Int)


def _result_type(rule: DtypeRule, common: DataType) -> DataType:
    if rule is DtypeRule.COMPARE:
        return DataType.Bool
    if rule is DtypeRule.REAL:
        return common.real
    return common.complex if rule is DtypeRule.COMPLEX else common


def check_collected(record: OpRecord, view: TensorView) -> None:
    """DtypeError for unsupported reductions and scans: complex numbers have sums but no maximum."""
    _check_computes(record, [view])
    if view.dtype.is_complex and record.row.rule is not DtypeRule.ACCUMULATE:
        raise DtypeError(f"ops.{record.op}", expected="a real type", got=view.dtype.name)


def _check_computes(record: OpRecord, views: Sequence[TensorView]) -> None:
    """DtypeError for arithmetic on 8-bit floats, which torch does not have either."""
    if record.row.rule in (DtypeRule.ATTRIBUTE, DtypeRule.SELECT):
        return
    for view in views:
        if view.dtype.is_float8:
            raise DtypeError(
                f"ops.{record.op}",
                expected="a type with arithmetic",
                got=view.dtype.name,
                do="cast to DataType.Float first",
            )


def _check_row(record: OpRecord, compute: Sequence[DataType]) -> None:
    row = record.row
    _check_complex(record, compute)
    if row.rule is DtypeRule.INTEGER and any(d.is_float for d in compute):
        raise DtypeError(
            f"ops.{row.name}",
            expected="integers or bools" if row.bools else "integers",
            got=compute[0].name,
        )
    if not row.bools and DataType.Bool in compute:
        raise DtypeError(
            f"ops.{row.name}", expected="numbers", got="Bool", do="cast to DataType.Int first"
        )


def _check_complex(record: OpRecord, compute: Sequence[DataType]) -> None:
    row, is_complex = record.row, any(dtype.is_complex for dtype in compute)
    if row.rule in (DtypeRule.ATTRIBUTE, DtypeRule.SELECT):
        return
    if is_complex and not row.c_complex:
        raise DtypeError(f"ops.{row.name}", expected="a real type", got=compute[0].name)
    if not is_complex and not row.c:
        raise DtypeError(f"ops.{row.name}", expected="a complex type", got=compute[0].name)


def dtype_of(record: OpRecord) -> DataType:
    """The `dtype` attribute; DtypeError if it is missing or no DataType."""
    dtype = record.attr("dtype")
    if not isinstance(dtype, DataType):
        raise DtypeError(f"{record.op}: dtype", expected="a DataType", got=repr(dtype))
    return dtype


def check_operands(record: OpRecord) -> None:
    """DefinitionError for a number in place of a tensor; see _NUMBER_AT for exceptions."""
    if record.row.kind in (OpKind.POINTWISE, OpKind.FACTORY, OpKind.RANDOM):
        return
    if not record.inputs:
        raise DefinitionError(record.op, expected="at least one tensor", got="none")
    for at, operand in enumerate(record.inputs):
        if isinstance(operand, Literal) and _NUMBER_AT.get(record.op) != at:
            raise DefinitionError(
                f"{record.op}: {record.row.operand_name(at)}", expected="a tensor",
                got=str(operand.value),
            )  # fmt: skip


def check_number(record: OpRecord, word: str, operand: Operand, view: TensorView) -> None:
    """DefinitionError unless an operand is one number, as factories and random ops require."""
    is_stream = word.startswith("rng")
    if view.shape or (is_stream and not view.dtype.is_int) or view.dtype.is_complex:
        kind = "an integer" if is_stream else "a real number"
        raise DefinitionError(
            f"ops.{record.op}: {word}",
            expected=f"{kind}, a scalar or a tensor of rank 0",
            got=str(view) if isinstance(operand, str) else repr(operand.value),
        )


def check_literals(
    record: OpRecord, operands: Sequence[Operand], dtypes: Sequence[DataType]
) -> None:
    """DtypeError for a literal outside the range of the type it is converted to."""
    for operand, dtype in zip(operands, dtypes, strict=True):
        if isinstance(operand, Literal) and not fits(operand.value, dtype):
            raise DtypeError(
                f"ops.{record.op}", expected=f"a number of type {dtype.name}",
                got=repr(operand.value), do="cast the tensor to a wider type first",
            )  # fmt: skip


# Ops that move data and the operand that may be a number: a source, or a single index.
_NUMBER_AT = {"set": 0, "scatter": 2, "index_select": 1}


def check_drawn(record: OpRecord) -> None:
    """DefinitionError unless a drawn scalar is a seed or an offset."""
    if record.attr("drawn") not in (None, "seed", "offset"):
        raise DefinitionError(
            "define_scalar: drawn", expected='"seed" or "offset"', got=repr(record.attr("drawn"))
        )
