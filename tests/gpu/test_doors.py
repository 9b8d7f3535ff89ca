# SPDX-License-Identifier: Apache-2.0
"""Recipes with Thunder's CUDA graphs, and the backend of torch.compile, on a CUDA device."""

from __future__ import annotations

from copy import deepcopy

import pytest
import thunder
import torch
from thunder.plugins import ReduceOverhead
from torch import nn

from thunder_fuser import fuser
from thunder_fuser.doors.backend_name import backend
from thunder_fuser.doors.recipes import FuserRecipe

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


@pytest.mark.parametrize("door", ["recipe", "reduce-overhead", "backend"])
def test_steps_are_as_eager(door: str) -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8)).cuda()
    model = deepcopy(eager)
    if door == "backend":
        compiled = torch.compile(model, backend=backend, options={"fuser_strict": True})
    else:
        plugins = [ReduceOverhead()] if door == "reduce-overhead" else []
        compiled = thunder.compile(model, recipe=FuserRecipe(plugins=plugins, fuser_strict=True))
    fuser.last_claims = None
    for _ in range(3):
        x = torch.randn(16, 32, device="cuda")
        for net in (compiled, eager):
            net.zero_grad()
            net(x).square().sum().backward()
        torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-4)
        for parameter, wanted in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, wanted.grad, rtol=1e-3, atol=1e-4)
    assert fuser.last_claims is not None and fuser.last_claims.regions
