# SPDX-License-Identifier: Apache-2.0
"""Unrolled steps beyond the end: clamped loads without a branch, and guarded stores."""

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
