# SPDX-License-Identifier: Apache-2.0
"""What `make dist` builds: all files, the versions stated, and a package that runs elsewhere.

FUSER_DIST names the folder with the sdist and the wheel; without it they are built here. The venv
is empty but for the wheel. It reads torch, Thunder and the others from the one that runs the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from thunder_fuser import versions

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = """
import runpy, sys
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.GELU())  # without an import of ours
compiled = torch.compile(lambda x: model(x), backend="thunder_fuser")
torch.testing.assert_close(compiled(torch.ones(2, 4)), model(torch.ones(2, 4)))
import thunder_fuser
print(thunder_fuser.__version__, thunder_fuser.__file__)
runpy.run_path("inference.py", run_name="__main__")
sys.argv[1:] = ["demo", "--small", "--dtype", "f32"]
runpy.run_module("thunder_fuser", run_name="__main__", alter_sys=True)
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [*command], cwd=cwd, env={**os.environ, **environment}, timeout=300, check=False,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel is built from the sdist, so a file that this one lacks is missed."""
    if "FUSER_DIST" in os.environ:
        return ROOT / os.environ["FUSER_DIST"]
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def committed(*folders: str) -> set[str]:
    """The files of folders of the repository, which need not be a clone."""
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", "_build"} & {*path.parts}
    }


def test_the_wheel_has_each_file_of_the_package_and_no_other(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == committed("thunder_fuser")
    endings = {Path(name).suffix for name in names}
    assert endings >= {".h", ".pyi", ".html", ".js", ".css", ".json", ".cpp"}
    assert "thunder_fuser/py.typed" in names


def test_the_sdist_has_what_tests_and_docs_need(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = committed("thunder_fuser", "tests", "docs", "examples", "benchmarks")
    assert wanted - names == set()
    assert names >= {"Makefile", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"}


def test_what_the_wheel_says_of_itself(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (of,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    stated = message_from_bytes(archive.read(f"{of}/METADATA"))
    assert stated["Version"] == versions.__version__
    first, first_bad = (f"{major}.{minor}" for major, minor in (versions.FIRST, versions.FIRST_BAD))
    needs = {need.replace(" ", "") for need in stated.get_all("Requires-Dist") or ()}
    assert f"torch<{first_bad},>={first}" in needs
    assert f"{of}/licenses/LICENSE" in archive.namelist()
    assert b"thunder_fuser.doors.backend_name:backend" in archive.read(f"{of}/entry_points.txt")


def test_it_runs_outside_of_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """A small demo, an example, and the backend that torch knows by its name."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps",
        "--no-index", wheel, cwd=tmp_path)  # fmt: skip
    (packages,) = home.glob("lib/python*/site-packages")
    # Its packages, without the .pth by which the tests' venv finds the checkout.
    packages.joinpath("others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    example = tmp_path / "inference.py"
    example.write_text((ROOT / "examples" / "inference.py").read_text("utf-8"), "utf-8")
    store = {"PYTHONPATH": "", "THUNDER_FUSER_CACHE_DIR": str(tmp_path / "store")}
    said = run(python, "-W", "ignore", "-c", PROGRAMS, cwd=tmp_path, **store)
    where = re.search(rf"^{re.escape(versions.__version__)} (.*)$", said, re.MULTILINE)
    assert where and Path(where[1]).is_relative_to(home)
    assert "largest difference" in said and "float64" in said
