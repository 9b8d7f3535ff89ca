# SPDX-License-Identifier: Apache-2.0
"""What an import loads: the command line answers without torch, and the package adds little.

Counted in modules, which are the same on every machine, and not in seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import thunder_fuser
from thunder_fuser import __main__, versions
from thunder_fuser.demo import demo

ROOT = Path(__file__).resolve().parents[2]
LOADED = """
import sys
packages = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print("loaded:", *sorted(packages - before))
"""


def loaded(program: str, *arguments: str) -> tuple[set[str], str]:
    """The packages that a program loads in a new interpreter, beside Python's own; what it says."""
    done = subprocess.run(
        [sys.executable, "-c", program + LOADED, *arguments],
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *told, last = done.stdout.splitlines()
    return set(last.split()[1:]), "\n".join(told) + done.stderr


BARE = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
"""
COMMAND = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
import runpy
try:
    runpy.run_module("thunder_fuser", run_name="__main__", alter_sys=True)
except SystemExit as ended:
    assert not ended.code, ended
"""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--help"], "show, export, import or remove compiled kernels"),
        (["--version"], f"thunder_fuser {versions.__version__}"),
        (["demo", "--help"], "{f32,bf16,both}"),
        (["cache", "export", "--help"], "Write the entries into a new file"),
        ([], "print versions, compilers, the device and the options"),
    ],
    ids=["help", "version", "demo", "cache export", "none"],
)
def test_the_command_line_answers_without_torch(arguments: list[str], told: str) -> None:
    packages, text = loaded(COMMAND, *arguments)
    assert packages == {"thunder_fuser"}
    assert told in text


def test_a_command_that_needs_torch_loads_it() -> None:
    packages, text = loaded(COMMAND, "env")
    assert {"torch", "thunder_fuser"} <= packages
    assert "NVRTC" in text


def test_the_choices_of_the_demo_are_its_own() -> None:
    assert tuple(demo.DTYPES) == __main__.DTYPES


def test_importing_the_package_loads_nothing_else() -> None:
    names = "DataType, ParallelType, Target, OPTIONS, options, __version__"
    packages, _ = loaded(f"{BARE}from thunder_fuser import {names}\n")
    assert packages == {"thunder_fuser"}


AFTER_THUNDER = """
import sys
import thunder_fuser
import thunder  # from torch 2.13 on, ours has to come first
before = {name.partition(".")[0] for name in sys.modules if not name.startswith("_cython")}
before.remove("thunder_fuser")
from thunder_fuser import *
assert fuser and "cuda.core" not in sys.modules
for name in [name for name in sys.modules if name.startswith("_cython")]:
    del sys.modules[name]
"""


def test_what_the_fuser_adds_to_thunder() -> None:
    """The driver's bindings, and ranges for profilers; plots and CUDA's compiler come later."""
    packages, text = loaded(AFTER_THUNDER)
    assert packages - {"cuda"} == {"thunder_fuser", "nvtx"}  # torch 2.12 imports cuda itself
    # Thunder warns that a package of its own is missing, which is not needed here.
    assert "transformer_engine" not in text and "Warning" not in text


AFTER_DYNAMO = """
import thunder_fuser, torch._dynamo
assert "thunder" not in sys.modules
x = torch.ones(3)
assert torch.equal(thunder_fuser.jit(lambda x: x * 2 + 1)(x), x * 3)
"""


def test_dynamo_may_come_before_thunder() -> None:
    """As where a program calls torch.compile first."""
    _, text = loaded(BARE + AFTER_DYNAMO)
    assert "thunder_fuser is not registered" not in text


def test_names_that_are_imported_late() -> None:
    assert set(thunder_fuser.__all__) <= set(dir(thunder_fuser))
    assert callable(thunder_fuser.options)  # and not the module of this name
    for name in thunder_fuser.__all__:
        assert getattr(thunder_fuser, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        thunder_fuser.nonsense  # type: ignore[attr-defined]
