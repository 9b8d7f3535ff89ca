# SPDX-License-Identifier: Apache-2.0
"""A torch that Thunder cannot take is named in one sentence; `make compat` tests the newest."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from thunder_fuser import versions
from thunder_fuser.errors import UnsupportedVersionError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("installed", ["2.10.1", "2.16.0+cu130", "3.0"])
def test_refused(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(versions, "version", lambda name: installed)
    with pytest.raises(UnsupportedVersionError) as error:
        versions.check_versions()
    assert str(error.value) == (
        "torch: expected 2.11 to 2.15, with which this version was tested, "
        f"got {installed}. To fix it: pip install 'torch>=2.11,<2.16'."
    )


@pytest.mark.parametrize("installed", ["2.11.0", "2.12.1+cpu", "2.14.1", "2.15.0+cu132"])
def test_taken(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(versions, "version", lambda name: installed)
    versions.check_versions()


@pytest.mark.parametrize("installed", ["0.2.5", "0.1.9.dev3"])
def test_an_older_thunder_is_refused(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    found = {"torch": "2.11.0", "lightning-thunder": installed}
    monkeypatch.setattr(versions, "version", found.get)
    with pytest.raises(UnsupportedVersionError, match=r"expected 0\.2\.6 or later, got 0"):
        versions.check_versions()
    found["lightning-thunder"] = "0.3.0.dev20270101"
    versions.check_versions()


def make(*arguments: str) -> str:
    """What a user's `make` says, and not that of a make which runs the tests."""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", *arguments], cwd=ROOT, env={**environment, "PIP_NO_INDEX": "1"},
        text=True, check=True, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout


def test_the_short_set_on_the_newest_torch() -> None:
    """Without it only CI would notice a test that was renamed."""
    commands = make("--dry-run", "compat-short", "COMPAT_VENV=folder")
    first_bad = ".".join(map(str, versions.FIRST_BAD))
    assert f"folder/bin/python -m pip install -qq 'torch>=2.14,<{first_bad}' -e" in commands
    files = re.findall(r"tests/\S+\.py", commands)
    assert len(files) > 9 and [name for name in files if not (ROOT / name).exists()] == []
    assert "\nmake compat-short " in (ROOT / ".ci" / "run").read_text("utf-8")


def test_a_torch_that_cannot_be_had_is_no_failure(tmp_path: Path) -> None:
    said = make("compat-short", f"COMPAT_VENV={tmp_path}", "COMPAT_TORCH=torch==0.0", "EXTRAS=test")
    end = "compat-short: torch==0.0 was not installed, and nothing was tested on it\n"
    assert said.endswith(end)
