# SPDX-License-Identifier: Apache-2.0
"""Thunder's dtypes <-> the fuser's; and the sets of dtypes in rows of the support table."""

from __future__ import annotations

from functools import cache
from typing import Any

from thunder.core import dtypes
from thunder.core.proxies import NumberProxy

from thunder_fuser.errors import DtypeError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.torch_types import to_torch_dtype

FLOAT8 = frozenset(dtype for dtype in DataType if dtype.is_float8)
FLOATS = frozenset(dtype for dtype in DataType if dtype.is_float) - FLOAT8
INTS = frozenset(dtype for dtype in DataType if dtype.is_int)
EXACT = INTS | {DataType.Bool}
NUMBERS = FLOATS | INTS
# Thunder itself casts 16-bit floats up around arithmetic and mathematical functions.
MATH = frozenset({DataType.Float, DataType.Double})
ARITHMETIC = MATH | INTS
COMPLEX = frozenset(dtype for dtype in DataType if dtype.is_complex)
ANY = NUMBERS | {DataType.Bool}
STORED = ANY | FLOAT8 | COMPLEX

_DTYPES = {dtypes.to_dtype(to_torch_dtype(dtype)): dtype for dtype in DataType}


@cache
def data_type(dtype: Any) -> DataType | None:
    """The fuser's name of a Thunder dtype, weak or strong, or of a Python number type.

    Weak int8 becomes Int: Thunder casts a bool to it before it adds a number, torch to int64.
    """
    if dtype == dtypes.int8_:
        return DataType.Int
    return _DTYPES.get(dtypes.to_strong_dtype(dtypes.to_dtype(dtype)))


def known_type(dtype: Any) -> DataType:
    """data_type of a dtype that the support table has accepted."""
    known = data_type(dtype)
    if known is None:
        raise DtypeError("dtype of the trace", expected="one that support() takes", got=str(dtype))
    return known


def is_known_number(value: Any) -> bool:
    """True for a number that the trace guards: a literal of the definition, not an input."""
    static = isinstance(value, NumberProxy) and value.is_static_constrained()
    return static and value.value is not None
