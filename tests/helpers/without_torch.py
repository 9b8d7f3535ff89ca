# SPDX-License-Identifier: Apache-2.0
"""Runs programs in a new interpreter that never imports torch, so it starts in 0.1 seconds.

`ir` to `codegen` and `store` need only the standard library, and `import thunder_fuser` imports
torch and Thunder when a name that needs them is asked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def run(
    program: str, *arguments: str, seed: str = "random", before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end. seed: PYTHONHASHSEED; before: a command put before Python's."""
    paths = [str(TESTS), str(TESTS.parent), *sys.path]  # a parent may have added folders
    return subprocess.run(
        [*before, sys.executable, "-c", "import sys\n" + program + LAST, *arguments],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


LAST = '\nassert "torch" not in sys.modules\n'


def printed(program: str, *arguments: str, seed: str = "random") -> str:
    """What a program prints; AssertionError with its stderr if it fails."""
    done = run(program, *arguments, seed=seed)
    assert done.returncode == 0, done.stderr
    return done.stdout
