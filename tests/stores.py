# SPDX-License-Identifier: Apache-2.0
"""Stores and recipes for tests that break them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thunder_fuser.errors import CacheWarning
from thunder_fuser.once import WARNED
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


def names(store: Store) -> set[str]:
    return set(os.listdir(store.root)) if store.root.exists() else set()
