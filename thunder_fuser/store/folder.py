# SPDX-License-Identifier: Apache-2.0
"""Checks, reads, writes and lists files in a folder that only this user can write.

All access goes through the descriptor of the folder, which is opened and then checked. So nobody
can replace the folder, or insert a link, between a check and a use.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from thunder_fuser.errors import FuserError
from thunder_fuser.store.entry import ENDING

MOST_BYTES = 256 << 20  # of one file
# The files that this package writes. It touches no others.
ENTRY_NAME = re.compile(rf"[0-9a-f]{{64}}{re.escape(ENDING)}\Z")
PASSING_NAME = re.compile(r"\.(?:writing|lock)-[0-9a-f]+\Z")

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OPEN = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class RefusedError(FuserError):
    """A folder or a file that is not safe to use. The message says why."""


class RefusedFolderError(RefusedError):
    """The folder itself cannot be made, or is not safe to use. So no file in it is safe."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the folder: its name, its bytes, and the time of its last use in seconds."""

    name: str
    size: int
    used: float


@contextmanager
def opened(path: Path, *, create: bool) -> Iterator[int]:
    """The folder's descriptor. FileNotFoundError if it is absent, RefusedFolderError if it cannot
    be made or is not safe to use. Errors on files do not contain the file's name, so that equal
    faults have equal messages."""
    try:
        if create:
            _make(path)
    except OSError as error:
        raise RefusedFolderError(f"{path} cannot be made: {error.strerror}") from error
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RefusedFolderError(
            f"{path} is a link or a file, or may not be read: {error.strerror}"
        ) from error
    try:
        _check(os.fstat(folder), str(path), _OTHERS_WRITE, RefusedFolderError)
        yield folder
    finally:
        os.close(folder)


def _make(path: Path) -> None:
    """Makes the folder and its parents, accessible only to this user."""
    for missing in [above for above in (path, *path.parents) if not os.path.lexists(above)][::-1]:
        with suppress(FileExistsError):  # another process has just made it
            missing.mkdir(mode=0o700)


def _check(
    status: os.stat_result, name: str, forbidden: int, kind: type[RefusedError] = RefusedError
) -> None:
    """RefusedError unless this user owns it, and it has none of the forbidden permissions."""
    if status.st_uid != os.geteuid():
        raise kind(f"{name} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & forbidden:
        mode = oct(stat.S_IMODE(status.st_mode))
        raise kind(f"{name} has mode {mode}: others may change it (chmod go-rwx)")


def read(folder: int, name: str, *, strict: bool, touch: bool) -> bytes | None:
    """The bytes of a file; None if there is none.

    strict: refuses a file that others can read. touch: sets the time of its last use.
    """
    try:
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _OPEN, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RefusedError(f"it cannot be opened: {error.strerror}") from error
    with os.fdopen(file, "rb") as stream:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise RefusedError("it is not a regular file, or it has several hard links")
        _check(status, "it", _OTHERS if strict else _OTHERS_WRITE)
        if status.st_size > MOST_BYTES:
            raise RefusedError(f"it has more than {MOST_BYTES} bytes")
        content = stream.read(MOST_BYTES)
        if touch:
            with suppress(OSError):
                os.utime(file)
        return content


def replace(folder: int, name: str, content: bytes) -> None:
    """Replaces a file atomically: another process sees either the old file or the new one."""
    passing = f".writing-{secrets.token_hex(12)}"
    file = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(file)
        os.rename(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        remove(folder, passing)
        raise


def remove(folder: int, name: str) -> bool:
    """Removes a file; False if that failed."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


def listed(folder: int, pattern: re.Pattern[str] = ENTRY_NAME) -> list[StoredFile]:
    """The regular files of this package and user, the least recently used first."""
    files = []
    for name in os.listdir(folder):
        if pattern.match(name):
            with suppress(OSError):  # another process may have removed it
                at = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(at.st_mode) and at.st_uid == os.geteuid():
                    files.append(StoredFile(name, at.st_size, at.st_mtime))
    return sorted(files, key=lambda file: (file.used, file.name))
