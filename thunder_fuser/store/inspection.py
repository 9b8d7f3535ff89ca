# SPDX-License-Identifier: Apache-2.0
"""Copies entries of the store, and explains why a kernel was not found.

Entries <-> one zip file, to copy them to another machine. A cubin runs on a device. A library is
machine code that runs in the user's process, so it is exported and imported only on request.

A kernel that was not found -> the most similar stored one, and the differences.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from pathlib import Path

from thunder_fuser.errors import ArchiveError
from thunder_fuser.store import folder as files
from thunder_fuser.store.entry import RUN_HERE, DamagedError, decode_named
from thunder_fuser.store.store import Store, Stored

KINDS = {False: ("cubin",), True: ("cubin", *RUN_HERE)}  # copied without libraries, and with them
MOST_COMPARED = 200  # only the newest sources are compared
MOST_LINES = 12  # of a difference


def export_entries(store: Store, archive: Path, *, libraries: bool) -> tuple[int, int]:
    """Writes all valid entries into a new file; returns (written, left out)."""
    written = left = 0
    try:
        file = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ArchiveError(f"{archive}", expected="a new file", got=str(error.strerror)) from error
    with os.fdopen(file, "wb") as stream, zipfile.ZipFile(stream, "w") as target:
        for stored in store.entries():
            if stored.entry is None or stored.entry.fields["kind"] not in KINDS[libraries]:
                left += 1
                continue
            with files.opened(store.root, create=False) as folder:
                content = files.read(folder, stored.file.name, strict=False, touch=False)
            target.writestr(stored.file.name, content or b"")
            written += 1
    return written, left


def import_entries(store: Store, archive: Path, *, libraries: bool) -> tuple[int, int, int]:
    """Adds the valid entries of a file; returns (added, there already, left out)."""
    added = there = left = 0
    try:
        with zipfile.ZipFile(archive) as source:
            for info in source.infolist():
                content = _content(source, info, libraries)
                if content is None:
                    left += 1
                    continue
                with files.opened(store.root, create=True) as folder:
                    is_new = _at(folder, info.filename) != content
                    if is_new:
                        files.replace(folder, info.filename, content)
                added, there = added + is_new, there + (not is_new)
    except (OSError, zipfile.BadZipFile) as error:
        other = "a file of another kind, or a damaged one"
        got = str(error.strerror) if isinstance(error, OSError) else other
        expected = "a file that `cache export` wrote"
        raise ArchiveError(f"{archive}", expected=expected, got=got) from error
    return added, there, left


def _at(folder: int, name: str) -> bytes | None:
    """The bytes of an entry; None if there is none that may be read."""
    with suppress(files.RefusedError):
        return files.read(folder, name, strict=True, touch=False)
    return None


def _content(source: zipfile.ZipFile, info: zipfile.ZipInfo, libraries: bool) -> bytes | None:
    """The bytes of a member that is a valid entry, in the form that export writes; else None."""
    is_plain = files.ENTRY_NAME.match(info.filename) and info.compress_type == zipfile.ZIP_STORED
    if not is_plain or info.file_size > files.MOST_BYTES:
        return None
    content = source.read(info)
    try:
        kind = decode_named(info.filename, content).fields["kind"]
    except DamagedError:
        return None
    return content if kind in KINDS[libraries] else None


# ---- misses


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest entry. differs: (field, value here, value there). lines: those that differ."""

    stored: Stored
    differs: tuple[tuple[str, str, str], ...]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{field}: {here!r} here, {there!r} there"
            for field, here, there in self.differs
            if field != "text"
        ]
        if self.lines:
            lines.append("text:\n" + "\n".join("    " + line for line in self.lines))
        where = f"nearest entry {self.stored.key[:12]} ({self.stored.file.size} bytes)"
        return "\n".join([where, *("  " + line for line in lines or ["it is the same"])])


def nearest(fields: Mapping[str, str], text: str, stored: Iterable[Stored]) -> Nearest | None:
    """The entry with the fewest differing fields, and among those the most similar source."""
    compared = []
    for item in stored:
        if item.entry is not None:
            compared.append((item, item.entry.text, _differences(fields, item.entry.fields)))
    if not compared:
        return None
    count = min(len(differs) for _, _, differs in compared)
    best = [row for row in compared if len(row[2]) == count][-MOST_COMPARED:]
    chosen, other, differs = max(best, key=lambda row: (_likeness(text, row[1]), row[0].file.used))
    return Nearest(chosen, differs, _lines(text, other))


def why_missed(fields: Mapping[str, str], text: str, store: Store | None) -> str:
    """The reason of a miss, in a few words."""
    if store is None:
        return "the store is off (option cache)"
    closest = nearest(fields, text, store.entries())
    return f"no entry at all in {store.root}" if closest is None else str(closest)


def _differences(
    ours: Mapping[str, str], theirs: Mapping[str, str]
) -> tuple[tuple[str, str, str], ...]:
    names = [name for name in {**ours, **theirs} if name != "name"]  # no key depends on it
    pairs = ((name, ours.get(name, ""), theirs.get(name, "")) for name in names)
    return tuple((name, here, there) for name, here, there in pairs if here != there)


def _likeness(text: str, other: str) -> float:
    """A quick estimate of the similarity of two sources, from 0 to 1."""
    lines = text.splitlines(), other.splitlines()
    return SequenceMatcher(None, *lines, autojunk=False).quick_ratio()


def _lines(text: str, other: str) -> tuple[str, ...]:
    """The last lines that differ. They are the kernel's, which follows its device functions."""
    diff = unified_diff(other.splitlines(), text.splitlines(), "there", "here", n=0, lineterm="")
    lines = [line for line in diff if not line.startswith(("---", "+++", "@@"))]
    left = len(lines) - MOST_LINES
    return tuple([f"... {left} lines before"] * (left > 0) + lines[-MOST_LINES:])
