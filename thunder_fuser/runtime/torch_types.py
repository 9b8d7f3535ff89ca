# SPDX-License-Identifier: Apache-2.0
"""DataType <-> torch.dtype. The compiler's stages do not import torch."""

from __future__ import annotations

import torch

from thunder_fuser.errors import DtypeError
from thunder_fuser.ir.dtypes import DataType

_TORCH = {
    DataType.Bool: torch.bool,
    DataType.UInt8: torch.uint8,
    DataType.Int8: torch.int8,
    DataType.Int16: torch.int16,
    DataType.Int32: torch.int32,
    DataType.Int: torch.int64,
    DataType.Float8_e4m3fn: torch.float8_e4m3fn,
    DataType.Float8_e5m2: torch.float8_e5m2,
    DataType.Half: torch.float16,
    DataType.BFloat16: torch.bfloat16,
    DataType.Float: torch.float32,
    DataType.Double: torch.float64,
    DataType.ComplexFloat: torch.complex64,
    DataType.ComplexDouble: torch.complex128,
}
_FUSER = {theirs: ours for ours, theirs in _TORCH.items()}


def to_torch_dtype(dtype: DataType) -> torch.dtype:
    """The torch dtype of the same elements."""
    return _TORCH[dtype]


def from_torch_dtype(dtype: torch.dtype) -> DataType:
    """The DataType of the same elements; DtypeError if the fuser has none."""
    found = _FUSER.get(dtype)
    if found is None:
        known = ", ".join(str(theirs).removeprefix("torch.") for theirs in _FUSER)
        raise DtypeError("torch dtype", expected=f"one of {known}", got=str(dtype))
    return found
