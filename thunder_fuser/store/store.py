# SPDX-License-Identifier: Apache-2.0
"""The store of binaries on disk, by their recipes. A failure is a miss with one warning.

    store = current_store()
    binary = store.get(recipe)      None: compile it, then
    store.put(recipe, binary)
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from thunder_fuser.base.logs import log
from thunder_fuser.base.threads import AbandonedError, check_abandoned, first_time
from thunder_fuser.base.warn import warn_at
from thunder_fuser.errors import CacheWarning, OptionError, SlowCompileWarning
from thunder_fuser.options import option
from thunder_fuser.store import folder as files
from thunder_fuser.store.entry import (
    ENDING,
    RUN_HERE,
    Binary,
    DamagedError,
    Entry,
    Recipe,
    decode_named,
    encode,
)
from thunder_fuser.store.folder import RefusedError, RefusedFolderError, StoredFile

KEPT_AFTER_PRUNING = 0.9  # of the maximal size, so that later writes have room
STALE_SECONDS = 3600  # a temporary file of this age is from a process that died
SLOW_WAIT = 30.0  # after so many seconds of waiting for another process there is a warning
LONGEST_WAIT = 120.0  # after so many seconds this process compiles too
_ANOTHER = "Set the option cache_dir to another folder, or cache to off."


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of the store and its entry, or the problem with it."""

    file: StoredFile
    entry: Entry | None
    problem: str = ""

    @property
    def key(self) -> str:
        return self.file.name.removesuffix(ENDING)


class Store:
    """A folder of entries. mode: ro reads; rw also writes, and evicts the least recently used."""

    def __init__(self, root: Path, mode: str, most_bytes: int) -> None:
        self.root, self.mode, self.most_bytes = root, mode, most_bytes
        # Bytes written since the last pruning. It begins so high that the first write prunes.
        self._unpruned = most_bytes

    # ---- for compilations

    def get(self, recipe: Recipe) -> Binary | None:
        """The binary; None if it is missing or damaged."""
        name = recipe.key + ENDING
        try:
            with files.opened(self.root, create=False) as folder:
                strict = recipe.kind in RUN_HERE
                content = files.read(folder, name, strict=strict, touch=self.mode == "rw")
            if content is None:
                return None
            entry = decode_named(name, content)
            return Binary(entry.fields["name"], entry.binary)
        except FileNotFoundError:
            return None
        except RefusedFolderError as error:
            self._warn_of_folder(error)
            return None
        except (RefusedError, DamagedError, OSError) as error:
            then = "The kernel is compiled instead."
            _warn_once((self.root, "get"), self.root / name, error, then)
            return None

    def put(self, recipe: Recipe, binary: bytes) -> None:
        """Stores a binary. After a failure, such as a full disk, it is compiled again later."""
        content = encode(recipe, binary)
        if self.mode != "rw" or len(content) > min(self.most_bytes, files.MOST_BYTES):
            return
        try:
            with files.opened(self.root, create=True) as folder:
                files.replace(folder, recipe.key + ENDING, content)
            text = f"store: kept {recipe.key[:12]} {recipe.name}, {len(content)} bytes"
            log("cache", lambda: text)
            self._unpruned += len(content)
            if self._unpruned * 8 > self.most_bytes:
                self.prune()
        except RefusedFolderError as error:
            self._warn_of_folder(error)
        except (RefusedError, OSError) as error:
            thing = f"Compiled kernels are not kept in {self.root}"
            _warn_once((self.root, "put"), thing, error, _ANOTHER)

    def _warn_of_folder(self, error: RefusedFolderError) -> None:
        """Warns once: reads and writes fail with different words for the same cause."""
        if first_time((self.root, "folder")):
            text = f"Compiled kernels are neither read from disk nor kept: {error}. {_ANOTHER}"
            warn_at("", text, CacheWarning)

    @contextmanager
    def turn(self, recipe: Recipe) -> Iterator[None]:
        """Waits while another process compiles the same kernel. If the file system has no locks,
        both compile it."""
        name, lock = f".lock-{recipe.key}", None
        if self.mode == "rw":
            with suppress(RefusedError, OSError):
                lock = self._lock(name)
        try:
            yield
        finally:
            if lock is not None:
                with suppress(RefusedError, OSError):
                    self._remove(name)
                os.close(lock)

    def _lock(self, name: str) -> int:
        check_abandoned()  # before there is a file, which nobody would remove
        with files.opened(self.root, create=True) as folder:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(name, flags, 0o600, dir_fd=folder)
        start = time.monotonic()
        while (waited := time.monotonic() - start) < LONGEST_WAIT:
            if waited > SLOW_WAIT and first_time((self.root, "turn")):
                warn_at(
                    "", f"Another process has been compiling a kernel for {SLOW_WAIT} seconds;"
                    f" after {LONGEST_WAIT} seconds this process compiles it too.",
                    SlowCompileWarning,
                )
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                try:
                    check_abandoned()
                except AbandonedError:
                    os.close(lock)
                    raise
                time.sleep(0.02)
            except OSError:  # a file system without locks
                break
            else:
                break
        return lock

    # ---- for people

    def stored_files(self) -> list[StoredFile]:
        """The files of entries, the least recently used first, without reading them."""
        try:
            with files.opened(self.root, create=False) as folder:
                return files.listed(folder)
        except FileNotFoundError:
            return []

    def entries(self) -> Iterator[Stored]:
        """Reads and checks every file; each has an entry or a problem."""
        for file in self.stored_files():
            try:
                with files.opened(self.root, create=False) as folder:
                    content = files.read(folder, file.name, strict=False, touch=False)
                if content is not None:
                    yield Stored(file, decode_named(file.name, content))
            except (RefusedError, DamagedError, OSError) as error:
                yield Stored(file, None, str(error))

    def prune(self, most_bytes: int | None = None) -> tuple[int, int]:
        """Evicts the least recently used entries beyond a size. Returns (files, bytes) removed."""
        most = self.most_bytes if most_bytes is None else most_bytes
        self._unpruned = 0
        try:
            with files.opened(self.root, create=False) as folder:
                return _prune(folder, most)
        except FileNotFoundError:
            return 0, 0

    def clear(self) -> tuple[int, int]:
        """Removes every entry, and no other file."""
        return self.prune(most_bytes=0)

    def remove(self, stored: Stored) -> None:
        """Removes one entry."""
        self._remove(stored.file.name)

    def _remove(self, name: str) -> None:
        with files.opened(self.root, create=False) as folder:
            files.remove(folder, name)


def _prune(folder: int, most: int) -> tuple[int, int]:
    now = time.time()
    for file in files.listed(folder, files.PASSING_NAME):
        if abs(now - file.used) > STALE_SECONDS:  # or the clock was set back
            files.remove(folder, file.name)
    held = files.listed(folder)
    excess = sum(file.size for file in held) - most
    gone = []
    for file in held if excess > 0 else ():
        if excess <= -(1 - KEPT_AFTER_PRUNING) * most:
            break
        if files.remove(folder, file.name):
            gone.append(file.size)
        excess -= file.size
    if gone:
        log("cache", lambda: f"store: {len(gone)} files evicted, {sum(gone)} bytes")
    return len(gone), sum(gone)


def current_store() -> Store | None:
    """The store in the options; None if they disable it."""
    mode = str(option("cache"))
    if mode == "off":
        return None
    try:
        root = root_of(str(option("cache_dir")))
    except RuntimeError as error:  # no home
        _warn_once("no home", "Compiled kernels are not kept", error)
        return None
    return _store(root, mode, int(option("cache_megabytes")) << 20)


_store = lru_cache(maxsize=16)(Store)


def root_of(chosen: str) -> Path:
    """The folder in the option cache_dir, else a folder in the user's cache. OptionError for a
    relative path, RuntimeError if there is no home."""
    if chosen:
        try:
            path = Path(chosen).expanduser()
        except RuntimeError:  # the path begins with the name of a user who has no home
            path = Path(chosen)
        if not path.is_absolute():
            raise OptionError("option cache_dir", expected="an absolute path", got=repr(chosen))
        return path
    above = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not above.is_absolute():
        above = Path.home() / ".cache"
    if not above.is_absolute():
        raise RuntimeError(f"the home folder {str(above.parent)!r} is no absolute path (HOME)")
    return above / "thunder_fuser"


def _warn_once(cause: Hashable, thing: object, error: Exception, then: str = "") -> None:
    """Warns at the first error of a cause. The cause's text does not contain the file's name."""
    why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    if first_time((cause, why)):
        warn_at("", f"{thing}: {why}. {then}".rstrip(), CacheWarning)
