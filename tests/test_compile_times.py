# SPDX-License-Identifier: Apache-2.0
"""Runs after all other tests: says how many kernels they compiled with NVRTC, and how fast."""

from __future__ import annotations

import pytest
import torch
from watch import ARCHES, check_sources, checked_texts, has_nvrtc, median_compile_ms

from thunder_fuser.definition import FusionDefinition


@pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not on this machine")
def test_compile_times(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(8, 64)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        powers = fd.ops.exp(t)
        fd.add_output(fd.ops.truediv(powers, fd.ops.sum(powers, [1], keepdim=True)))
    check_sources(list(fd.sources([x], target="emulator")))
    median = median_compile_ms()
    with capsys.disabled():
        print(
            f"\n{len(checked_texts)} CUDA texts compiled for {' and '.join(ARCHES)}, "
            f"median {median:.0f} ms"
        )
    assert median > 0  # a time, which a slow machine may take: that no header is read is checked
