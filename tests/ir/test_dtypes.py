# SPDX-License-Identifier: Apache-2.0
"""Element types: their facts and their promotion, against torch's own."""

from __future__ import annotations

import doctest
import itertools

import pytest
import torch

from thunder_fuser.errors import DtypeError
from thunder_fuser.ir import dtypes
from thunder_fuser.ir.dtypes import DataType, category, of_number, promote
from thunder_fuser.runtime.torch_types import from_torch_dtype, to_torch_dtype

PROMOTED = [dtype for dtype in DataType if not dtype.is_float8]


@pytest.mark.parametrize("dtype", DataType, ids=lambda d: d.short)
def test_facts_agree_with_torch(dtype: DataType) -> None:
    theirs = to_torch_dtype(dtype)
    assert from_torch_dtype(theirs) is dtype
    assert dtype.bytes == theirs.itemsize
    assert dtype.is_float == theirs.is_floating_point
    assert dtype.is_complex == theirs.is_complex
    inexact = theirs.is_floating_point or theirs.is_complex
    assert dtype.is_int == (not inexact and theirs is not torch.bool)
    assert to_torch_dtype(dtype.real) is torch.empty(0, dtype=theirs).real.dtype
    assert [one for one in DataType if one.short == dtype.short] == [dtype]
    assert eval(str(dtype), {"DataType": DataType}) is dtype


@pytest.mark.parametrize("a", PROMOTED, ids=lambda d: d.short)
def test_promotion_agrees_with_torch(a: DataType) -> None:
    for b in PROMOTED:
        expected = torch.promote_types(to_torch_dtype(a), to_torch_dtype(b))
        assert promote(a, b) is from_torch_dtype(expected), (a, b)


def test_promotion_of_three_agrees_with_torch() -> None:
    for a, b, c in itertools.product(PROMOTED, repeat=3):
        expected = torch.promote_types(to_torch_dtype(a), to_torch_dtype(b))
        expected = torch.promote_types(expected, to_torch_dtype(c))
        assert promote(a, b, c) is from_torch_dtype(expected), (a, b, c)


@pytest.mark.parametrize("dtype", DataType, ids=lambda d: d.short)
def test_sums_accumulate_in_a_wider_type(dtype: DataType) -> None:
    if dtype.is_float or dtype.is_complex:
        assert dtype.accumulate is (DataType.Float if dtype.is_narrow else dtype)
    else:
        # torch sums bools and integers into int64
        result = torch.ones(2, dtype=to_torch_dtype(dtype)).sum().dtype
        assert dtype.accumulate is from_torch_dtype(result)


@pytest.mark.parametrize("a", [d for d in DataType if d.is_float8], ids=lambda d: d.short)
def test_8_bit_floats_do_not_promote(a: DataType) -> None:
    """Neither do torch's."""
    for b in DataType:  # also a complex one
        if a is b:
            assert promote(a, b) is a
            continue
        for pair in ((a, b), (b, a)):
            with pytest.raises(DtypeError, match="equal dtypes beside an 8-bit float"):
                promote(*pair)


def test_numbers() -> None:
    assert [of_number(x) for x in (True, 1, 1.0)] == [DataType.Bool, DataType.Int, DataType.Double]
    assert [category(of_number(x)) for x in (True, 1, 1.0)] == [0, 1, 2]


def test_promotion_of_nothing() -> None:
    with pytest.raises(DtypeError) as error:
        promote()
    assert str(error.value) == "promote: expected at least one dtype, got none"


def test_a_torch_dtype_the_fuser_does_not_have() -> None:
    with pytest.raises(DtypeError) as error:
        from_torch_dtype(torch.complex32)
    assert str(error.value) == (
        "torch dtype: expected one of bool, uint8, int8, int16, int32, int64, float8_e4m3fn, "
        "float8_e5m2, float8_e8m0fnu, float16, bfloat16, float32, float64, "
        "complex64, complex128, got torch.complex32"
    )


def test_the_examples_of_the_module() -> None:
    assert doctest.testmod(dtypes).failed == 0
