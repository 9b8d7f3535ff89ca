# SPDX-License-Identifier: Apache-2.0
"""A kernel that was not found -> the most similar stored one, and how they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff

from thunder_fuser.store.entry import Entry
from thunder_fuser.store.store import Store, Stored

MOST_COMPARED = 200  # sources to compare: the newest ones


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest entry, its differing fields as (field, here, there), and differing lines."""

    stored: Stored
    differs: tuple[tuple[str, str, str], ...]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        told = [
            f"{field}: {here!r} here, {there!r} there"
            for field, here, there in self.differs
            if field != "text"
        ]
        if self.lines:
            told.append("text:\n" + "\n".join("    " + line for line in self.lines))
        where = f"nearest entry {self.stored.key[:12]} ({self.stored.file.size} bytes)"
        return "\n".join([where, *("  " + line for line in told or ["it is the same"])])


def nearest(fields: Mapping[str, str], text: str, stored: Iterable[Stored]) -> Nearest | None:
    """The entry with the fewest differing fields, and among those the most similar source."""
    known = [one for one in stored if one.entry is not None]
    if not known:
        return None
    count = min(len(_differences(fields, one)) for one in known)
    best = [one for one in known if len(_differences(fields, one)) == count][-MOST_COMPARED:]
    chosen = max(best, key=lambda one: (_likeness(text, one), one.file.used))
    assert chosen.entry is not None
    differs = tuple(_differences(fields, chosen))
    lines = tuple(_lines(text, chosen.entry)) if text != chosen.entry.text else ()
    return Nearest(chosen, differs, lines)


def why_missed(fields: Mapping[str, str], text: str, store: Store | None) -> str:
    """The reason of a miss, in a few words."""
    if store is None:
        return "the store is off (option cache)"
    found = nearest(fields, text, store.entries())
    return f"no entry at all in {store.root}" if found is None else str(found)


def _differences(fields: Mapping[str, str], stored: Stored) -> list[tuple[str, str, str]]:
    assert stored.entry is not None
    theirs = stored.entry.fields
    names = dict.fromkeys([*fields, *theirs])
    pairs = ((name, fields.get(name, ""), theirs.get(name, "")) for name in names)
    return [(name, here, there) for name, here, there in pairs if here != there]


def _likeness(text: str, stored: Stored) -> float:
    """A quick estimate of the similarity of two sources, from 0 to 1."""
    assert stored.entry is not None
    lines = text.splitlines(), stored.entry.text.splitlines()
    return SequenceMatcher(None, *lines, autojunk=False).quick_ratio()


def _lines(text: str, entry: Entry, most: int = 12) -> list[str]:
    """The last lines that differ: the kernel comes after the device functions it uses."""
    found = unified_diff(
        entry.text.splitlines(), text.splitlines(), "there", "here", n=0, lineterm=""
    )
    lines = [line for line in found if not line.startswith(("---", "+++", "@@"))]
    return [f"... {len(lines) - most} lines before"] * (len(lines) > most) + lines[-most:]
