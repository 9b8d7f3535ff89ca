# SPDX-License-Identifier: Apache-2.0
"""Times of fusions and kernels, by CUDA events."""

from __future__ import annotations

import pytest
import torch

from thunder_fuser.explain import profile
from thunder_fuser.explain.jitted import jit

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


def test_each_fusion_and_kernel_has_a_time() -> None:
    jitted = jit(lambda x: torch.tanh(x) * 2, strict=True)
    x = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    found = profile(jitted, x)
    assert {one.direction for one in found.fusions} == {"forward", "backward"}
    times = [one.us for one in found.fusions]
    times += [kernel.measured_us for one in found.report.fusions for kernel in one.kernels]
    assert all(time is not None and time > 0 for time in times)
