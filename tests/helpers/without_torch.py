# SPDX-License-Identifier: Apache-2.0
"""Runs programs in a new interpreter that never imports torch, so it starts in 0.1 seconds.

`import thunder_fuser` takes seconds because it imports torch and Thunder. `ir` to `codegen` and
`store` need only the standard library, so the program gets a package without its `__init__`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PACKAGE = f"""
import sys, types
package = types.ModuleType("thunder_fuser")
package.__path__ = [{str(TESTS.parent / "thunder_fuser")!r}]
sys.modules["thunder_fuser"] = package
"""


def run(
    program: str, *arguments: str, seed: str = "random", before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end. seed: PYTHONHASHSEED; before: a command put before Python's."""
    paths = [str(TESTS), *sys.path]  # a parent may have added folders of packages
    return subprocess.run(
        [*before, sys.executable, "-c", PACKAGE + program + LAST, *arguments],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


LAST = '\nassert "torch" not in sys.modules\n'


def printed(program: str, *arguments: str, seed: str = "random") -> str:
    """What a program prints; AssertionError with its stderr if it fails."""
    done = run(program, *arguments, seed=seed)
    assert done.returncode == 0, done.stderr
    return done.stdout
