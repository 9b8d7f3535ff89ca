# SPDX-License-Identifier: Apache-2.0
"""The file of a machine's rates: written once, and never trusted if it is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thunder_fuser.communication.products.bandwidths import kept, read, write
from thunder_fuser.communication.products.cost import H200
from thunder_fuser.errors import CacheWarning
from thunder_fuser.store.store import Store

NAME = "bandwidths-0123456789abcdef.json"


def test_written_and_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", "rw", 1 << 20)
    assert (read(store, NAME), kept(store)) == (None, 0)
    write(store, NAME, H200)
    assert kept(store) == 1
    assert read(store, NAME) == H200
    store.clear()
    assert read(store, NAME) == H200  # of the machine, not of a kernel


def test_a_store_that_is_only_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", "ro", 1 << 20)
    write(store, NAME, H200)
    assert read(store, NAME) is None


@pytest.mark.parametrize("change", [
    {"copy": -1}, {"copy": float("nan")}, {"flops": []}, {"flops": [["bfloat16", 0]]},
    {"units": 0}, {"launch": "soon"}, {"more": 1}, {"copy": None},
], ids=str)  # fmt: skip
def test_wrong_rates_are_measured_again(tmp_path: Path, change: dict[str, object]) -> None:
    store = Store(tmp_path / "store", "rw", 1 << 20)
    write(store, NAME, H200)
    path = store.root / NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.warns(CacheWarning, match="The rates are measured again"):
        assert read(store, NAME) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x00\xff", b"null"], ids=str)
def test_garbage_is_measured_again(tmp_path: Path, content: bytes) -> None:
    store = Store(tmp_path / "store", "rw", 1 << 20)
    write(store, NAME, H200)
    (store.root / NAME).write_bytes(content)
    with pytest.warns(CacheWarning):
        assert read(store, NAME) is None


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "store", "rw", 1 << 20)
    with pytest.warns(CacheWarning):
        write(store, NAME, H200)
