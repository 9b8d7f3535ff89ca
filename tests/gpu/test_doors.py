# SPDX-License-Identifier: Apache-2.0
"""Recipes with Thunder's CUDA graphs, the backend of torch.compile, and examples, on a CUDA
device."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

import pytest
import thunder
import torch
from thunder.plugins import ReduceOverhead
from torch import nn

from thunder_fuser import fuser
from thunder_fuser.doors.backend_name import backend
from thunder_fuser.doors.recipes import FuserRecipe

ROOT = Path(__file__).resolve().parents[2]
# {an example: what it needs beside torch}
EXAMPLES = {
    "resume": "torch", "frameworks/averaged_model": "torch",
    "frameworks/accelerate_loop": "accelerate", "frameworks/lightning_fabric": "lightning",
}  # fmt: skip

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


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(name: str, tmp_path: Path) -> None:
    """It compares its losses with eager torch's or with its own, and its kernels are CUDA's."""
    if find_spec(EXAMPLES[name]) is None:
        pytest.skip(f"{EXAMPLES[name]} is not installed")
    options = {"THUNDER_FUSER_STRICT": "1", "THUNDER_FUSER_DUMP": str(tmp_path / "dump")}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"],
        cwd=tmp_path, env={**os.environ, **options, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"
    assert [*tmp_path.joinpath("dump").rglob("*.cu")] and not [*tmp_path.rglob("*.cpp")]
