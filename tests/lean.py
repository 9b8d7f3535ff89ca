# SPDX-License-Identifier: Apache-2.0
"""Programs in an interpreter of their own that starts in a tenth of a second.

`import thunder_fuser` takes seconds, for torch and Thunder. `ir` to `codegen` and the store need
the standard library alone, so here the package stands without its own `__init__`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = f"""
import sys, types
package = types.ModuleType("thunder_fuser")
package.__path__ = [{str(TESTS.parent / "thunder_fuser")!r}]
sys.modules["thunder_fuser"] = package
"""


def lean(
    program: str, *arguments: str, seed: str = "random", before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a program, to its end. seed: of hashes; before: a command that starts interpreters."""
    paths = [str(TESTS), *sys.path]  # packages may lie in a folder that only this process knows
    return subprocess.run(
        [*before, sys.executable, "-c", PACKAGE + program + LAST, *arguments],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


LAST = '\nassert "torch" not in sys.modules\n'


def printed(program: str, *arguments: str, seed: str = "random") -> str:
    """What a program prints; AssertionError with its complaint if it fails."""
    done = lean(program, *arguments, seed=seed)
    assert done.returncode == 0, done.stderr
    return done.stdout
