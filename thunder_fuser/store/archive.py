# SPDX-License-Identifier: Apache-2.0
"""Entries <-> one zip file, to copy them to another machine.

A cubin runs on a device. A library is machine code that runs in the user's process, so it is
exported and imported only on request.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from thunder_fuser.errors import ArchiveError
from thunder_fuser.store import folder as files
from thunder_fuser.store.entry import ENDING, DamagedError, decode, key_of
from thunder_fuser.store.store import Store


def export_entries(store: Store, archive: Path, *, libraries: bool) -> tuple[int, int]:
    """Writes all valid entries into a new file; returns (written, left out)."""
    written = left = 0
    try:
        file = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ArchiveError(f"{archive}", expected="a new file", got=str(error.strerror)) from error
    with os.fdopen(file, "wb") as stream, zipfile.ZipFile(stream, "w") as target:
        for stored in store.entries():
            if stored.entry is None or not _wanted(stored.entry.fields["kind"], libraries):
                left += 1
                continue
            with files.opened(store.root, create=False) as folder:
                content = files.read(folder, stored.file.name, strict=False, touch=False)
            target.writestr(stored.file.name, content or b"")
            written += 1
    return written, left


def import_entries(store: Store, archive: Path, *, libraries: bool) -> tuple[int, int]:
    """Adds the valid entries of a file; returns (added, left out)."""
    added = left = 0
    try:
        with zipfile.ZipFile(archive) as source:
            for info in source.infolist():
                content = _content(source, info)
                if content is not None and _is_good(info.filename, content, libraries):
                    with files.opened(store.root, create=True) as folder:
                        files.replace(folder, info.filename, content)
                    added += 1
                else:
                    left += 1
    except (OSError, zipfile.BadZipFile) as error:
        raise ArchiveError(
            f"{archive}", expected="an archive of kernels", got=str(error)
        ) from error
    return added, left


def _content(source: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes | None:
    """The bytes of a member named and stored as export does it; None for any other."""
    good = files.ENTRY_NAME.match(info.filename) and info.compress_type == zipfile.ZIP_STORED
    return source.read(info) if good and info.file_size <= files.MOST_BYTES else None


def _is_good(name: str, content: bytes, libraries: bool) -> bool:
    try:
        fields = decode(content).fields
    except DamagedError:
        return False
    return key_of(fields) + ENDING == name and _wanted(fields["kind"], libraries)


def _wanted(kind: str, libraries: bool) -> bool:
    return kind == "cubin" or libraries
