# SPDX-License-Identifier: Apache-2.0
"""Stores for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.stores import MOST, content, path_of, recipe

from thunder_fuser.store.entry import Recipe
from thunder_fuser.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "a" / "store", "rw", MOST)


@pytest.fixture
def stored(store: Store) -> tuple[Store, Recipe, Path]:
    """A store that holds one entry."""
    one = recipe()
    store.put(one, content())
    return store, one, path_of(store, one)
