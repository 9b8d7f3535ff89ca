# SPDX-License-Identifier: Apache-2.0
"""Unrolled steps: beyond the end, loads are clamped and stores guarded; steps rows apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.cases import assert_near, ints, poisoned
from helpers.graphs import biased
from helpers.kernels import kernel_text, scheduled

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import options
from thunder_fuser.target import EMULATOR

# One multiprocessor: a few blocks fill it, so that steps are unrolled.
SMALL_GPU = replace(EMULATOR, name="small", sm_count=1)


@pytest.mark.parametrize(("rows", "guarded"), [(256, False), (257, True)])
def test_text(rows: int, guarded: bool) -> None:
    made, source = scheduled(biased(rows, 1024, dtype=DataType.BFloat16), SMALL_GPU)
    text = kernel_text(source)
    assert made.params.unroll == 2
    assert ("? " in text) == guarded and ("if (" in text) == guarded
    assert text.index("ldv<8>") < (text.index("if (") if guarded else len(text))


@pytest.mark.parametrize("shape", [(257, 1024), (255, 1032), (1031, 96), (520, 77)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_values(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, y = ints(*shape, dtype=dtype), ints(shape[1], dtype=dtype)
    with FusionDefinition() as fd:
        total = fd.ops.add(fd.from_pytorch(x), fd.from_pytorch(y))
        narrow = DataType.BFloat16 if dtype is torch.bfloat16 else DataType.Float
        fd.add_output(fd.ops.cast(total, narrow))
    for backwards in (False, True):
        with poisoned(), options(emulate_reversed=backwards):
            (result,) = fd.execute([x, y], target=SMALL_GPU)
        assert_near(result, x + y, 0.0)


def normalised(x: torch.Tensor, *columns: torch.Tensor) -> FusionDefinition:
    """x times each of the columns, which are float32; x has 16 bits."""
    with FusionDefinition() as fd:
        made = fd.ops.cast(fd.from_pytorch(x), DataType.Float)
        for one in columns:
            made = fd.ops.mul(made, fd.from_pytorch(one))
        fd.add_output(fd.ops.cast(made, DataType.BFloat16))
    return fd


def unrolled_axis(columns: int, rows: int) -> tuple[int, str]:
    """(the steps of a thread, their axis) with so many rows of parameters."""
    values = [torch.randn(rows, 1024).bfloat16(), *(torch.randn(1024) for _ in range(columns))]
    made, _ = scheduled((normalised(*values), values), SMALL_GPU)
    (axis,) = (one.name for one in made.loop if one.parallel.name == "UNROLL")
    return made.params.unroll, axis


def test_vectors_that_share_parameters_lie_rows_apart() -> None:
    steps, axis = unrolled_axis(3, 256)
    assert steps == 4 and axis.endswith(".o.o")
    assert unrolled_axis(1, 256)[1].endswith(".o.i")  # few parameters
    assert unrolled_axis(3, 257)[1].endswith(".o.i")  # the rows do not divide


@pytest.mark.parametrize("shape", [(256, 1024), (258, 1024), (516, 96), (1028, 40), (1024, 33)])
def test_values_of_vectors_apart(shape: tuple[int, int]) -> None:
    x = ints(*shape, dtype=torch.bfloat16)
    columns = [ints(shape[1], dtype=torch.float32) for _ in range(3)]
    for backwards in (False, True):
        with poisoned(), options(emulate_reversed=backwards):
            (result,) = normalised(x, *columns).execute([x, *columns], target=SMALL_GPU)
        want = x.double() * columns[0] * columns[1] * columns[2]
        torch.testing.assert_close(result, want.bfloat16())
