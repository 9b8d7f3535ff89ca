# SPDX-License-Identifier: Apache-2.0
"""What a stage has computed, for the next process: a Python object in the store.

    computed(("T0", 768), plan)     calls plan() and stores the pickle of its result
    the same in another process     the same result, without a call

The key has the arguments' text, Python's version and a digest of this package's files: an object of
another version is never read. A pickle may hold objects of this package only. The texts of kernels
are among them, so it is read as a library is: only from a file that no other user can read.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from thunder_fuser.base.logs import log
from thunder_fuser.store.entry import Recipe
from thunder_fuser.store.store import current_store

V = TypeVar("V")

KIND = "plan"


def computed(arguments: object, compute: Callable[[], V]) -> V:
    """The stored result of a computation, or that of `compute()`, which is stored.

    arguments: what it depends on; equal ones have equal texts. A result that cannot be pickled is
    computed in each process.
    """
    store = current_store()
    if store is None:
        return compute()
    recipe = Recipe(KIND, KIND, repr(arguments), "", (), _VERSION)
    stored = store.get(recipe)
    if stored is not None:
        with suppress(Exception):  # it is from elsewhere: a miss, whatever is wrong with it
            result = _Unpickler(BytesIO(stored.code)).load()
            log("cache", lambda: f"store: hit {recipe.key[:12]} {KIND}")
            return result  # type: ignore[no-any-return]
    result = compute()
    try:
        content = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        text = f"store: a {KIND} is not kept: {error}"
        log("cache", lambda: text)
    else:
        store.put(recipe, content)
    return result


class _Unpickler(pickle.Unpickler):
    """Finds the classes of this package, and functions `restored`, which make such objects."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("thunder_fuser.") and "." not in name:
            named = super().find_class(module, name)
            if isinstance(named, type) or name == "restored":
                return named
        raise pickle.UnpicklingError(f"{module}.{name} is no class of this package")


def _version(root: Path) -> str:
    """Python's version, and a digest of a package's files with their names."""
    digest = sha256()
    for path in sorted(p for p in root.rglob("*.*") if p.suffix != ".pyc" and p.is_file()):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return f"python {sys.version_info[:3]}, package {digest.hexdigest()}"


# Of the files as they were imported: another version may be installed while this process runs.
_VERSION = _version(Path(__file__).parents[1])
