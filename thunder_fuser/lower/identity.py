# SPDX-License-Identifier: Apache-2.0
"""What reductions and scans start from: joined with any value, it gives that value."""

from __future__ import annotations

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.record import Literal


def identity(op: str, dtype: DataType) -> Literal:
    """The value that `op` leaves any other as it is with."""
    if op in ("sum", "prod"):
        value = 0 if op == "sum" else 1
        return Literal.of(float(value) if dtype.is_float else value)
    if dtype is DataType.Bool:
        return Literal.of(op == "min")
    if dtype.is_float:
        return Literal.of(float("-inf") if op == "max" else float("inf"))
    low, high = integer_range(dtype)
    return Literal.of(low if op == "max" else high)


def integer_range(dtype: DataType) -> tuple[int, int]:
    """The smallest and largest value of an integer type."""
    bits = 8 * dtype.bytes
    if dtype is DataType.UInt8:
        return 0, 255
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
