# SPDX-License-Identifier: Apache-2.0
"""The bench command on a CUDA device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from thunder_fuser.cli import main
from thunder_fuser.explain.bench.clock import LAUNCHES, cuda_times

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


def test_kernels_are_timed_in_graphs(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    arguments = ["--sizes", "small", "--no-compile", "--ops", "^(add|softmax|layer_norm_bwd)$"]
    assert main(["bench", "--device", "cuda", "--json", str(path), *arguments]) == 0
    found = json.loads(path.read_text())
    assert {point["state"] for point in found["points"]} == {"measured"}
    assert {point["method"] for point in found["points"]} == {"graph"}
    assert all({"ours", "eager", "clone"} <= set(point["us"]) for point in found["points"])
    assert len(found["gates"]) == 8


def test_a_graph_and_single_launches_agree() -> None:
    """On a kernel long enough that a launch beside it is nothing."""
    x = torch.ones(64 << 20, device="cuda")
    calls = {"clone": [x.clone]}
    in_graph, method = cuda_times(calls, 0.1, graphs=True)
    singly, _ = cuda_times(calls, 0.1, graphs=False)
    assert method == "graph" and LAUNCHES >= 20
    assert in_graph["clone"].us == pytest.approx(singly["clone"].us, rel=0.2)
