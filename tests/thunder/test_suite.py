# SPDX-License-Identifier: Apache-2.0
"""A fixed tenth of Thunder's own forward tests, through the emulator.

The runner lies beside the checkout; without it there is nothing to run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parents[3] / "shared/thunder_suite/run_thunder_suite.py"


@pytest.mark.skipif(not RUNNER.exists(), reason="the runner of Thunder's suite is not here")
@pytest.mark.parametrize("shard", ["0/40", "10/40", "20/40", "30/40"])
def test_a_part_of_the_forward_suite(shard: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [
        sys.executable, str(RUNNER), "thunder_fuser:fuser", "--device", "cpu",
        "--suites", "forward", "--shard", shard, "--json", str(report),
    ]
    # A worker of pytest-xdist would pass its own settings on.
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {"THUNDER_FUSER_EMULATE": "1", "THUNDER_FUSER_STRICT": "1"}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    found = json.loads(report.read_text())
    assert found["failures"] == [], ran.stdout[-4000:]
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert found["stats"]["forward/passed"] > 30
    assert found["stats"]["forward/fused"] > 20
