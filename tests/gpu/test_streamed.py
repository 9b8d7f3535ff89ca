# SPDX-License-Identifier: Apache-2.0
"""Large inputs, whose lines leave the second-level cache last: right results, also in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import thunder_fuser

SIZES = 32768, 4096  # 512 MiB of float32
pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]
FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "norm": lambda x, y: F.rms_norm(x, x.shape[-1:], y[0]),
    "softmax": lambda x, y: F.softmax(x, -1),
    "sum of two": lambda x, y: x + y,
    "in place": lambda x, y: x.mul_(0.5).add_(y),
    "a row in place": lambda x, y: x.sub_(x.mean(-1, keepdim=True)),
    "turned": lambda x, y: x.t() + 1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_exact_as_torch(name: str) -> None:
    function = FUNCTIONS[name]
    jitted = thunder_fuser.jit(function)
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            x, y = (torch.randn(SIZES, device="cuda") for _ in range(2))
            x[5, 7], x[-1, -1] = torch.nan, torch.inf
            expected = function(x.clone(), y)
            torch.testing.assert_close(jitted(x, y), expected, equal_nan=True)
            if "in place" in name:
                torch.testing.assert_close(x, expected, equal_nan=True)
