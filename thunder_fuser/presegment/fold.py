# SPDX-License-Identifier: Apache-2.0
"""Scalars known after specialisation become literals.

    S1 = size(T0: f32[i0{8}], dim=0); T2 = cast(S1, Float); T3 = truediv(T9, T2)
->  T3 = truediv(T9, 8.0)
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from thunder_fuser.ir.dtypes import DataType, fits, of_number
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Literal, Number, Operand, OpRecord
from thunder_fuser.presegment.rewrite import rewrite

_FOLD: dict[str, Callable[[Number, Number], Number]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "maximum": max,
    "minimum": min,
}


def fold_scalars(fusion: Fusion) -> Fusion:
    """Replaces sizes, and sums and products of literals, by literals. Results stay computed."""
    results = {output.name for output in fusion.outputs}

    def rule(record: OpRecord) -> OpRecord | Operand:
        if record.outputs[0] in results or not fusion.tensors[record.outputs[0]].is_scalar:
            return record
        value = _value(record, fusion)
        return record if value is None else Literal.of(value)

    return rewrite(fusion, rule)


def _value(record: OpRecord, fusion: Fusion) -> Number | None:
    if record.op == "size":
        shape = fusion.tensors[str(record.inputs[0])].shape
        extent = shape[record.attr("dim")]  # type: ignore[index]
        return extent.value if extent.is_const else None
    literals = [o.value for o in record.inputs if isinstance(o, Literal)]
    if len(literals) != len(record.inputs):
        return None
    if record.op == "cast":
        return _converted(literals[0], record.attr("dtype"))
    if record.op in _FOLD:
        value = _FOLD[record.op](*literals)
        return value if fits(value, of_number(value)) else None  # kernels wrap around
    return None


def _converted(value: Number, dtype: object) -> Number | None:
    if dtype in (DataType.Float, DataType.Double):
        return float(value)
    return int(value) if dtype is DataType.Int and float(value).is_integer() else None
