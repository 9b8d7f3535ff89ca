# SPDX-License-Identifier: Apache-2.0
"""A torch that Thunder cannot take is named in one sentence; `make compat` tests the newer one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from thunder_fuser import versions
from thunder_fuser.errors import UnsupportedVersionError


@pytest.mark.parametrize("installed", ["2.10.1", "2.15.0+cu130", "3.0"])
def test_refused(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(versions, "version", lambda name: installed)
    with pytest.raises(UnsupportedVersionError) as error:
        versions.check_versions()
    assert str(error.value) == (
        "torch: expected 2.11 to 2.14, with which this version was tested, "
        f"got {installed}. To fix it: pip install 'torch>=2.11,<2.15'."
    )


@pytest.mark.parametrize("installed", ["2.11.0", "2.12.1+cpu", "2.14.1"])
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


def test_what_make_compat_would_run() -> None:
    """Nobody notices a test that was renamed: CI does not run this target."""
    root = Path(__file__).resolve().parents[2]
    command = ["make", "--dry-run", "compat", "COMPAT_VENV=folder"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "folder/bin/python -m pip install -qq torch==2.14.* -e" in done.stdout
    files = re.findall(r"tests/\S+\.py", done.stdout)
    assert len(files) > 9 and [name for name in files if not (root / name).exists()] == []
