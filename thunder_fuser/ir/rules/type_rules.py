# SPDX-License-Identifier: Apache-2.0
"""The types an op computes in, the types of its results, and which operands it refuses.

    add(T0: bf16, T1: i32)          operands f32, f32      result f32
    abs(T0: c64)                    operand c64            result f32
    sum(T0: i32)                                           result i64
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir.dtypes import DataType, category, fits, promote
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.record import Literal, Operand, OpRecord


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a value whose axes are not known."""

    dtype: DataType
    is_scalar: bool = False


Typed = TensorView | ValueType


def result_types(record: OpRecord, operands: Sequence[Typed]) -> list[DataType]:
    """The type of each result of an op, without checks of the operands."""
    row = record.row
    if row.kind is OpKind.POINTWISE:
        return [_pointwise_types(record, operands)[1]]
    requested: DataType | None = record.attr("dtype")  # type: ignore[assignment]
    if row.kind is OpKind.RANDOM:
        return [requested or DataType.Float]
    if row.kind in (OpKind.FACTORY, OpKind.SCALAR):
        return [requested or DataType.Int]
    source_type = operands[row.source].dtype
    if row.kind is OpKind.MOVEMENT:
        return [promote(*(operand.dtype for operand in operands))]
    if row.rule is DtypeRule.ACCUMULATE and not (row.kind is OpKind.SCAN and source_type.is_half):
        return [requested or source_type.accumulate]
    if row.kind in (OpKind.REDUCTION, OpKind.SCAN):
        return [requested or source_type]
    return [source_type if dtype is None else dtype for dtype in row.results]


def types_of(record: OpRecord, operands: Sequence[Typed]) -> list[DataType]:
    """The type that each operand is converted to and, last, that of the first result."""
    if record.row.kind is OpKind.POINTWISE:
        compute, result = _pointwise_types(record, operands)
        return [*compute, result]
    (result, *_) = result_types(record, operands)
    return [result] * (len(operands) + 1)


def gives_scalar(record: OpRecord, operands: Sequence[Typed]) -> bool:
    """True if the result of an op is a scalar: a size, or computed only from scalars."""
    kind = record.row.kind
    if kind is OpKind.POINTWISE or record.op == "set":
        return all(operand.is_scalar for operand in operands)
    return kind is OpKind.SCALAR


def pointwise_types(
    record: OpRecord, operands: Sequence[TensorView]
) -> tuple[list[DataType], DataType]:
    """(compute type of each operand, type of the result); DtypeError for unsupported types."""
    _check_computes(record, operands)
    compute, result = _pointwise_types(record, operands)
    _check_row(record, operands, compute)
    return compute, result


def _pointwise_types(
    record: OpRecord, operands: Sequence[Typed]
) -> tuple[list[DataType], DataType]:
    rule, count = record.row.rule, len(operands)
    if rule is DtypeRule.ATTRIBUTE:
        return [operands[0].dtype], record.attr("dtype")  # type: ignore[return-value]
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
    if rule is DtypeRule.COMPARE:
        return [common] * count, DataType.Bool
    if rule is DtypeRule.REAL:
        return [common] * count, common.real
    return [common] * count, common.complex if rule is DtypeRule.COMPLEX else common


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


def check_collected(record: OpRecord, view: TensorView) -> None:
    """DtypeError for unsupported reductions and scans: complex numbers have sums but no maximum."""
    _check_computes(record, [view])
    if view.dtype.is_complex and record.row.rule is not DtypeRule.ACCUMULATE:
        raise _error(record, "a real type", view.dtype.name)


def _error(record: OpRecord, expected: str, got: str, do: str = "") -> DtypeError:
    return DtypeError(f"ops.{record.op}", expected=expected, got=got, do=do)


def _check_computes(record: OpRecord, views: Sequence[TensorView]) -> None:
    """DtypeError for arithmetic on floats below 16 bits, which torch does not have either."""
    if record.row.rule in (DtypeRule.ATTRIBUTE, DtypeRule.SELECT):
        return
    for dtype in (view.dtype for view in views):
        if dtype.is_float8:
            do = "cast to DataType.Float first"
            raise _error(record, "a type with arithmetic", dtype.name, do)


def _check_row(
    record: OpRecord, operands: Sequence[TensorView], compute: Sequence[DataType]
) -> None:
    """DtypeError for a type that the row of the op does not take."""
    row, is_complex = record.row, any(dtype.is_complex for dtype in compute)
    if row.rule is DtypeRule.SELECT and operands[0].dtype is not DataType.Bool:
        do = "compare it, or cast it to DataType.Bool"
        raise _error(record, "a condition of type Bool", operands[0].dtype.name, do)
    spelling = row.c_complex if is_complex else row.c
    if not spelling and row.rule not in (DtypeRule.ATTRIBUTE, DtypeRule.SELECT):
        raise _error(record, f"a {'real' if is_complex else 'complex'} type", compute[0].name)
    if row.rule is DtypeRule.INTEGER and any(dtype.is_float for dtype in compute):
        raise _error(record, "integers or bools" if row.bools else "integers", compute[0].name)
    if not row.bools and DataType.Bool in compute:
        raise _error(record, "numbers", "Bool", "cast to DataType.Int first")


def check_operands(record: OpRecord) -> None:
    """DefinitionError for a number in place of a tensor; see NUMBER_AT for exceptions."""
    if record.row.kind in TAKES_NUMBERS:
        return
    if not record.inputs:
        raise record.error("", "at least one tensor", "none")
    for at, operand in enumerate(record.inputs):
        if isinstance(operand, Literal) and NUMBER_AT.get(record.op) != at:
            raise record.error(record.row.operand_name(at), "a tensor", operand.value)


def check_numbers(record: OpRecord, views: Sequence[TensorView]) -> None:
    """DefinitionError unless each operand of a factory or random op is a single number."""
    for word, operand, view in zip(record.row.keywords, record.inputs, views, strict=False):
        is_stream, into = word.startswith("rng"), record.attr("dtype")
        takes_complex = record.op == "full" and isinstance(into, DataType) and into.is_complex
        too_much = view.dtype.is_complex and not takes_complex
        if view.shape or (is_stream and not view.dtype.is_int) or too_much:
            kind = "an integer" if is_stream else "a real number"
            expected = f"{kind}, a scalar or a tensor of rank 0"
            got = str(view) if isinstance(operand, str) else repr(operand.value)
            raise DefinitionError(f"ops.{record.op}: {word}", expected=expected, got=got)


def check_literals(
    record: OpRecord, operands: Sequence[Operand], dtypes: Sequence[DataType]
) -> None:
    """DtypeError for a literal outside the range of the type it is converted to."""
    for operand, dtype in zip(operands, dtypes, strict=True):
        if isinstance(operand, Literal) and not fits(operand.value, dtype):
            do = "cast the tensor to a wider type first"
            raise _error(record, f"a number of type {dtype.name}", repr(operand.value), do)


# Ops of which every operand may be a number.
TAKES_NUMBERS = (OpKind.POINTWISE, OpKind.FACTORY, OpKind.RANDOM)
# Ops that move data and the operand that may be a number: a source, or a single index.
NUMBER_AT = {"set": 0, "scatter": 2, "index_select": 1}
