# SPDX-License-Identifier: Apache-2.0
"""Temporary folders of failures: the newest stay, and nothing else is touched."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from thunder_fuser.base.dump import Dump, temporary_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def kept() -> Path:
    dump = Dump("")
    dump.add("0_fusion.py", "text")
    return dump.keep()


def test_the_newest_folders_stay(folder: Path) -> None:
    other = folder / "thunder_fuser-other"
    other.mkdir()
    folders = []
    for seconds in range(20):
        folders.append(kept())
        os.utime(folders[-1], (seconds, seconds))
    assert {*folder.iterdir()} == {other, *folders[-8:]}
    assert [(one / "0_fusion.py").read_text() for one in folders[-8:]] == ["text"] * 8


def test_the_new_folder_stays_whatever_the_clock_says(folder: Path) -> None:
    folders = [kept() for _ in range(8)]
    for one in folders:
        os.utime(one, (2**33, 2**33))
    assert temporary_folder().exists()
    assert len([*folder.iterdir()]) == 8


def test_what_cannot_be_removed_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as another user's folders, and links."""
    target = folder / "target"
    target.mkdir()
    (folder / "thunder_fuser-failed-link").symlink_to(target)
    os.utime(folder / "thunder_fuser-failed-link", (0, 0), follow_symlinks=False)
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    for _ in range(10):
        kept()
    assert len([*folder.iterdir()]) == 12
    monkeypatch.setattr(os, "getuid", lambda: user)
    kept()
    assert target.exists()
    assert len([*folder.iterdir()]) <= 10
