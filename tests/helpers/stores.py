# SPDX-License-Identifier: Apache-2.0
"""Stores and recipes for tests that break them."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thunder_fuser.base.threads import WARNED
from thunder_fuser.errors import CacheWarning
from thunder_fuser.store.entry import ENDING, Recipe
from thunder_fuser.store.store import Store

MOST = 1 << 30


def recipe(number: int = 0, **changed: object) -> Recipe:
    """A recipe of its own for each number."""
    fields = {
        "kind": "cubin",
        "name": "a_kernel",
        "text": f"// kernel {number}\n",
        "arch": "sm_90a",
        "flags": ("--std=c++17",),
        "toolchain": "NVRTC 13.0 (1 bytes)",
    }
    return Recipe(**{**fields, **changed})  # type: ignore[arg-type]


def content(number: int = 0, size: int = 2000) -> bytes:
    """What stands for the binary of that recipe."""
    return (f"binary {number} ".encode() * size)[:size]


def library(function: str = "a_kernel", size: int = 2000) -> bytes:
    """The least that is a library with this function, of which `size` bytes would be loaded."""
    names = b"\0" + function.encode() + b"\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0, 0)
    parts_at, symbols_at = 64, 64 + 2 * 56
    names_at = symbols_at + len(symbols)
    sections_at = names_at + len(names) + size
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, parts_at, sections_at, 0, 64, 56, 2, 64, 3, 0
    )
    parts = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, sections_at, sections_at, 4096)
    parts += struct.pack("<IIQQQQQQ", 2, 4, symbols_at, 0, 0, 0, 0, 8)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, symbols_at, len(symbols), 2, 1, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    return head + parts + symbols + names + bytes(size) + sections


def path_of(store: Store, one: Recipe) -> Path:
    return store.root / (one.key + ENDING)


@contextmanager
def warned() -> Iterator[list[str]]:
    """The messages of the store's warnings, each of which is given once in a process."""
    WARNED._values.clear()
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
        found += [str(one.message) for one in caught if one.category is CacheWarning]


def got(store: Store, recipe: Recipe) -> bytes | None:
    """The code that a store holds for a recipe."""
    found = store.get(recipe)
    return None if found is None else found.code


def names(store: Store) -> set[str]:
    return set(os.listdir(store.root)) if store.root.exists() else set()
