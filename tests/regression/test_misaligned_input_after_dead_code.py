# SPDX-License-Identifier: Apache-2.0
"""A pass that drops an op renames the inputs defined after it; their alignment must follow."""

from __future__ import annotations

import torch
from helpers.cases import rand

from thunder_fuser.definition import FusionDefinition


def test_misaligned_input_after_dead_code() -> None:
    x, y = rand(64), rand(65)[1:]
    assert y.data_ptr() % 16 == 4
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        fd.ops.exp(a)  # no result needs it
        b = fd.from_pytorch(y)
        fd.add_output(fd.ops.add(a, b))
    (result,) = fd.execute([x, y], target="emulator")  # which checks each access's alignment
    assert torch.equal(result, x + y)
