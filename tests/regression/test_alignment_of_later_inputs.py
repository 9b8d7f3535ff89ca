# SPDX-License-Identifier: Apache-2.0
"""An input defined after an op that folds away was taken for aligned: its new name had no entry."""

from __future__ import annotations

import torch
from helpers.cases import rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType


def test_alignment_of_later_inputs() -> None:
    x, y = rand(64), rand(65)[1:]
    with FusionDefinition() as fd:
        first = fd.from_pytorch(x)
        count = fd.ops.cast(fd.ops.size(first, 0), DataType.Float)
        fd.add_output(fd.ops.mul(fd.ops.add(first, fd.from_pytorch(y)), count))
    (result,) = fd.execute([x, y], target="emulator")
    torch.testing.assert_close(result, (x + y) * 64)
