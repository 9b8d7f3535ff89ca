# SPDX-License-Identifier: Apache-2.0
"""Numbers made from an index were computed in the kernel's index type, also beyond its range."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType


@pytest.mark.parametrize(("start", "step"), [(0, 2**20), (2**31 - 4, 1), (-(2**31), -(2**20))])
def test_iota_beyond_int32(run: Runner, start: int, step: int) -> None:
    unused = rand(3)

    def fusion(fd: FusionDefinition) -> None:
        fd.from_pytorch(unused)
        fd.add_output(fd.ops.iota(4096, start, step, DataType.Int))

    run(fusion, [unused], [start + step * torch.arange(4096)])
