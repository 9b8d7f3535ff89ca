# SPDX-License-Identifier: Apache-2.0
"""The store of compiled kernels -> what `python -m thunder_fuser cache` prints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from thunder_fuser.errors import InputError, OptionError
from thunder_fuser.explain.table import kib, table
from thunder_fuser.options import option
from thunder_fuser.store.entry import Entry
from thunder_fuser.store.inspection import export_entries, import_entries, nearest
from thunder_fuser.store.store import Store, Stored, current_store

SHOWN_KEY = 12
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def the_store() -> Store:
    """The store in use; OptionError if it is off."""
    store = current_store()
    if store is None:
        raise OptionError("option cache", expected="rw or ro", got="off")
    return store


def info() -> str:
    """Where it is, how it is used and what it holds."""
    store = the_store()
    held = store.found()
    kinds = Counter(_kind(one) for one in store.entries())
    rows = [
        ("folder", str(store.root) + ("" if store.root.exists() else " (not made yet)")),
        ("mode", store.mode),
        ("entries", ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) or "none"),
        ("KiB", f"{kib(sum(one.size for one in held))} of {kib(store.most_bytes)}"),
        ("promise", "every kernel is stored" if option("assert_cache_hit") else "none"),
    ]
    return table(("what", "found"), rows)


def _kind(stored: Stored) -> str:
    return "damaged" if stored.entry is None else _told(stored.entry)


def _told(entry: Entry) -> str:
    return "cubin" if entry.fields["kind"] == "cubin" else "CPU library"


def listing(pattern: str = "") -> str:
    """A line for each entry whose fields hold the pattern, the longest unused first."""
    rows = []
    for one in the_store().entries():
        fields = dict(one.entry.fields) if one.entry else {}
        shown = (fields.get("name", one.problem), fields.get("kind", "damaged"))
        where = fields.get("arch", "").split(",")[0]
        row = (one.key[:SHOWN_KEY], *shown, where, kib(one.file.size), _age(one.file.used))
        if pattern in " ".join([one.key, *map(str, fields.values())]):
            rows.append(row)
    return table(("key", "kernel", "kind", "arch", "KiB", "used"), rows)


def _age(used: float) -> str:
    """How long ago, in the largest unit that gives a whole number."""
    seconds = max(time.time() - used, 0)
    unit = next((u for u in ("d", "h", "m") if seconds >= SECONDS[u]), "s")
    return f"{seconds // SECONDS[unit]:.0f}{unit} ago"


def verify(*, remove: bool) -> tuple[str, bool]:
    """Reads every entry: what is damaged, and whether nothing is."""
    store = the_store()
    bad, good = [], 0
    for one in store.entries():
        good += one.entry is not None
        if one.entry is None:
            bad.append((one.key[:SHOWN_KEY], one.problem))
            if remove:
                store.remove(one)
    told = [f"{good} entries are as they were written"]
    if bad:
        told += [table(("removed" if remove else "damaged", "why"), bad)]
    return "\n".join(told), not bad


def prune(megabytes: int) -> str:
    """Removes the longest unused entries beyond a size."""
    return _removed(the_store().prune(megabytes << 20) if the_store().root.exists() else (0, 0))


def clear() -> str:
    """Removes every entry."""
    return _removed(the_store().clear())


def _removed(gone: tuple[int, int]) -> str:
    return f"{gone[0]} entries removed, {kib(gone[1])} KiB"


def export_to(archive: Path, *, libraries: bool) -> str:
    """Writes the entries into one file."""
    written, left = export_entries(the_store(), archive, libraries=libraries)
    return f"{written} entries in {archive}{_left_out(left, libraries)}"


def import_from(archive: Path, *, libraries: bool) -> str:
    """Adds the entries of a file."""
    added, left = import_entries(the_store(), archive, libraries=libraries)
    return f"{added} entries added{_left_out(left, libraries)}"


def _left_out(count: int, libraries: bool) -> str:
    why = "damaged" if libraries else "damaged, or CPU libraries, which need --libraries"
    return f"; {count} left out: {why}" if count else ""


def explain(key: str = "") -> str:
    """The entry a key begins with, or the newest: which of its fields no other entry shares."""
    entries = list(the_store().entries())
    found = [one for one in entries if one.key.startswith(key) and one.entry is not None]
    if not found:
        raise InputError("cache explain", expected="what a key begins with", got=repr(key))
    one = max(found, key=lambda stored: stored.file.used)
    return _explained(one, [other for other in entries if other.key != one.key])


def _explained(one: Stored, others: Sequence[Stored]) -> str:
    assert one.entry is not None
    fields = table(("field", "value"), list(one.entry.fields.items()))
    near = nearest(one.entry.fields, one.entry.text, others)
    told = "there is no other entry" if near is None else str(near)
    return f"entry {one.key}\n\n{fields}\n\n{told}"
