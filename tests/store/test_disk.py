# SPDX-License-Identifier: Apache-2.0
"""The store on a disk that is full, closed, slow or gone: no fault costs more than time."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.stores import MOST, content, got, names, recipe, warned
from helpers.without_torch import printed, run

from thunder_fuser.store.entry import Recipe
from thunder_fuser.store.folder import RefusedError
from thunder_fuser.store.store import Store

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system: needs root")



def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "store", "rw", MOST)
    with warned() as messages:
        store.put(recipe(), content())
        assert store.get(recipe()) is None
    assert len(messages) == 1 and "cannot be made: Not a directory" in messages[0]


@ROOT_ONLY
def test_a_read_only_file_system(tmp_path: Path) -> None:
    """Of its own, for root may write to a read-only folder."""
    program = """
import subprocess, sys
from helpers.stores import MOST, content, got, recipe, warned
from pathlib import Path
from thunder_fuser.store.store import Store
root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root], check=True)
store = Store(root / "store", "rw", MOST)
store.put(recipe(), content())
subprocess.run(["mount", "-o", "remount,ro", root], check=True)
with warned() as messages:
    assert got(store, recipe()) == content()
    store.put(recipe(1), content(1))
    store.put(recipe(3), content(3))
    with store.turn(recipe(2)):
        assert store.get(recipe(2)) is None
assert len(messages) == 1 and "Read-only file system" in messages[0], messages
"""
    in_own_mounts(program, tmp_path)


@pytest.mark.parametrize("error", ["EROFS", "EACCES", "ENOSPC"])
@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_folder_that_cannot_be_written_is_named_once(
    store: Store, call: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of entries that are not written have random names, which Python's errors repeat."""
    original = getattr(os, call)
    if call == "open":
        store.root.mkdir(parents=True, mode=0o700)

    def failing(path: object, *args: object, **kwargs: object) -> object:
        if call == "open" and "writing" not in str(path):
            return original(path, *args, **kwargs)
        raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)), str(path))

    with warned() as messages, monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        for number in range(5):
            store.get(recipe(number))
            store.put(recipe(number), content(number))
    assert len(messages) == 1, messages
    assert str(store.root) in messages[0] and os.strerror(getattr(errno, error)) in messages[0]
    assert "cache_dir" in messages[0] and ".writing-" not in messages[0]


@ROOT_ONLY
def test_a_full_disk(tmp_path: Path) -> None:
    program = """
import subprocess, sys
from helpers.stores import MOST, content, got, names, recipe, warned
from pathlib import Path
from thunder_fuser.store.store import Store
root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", root], check=True)
store = Store(root / "store", "rw", MOST)
with warned() as messages:
    for number in range(20):
        store.put(recipe(number), content(number, size=40_000))
    found = [got(store, recipe(number)) for number in range(20)]
assert any("No space left" in text for text in messages), messages
good = [number for number, one in enumerate(found) if one is not None]
assert 3 <= len(good) < 20 and all(found[n] == content(n, size=40_000) for n in good)
assert len(names(store)) == len(good)  # no unfinished file is left
"""
    in_own_mounts(program, tmp_path)


def in_own_mounts(program: str, folder: Path) -> None:
    """Runs a program that may mount, and whose mounts nobody else sees."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mounts of its own here")
    done = run(program, str(folder), before=["unshare", "-m"])
    if "permission denied" in done.stderr or "must be superuser" in done.stderr:
        pytest.skip("no mounts of its own here")
    assert done.returncode == 0, done.stderr


def test_a_file_too_large_to_write(store: Store) -> None:
    """What a quota does, by a limit of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        with warned() as messages:
            store.put(recipe(), content(size=100_000))
            store.put(recipe(1), content(1, size=100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert "File too large" in messages[0]
    assert store.get(recipe()) is None and got(store, recipe(1)) == content(1, size=100)
    assert len(names(store)) == 1


@pytest.mark.parametrize("error", ["EBUSY", "ENOSPC", "EIO", "EROFS", "EDQUOT", "ESTALE"])
@pytest.mark.parametrize("call", ["rename", "fsync", "open", "utime", "listdir"])
def test_calls_that_fail(
    stored: tuple[Store, Recipe, Path], call: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As network file systems do at any of them."""
    store, one, _ = stored
    original = getattr(os, call)

    def failing(*args: object, **kwargs: object) -> object:
        if call == "open" and not kwargs.get("dir_fd"):
            return original(*args, **kwargs)
        raise OSError(getattr(errno, error), "as asked for")

    with warned(), monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        found = got(store, one)
        store.put(recipe(1), content(1))
        with store.turn(recipe(2)):
            pass
    assert found == (None if call == "open" else content())
    assert got(store, one) == content()
    assert got(store, recipe(1)) in (None, content(1))
    assert not [name for name in names(store) if name.startswith(".writing")]


def test_kill_9_at_200_random_moments(store: Store) -> None:
    """Whatever a writer was doing, every entry is whole, or not there, and no lock is held.

    In a process of its own: a fork of this one takes longer than what is to be interrupted.
    """
    printed("""
import os, random, signal, time
from pathlib import Path
from helpers.stores import MOST, content, got, recipe, warned
from thunder_fuser.store.store import Store

def write(start):
    for number in range(start, 10**9):
        with store.turn(recipe(number % 7)):
            store.put(recipe(number % 7), wanted[number % 7])

store, rng = Store(Path(sys.argv[1]), "rw", MOST), random.Random(1)
wanted = [content(number, size=200_000) for number in range(7)]
for turn in range(200):
    child = os.fork()
    if child == 0:
        try:
            write(turn)
        finally:
            os._exit(1)
    time.sleep(rng.uniform(0.0, 0.01))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with warned() as messages:
        for number in range(7):
            assert got(store, recipe(number)) in (None, wanted[number])
    assert messages == []
""", str(store.root))
    assert store.stored_files() and all(not one.problem for one in store.entries())
    left = [name for name in names(store) if name.startswith(".")]
    assert left  # or nothing was interrupted
    for name in left:
        os.utime(store.root / name, (0, 0))
    store.prune()
    assert not [name for name in names(store) if name.startswith(".")]


FOLDERS: dict[str, Callable[[Path], object]] = {
    "it is gone": shutil.rmtree,
    "a file": lambda root: (shutil.rmtree(root), root.write_text("")),
    "a link": lambda root: (root.rename(root.with_name("other")), root.symlink_to("other")),
    "the one above it is a file": lambda root: (
        shutil.rmtree(root.parent), root.parent.write_text("")
    ),
    "others may write": lambda root: root.chmod(0o777),
}  # fmt: skip


@pytest.mark.parametrize("change", FOLDERS)
@pytest.mark.parametrize("moment", ["get", "turn", "put"])
def test_a_folder_that_changes_in_use(
    stored: tuple[Store, Recipe, Path], change: str, moment: str
) -> None:
    """A compilation goes on, with one warning; commands say one sentence."""
    store, _, _ = stored
    changed = {moment: FOLDERS[change]}
    with warned() as messages:
        for number in range(1, 4):
            changed.pop("get", lambda root: None)(store.root)
            store.get(recipe(number))
            with store.turn(recipe(number)):
                changed.pop("turn", lambda root: None)(store.root)
                store.get(recipe(number))
                changed.pop("put", lambda root: None)(store.root)
                store.put(recipe(number), content(number))
    assert len(messages) == (0 if change == "it is gone" else 1), messages
    if change == "it is gone":
        assert got(store, recipe(3)) == content(3)
    else:
        with pytest.raises(RefusedError):
            store.stored_files()
