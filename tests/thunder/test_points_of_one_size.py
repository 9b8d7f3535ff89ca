# SPDX-License-Identifier: Apache-2.0
"""Values kept on chip whose places coincide for the sizes of a call, and differ in general."""

from __future__ import annotations

import pytest
import thunder
import torch
import torch.nn.functional as F
from helpers.cases import rand

from thunder_fuser.executors.fuser import fuser


def chain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """With three rows, the last row of a flipped column sum is row 2 of another."""
    for step in range(3):
        x = F.rms_norm(x, x.shape[-1:], weight) + x.sum(0, keepdim=True) * 1e-3
        x = torch.where(x > step, x.flip(0), x.roll(1, -1))
    return x


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_a_flip_beside_sums_of_few_rows(rows: int) -> None:
    x, weight = rand(rows, 64), rand(64, seed=1)
    jitted = thunder.jit(chain, executors=[fuser], fuser_emulate=True, fuser_strict=True)
    torch.testing.assert_close(jitted(x, weight), chain(x, weight))
