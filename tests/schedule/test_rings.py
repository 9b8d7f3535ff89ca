# SPDX-License-Identifier: Apache-2.0
"""Rows that a flat vector crosses at any address: one load of neighbours, not an index a lane."""

from __future__ import annotations

import re

import pytest
import torch
from helpers.cases import Runner, ints
from helpers.graphs import biased

from thunder_fuser.compiler import emit, schedule
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.target import H200

D = DataType


def text(rows: int, columns: int, dtype: DataType) -> str:
    fd, inputs = biased(rows, columns, dtype=dtype)
    (segment,) = fd.plan(inputs, target=H200).segments
    made = schedule(segment, dict.fromkeys(fd.fusion.inputs, 16))
    source = emit(made)
    assert source is not None
    return source.text


@pytest.mark.parametrize(("columns", "dtype"), [(4095, D.BFloat16), (4098, D.Half), (77, D.Float)])
def test_odd_row(columns: int, dtype: DataType) -> None:
    width = 16 // dtype.bytes
    found = text(64, columns, dtype)
    assert re.search(rf"ldr<{width}>\(T[01],", found) and f"stv<{width}>" in found
    assert not re.search(r"\bld\(T[01]", found.partition("_pointwise(")[2])


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        (4096, D.BFloat16),  # whole vectors
        (5, D.BFloat16),  # a vector would go around more than once
        (4094, D.Float),  # 2 elements at once are better
    ],
)
def test_no_ring(columns: int, dtype: DataType) -> None:
    assert "ldr<" not in text(64, columns, dtype)


CASES = [
    # x, the broadcast operand, both as shapes
    ((8, 77), (77,), torch.bfloat16),
    ((16, 9), (9,), torch.bfloat16),
    ((4, 33), (33,), torch.float32),
    ((8, 3, 43), (8, 1, 43), torch.bfloat16),  # its own row for each first index
    ((5, 16, 11), (16, 11), torch.float16),  # 176 elements: whole vectors, no ring
    ((3, 8, 7, 3), (1, 8, 1, 3), torch.float32),
    ((32, 21), (21,), torch.int8),
]


@pytest.mark.parametrize(("shape", "other", "dtype"), CASES)
def test_values(
    run: Runner, shape: tuple[int, ...], other: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, y = ints(*shape, dtype=dtype), ints(*other, dtype=dtype)

    def fusion(fd: FusionDefinition) -> None:
        a, b = fd.from_pytorch(x), fd.from_pytorch(y)
        for _ in range(x.dim() - y.dim()):
            b = fd.ops.broadcast(b, [True] + [False] * (x.dim() - 1))
        total = fd.ops.add(a, b)
        fd.add_output(fd.ops.cast(total, _type(dtype)))

    run(fusion, [x, y], [x + y], tolerance=0.0)


def _type(dtype: torch.dtype) -> DataType:
    names = {torch.bfloat16: D.BFloat16, torch.float16: D.Half, torch.float32: D.Float}
    return names.get(dtype, D.Int8)
