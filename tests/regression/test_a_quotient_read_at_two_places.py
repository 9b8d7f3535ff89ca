# SPDX-License-Identifier: Apache-2.0
"""A division by a count, whose result is reduced and also read at one place of each row.

Elements were multiplied by 1 / N, and what was read at one place was divided by the same variable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import TARGETS

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.frontend.values import Tensor

Results = Callable[[FusionDefinition, Tensor, Tensor, Tensor, int], list[Tensor]]

CASES: dict[str, tuple[Results, Callable[..., list[torch.Tensor]]]] = {
    "both returned": (lambda fd, y, s, z, n: [s, z], lambda y, s, z: [s, z]),
    "added": (
        lambda fd, y, s, z, n: [fd.ops.add(fd.ops.broadcast(s, [False, True]), z)],
        lambda y, s, z: [s[:, None] + z],
    ),
    "beside the elements": (
        lambda fd, y, s, z, n: [
            fd.ops.sum(fd.ops.exp(fd.ops.sub(y, fd.ops.expand(z, [64, n]))), [1]),
            z,
        ],
        lambda y, s, z: [(y - z).exp().sum(1), z],
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [256, 1000])
@pytest.mark.parametrize("case", CASES)
def test_each_is_divided_once(case: str, columns: int, dtype: torch.dtype, target: str) -> None:
    define, expected = CASES[case]
    x = torch.randn(64, columns, dtype=dtype)
    with FusionDefinition() as fd:
        y: Any = fd.ops.div(fd.from_pytorch(x), float(columns))
        z = fd.ops.slice(y, [0, 0], [64, 1])
        for result in define(fd, y, fd.ops.sum(y, [1]), z, columns):
            fd.add_output(result)
    wide = x.double() / columns
    for got, want in zip(
        fd.execute([x], target=target), expected(wide, wide.sum(1), wide[:, :1]), strict=True
    ):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
