# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks kernels` on a CUDA device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.clock import cuda_times

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


def test_kernels_are_timed_in_graphs(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    arguments = ["--sizes", "small", "--no-compile", "--ops", "^(add|softmax|layer_norm_bwd)$"]
    assert main(["kernels", "--device", "cuda", "--json", str(path), *arguments]) == 0
    found = json.loads(path.read_text())["figures"]
    assert {point["state"] for point in found["points"]} == {"measured"}
    assert {point["method"] for point in found["points"]} == {"graph"}
    assert all({"ours", "eager", "clone"} <= set(point["us"]) for point in found["points"])
    assert len(found["gates"]) == 8


@pytest.mark.parametrize("graphs", [True, False])
def test_a_time_is_that_of_the_work(graphs: bool) -> None:
    """No device moves 512 MiB in 40 us; a replay of nothing would seem to."""
    x = torch.ones(64 << 20, device="cuda")
    found, method = cuda_times({"clone": [x.clone]}, 0.1, graphs=graphs)
    assert found["clone"].us > 40
    assert method.startswith("graph" if graphs else "events")
