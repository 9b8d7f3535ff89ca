# SPDX-License-Identifier: Apache-2.0
"""Types and numbers -> C, exact to the last bit: Literal 0.1 in Float -> 0.1f."""

from __future__ import annotations

import math
import struct

from thunder_fuser.ir.dtypes import DataType, wrapped
from thunder_fuser.ir.record import Literal

C_TYPES = {
    DataType.Bool: "bool",
    DataType.UInt8: "u8",
    DataType.Int8: "i8",
    DataType.Int16: "i16",
    DataType.Int32: "i32",
    DataType.Int: "i64",
    DataType.Float8_e4m3fn: "e4m3",
    DataType.Float8_e5m2: "e5m2",
    DataType.Float8_e8m0fnu: "e8m0",
    DataType.Half: "f16",
    DataType.BFloat16: "bf16",
    DataType.Float: "float",
    DataType.Double: "double",
    DataType.ComplexFloat: "c64",
    DataType.ComplexDouble: "c128",
}


def literal_text(literal: Literal, dtype: DataType) -> str:
    """A number in a type."""
    value = literal.value
    if dtype is DataType.Bool:
        return "true" if value else "false"
    if dtype.is_complex:
        return f"{C_TYPES[dtype]}{{{literal_text(literal, dtype.real)}, 0}}"
    if not dtype.is_float:
        return _integer_text(int(value), dtype)
    text = _float_text(float(value), dtype.compute)
    return f"convert<{C_TYPES[dtype]}>({text})" if dtype.is_narrow else text


def _integer_text(value: int, dtype: DataType) -> str:
    value = wrapped(value, dtype)
    if value == -(1 << 63):
        return "(-9223372036854775807LL - 1)"
    suffix = "LL" if dtype is DataType.Int else ""
    return f"static_cast<{C_TYPES[dtype]}>({value}{suffix})"


def _float_text(value: float, dtype: DataType) -> str:
    kind = C_TYPES[dtype]
    if dtype is DataType.Float and math.isfinite(value):
        value = _as_float32(value)
    if math.isnan(value):
        return f"not_a_number<{kind}>()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}infinity<{kind}>()"
    text = repr(value)
    if dtype is DataType.Float:
        text = next(t for d in range(6, 10) if _as_float32(float(t := f"{value:.{d}g}")) == value)
        text += "" if any(c in text for c in ".e") else ".0"
        text += "f"
    return f"({text})" if value < 0 else text


def _as_float32(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
