# SPDX-License-Identifier: Apache-2.0
"""A part of Thunder's own forward tests through the emulator, and those of its own cut.

Every commit runs the same part, so that a failure is the commit's; `make thunder-suite` runs all.
The runner lies beside the checkout; without it there is nothing to run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
SHARD = "0/40"
RUNNER = Path(__file__).parents[3] / "shared/thunder_suite/run_thunder_suite.py"


def suite(report: Path, *arguments: str, **settings: str) -> tuple[Any, str]:
    """What the runner found in Thunder's tests, and what it printed."""
    command = [
        sys.executable, str(RUNNER), "thunder_fuser:fuser", "--device", "cpu",
        "--json", str(report), "--pytest-args", "-p helpers.quick", *arguments,
    ]  # fmt: skip
    # A worker of pytest-xdist would pass its own settings on. `helpers` lies with our tests.
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    paths = [*filter(None, [env.get("PYTHONPATH")]), str(TESTS)]
    env |= {"THUNDER_FUSER_STRICT": "1", "PYTHONPATH": os.pathsep.join(paths), **settings}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return json.loads(report.read_text()), ran.stdout[-4000:]


needs_runner = pytest.mark.skipif(
    not RUNNER.exists(), reason="the runner of Thunder's suite is not here"
)


@needs_runner
def test_a_part_of_the_forward_suite(tmp_path: Path) -> None:
    """Set THUNDER_SHARD to run another part, "0/1" to run all."""
    shard = os.environ.get("THUNDER_SHARD", SHARD)
    found, text = suite(
        tmp_path / "report.json", "--suites", "forward", "--shard", shard,
        THUNDER_FUSER_EMULATE="1",
    )  # fmt: skip
    assert found["failures"] == [] and found["rc"] == 0, f"shard {shard}:\n{text}"
    assert found["stats"]["forward/passed"] > 30
    assert found["stats"]["forward/fused"] > 20


@needs_runner
def test_the_remat_suite(tmp_path: Path) -> None:
    """Thunder's tests of its own cut find our fusions by name."""
    found, text = suite(
        tmp_path / "report.json", "--suites", "remat", THUNDER_FUSER_NAME_PREFIX="nvFusion"
    )
    assert found["failures"] == [] and found["rc"] == 0, text
    assert found["stats"]["remat/passed"] == 8
