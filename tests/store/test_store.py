# SPDX-License-Identifier: Apache-2.0
"""The store on disk: what it finds, what it refuses, and that no fault costs more than time.

Rows of what went wrong elsewhere stand in docs/caches.md; each has a test here.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from helpers.stores import MOST, content, got, library, names, path_of, recipe, warned
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thunder_fuser.base import threads
from thunder_fuser.errors import OptionError, SlowCompileWarning
from thunder_fuser.options import options
from thunder_fuser.store import folder as files
from thunder_fuser.store import store as stores
from thunder_fuser.store.entry import MAGIC, DamagedError, Recipe, decode, encode
from thunder_fuser.store.store import Store, current_store

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user: needs root")


# ---- what it finds


def test_what_is_put_is_found(store: Store) -> None:
    assert store.get(recipe()) is None and not store.root.exists()
    for number in range(5):
        store.put(recipe(number), content(number))
    for number in range(5):
        assert got(store, recipe(number)) == content(number)
    assert store.get(recipe(5)) is None
    assert len(names(store)) == 5


@pytest.mark.parametrize(
    "changed",
    [{"kind": "library"}, {"text": "x"}, {"arch": "sm_80"}, {"flags": ("-O1",)},
     {"flags": ("--std=c++17", "-g")}, {"toolchain": "NVRTC 13.0 (2 bytes)"}],
    ids=str,
)  # fmt: skip
def test_every_field_is_part_of_the_key(store: Store, changed: dict[str, object]) -> None:
    """But for the kernel's name, see tests/analysis/test_names.py."""
    store.put(recipe(), content())
    assert store.get(recipe(**changed)) is None
    assert got(store, recipe()) == content()


@given(st.text(max_size=50), st.binary(max_size=200))
def test_an_entry_reads_back(text: str, binary: bytes) -> None:
    one = recipe(text=text)
    entry = decode(encode(one, binary))
    assert (entry.fields, entry.text, entry.binary) == (one.fields, text, binary)


def test_the_fields_stand_in_clear(stored: tuple[Store, Recipe, Path]) -> None:
    _, one, path = stored
    data = path.read_bytes()
    start = len(MAGIC) + 4
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    assert json.loads(data[start : start + length])["fields"] == dict(one.fields)


# ---- permissions


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_folders_and_files_are_the_users_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = Store(tmp_path / "new" / "store", "rw", MOST)
        store.put(recipe(), content())
    finally:
        os.umask(before)
    for path in (store.root, store.root.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(path_of(store, recipe()).stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_refused(
    stored: tuple[Store, Recipe, Path], mode: int
) -> None:
    store, one, _ = stored
    store.root.chmod(mode)
    with warned() as messages:
        assert store.get(one) is None
        assert store.get(one) is None
        store.put(recipe(1), content(1))
    assert len(messages) == 1 and all("others may change it" in text for text in messages)
    store.root.chmod(0o700)
    assert len(names(store)) == 1 and got(store, one) == content()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(
    stored: tuple[Store, Recipe, Path], mode: int
) -> None:
    store, one, path = stored
    path.chmod(mode)
    with warned() as messages:
        assert store.get(one) is None
    assert len(messages) == 1 and "others may change it" in messages[0]
    store.put(one, content())
    assert got(store, one) == content()  # replaced


def test_libraries_are_stricter_than_cubins(store: Store) -> None:
    """They are machine code of this process: a file that others may even read is not theirs."""
    for kind, good in (("cubin", True), ("library", False)):
        one = recipe(kind=kind)
        store.put(one, library())
        assert got(store, one) == library()
        path_of(store, one).chmod(0o644)
        with warned():
            assert (got(store, one) == library()) is good


@ROOT_ONLY
def test_a_file_of_another_user_is_refused(stored: tuple[Store, Recipe, Path]) -> None:
    store, one, path = stored
    os.chown(path, 12345, 12345)
    with warned() as messages:
        assert store.get(one) is None
    assert "belongs to user 12345" in messages[0]
    assert store.stored_files() == [] and store.clear() == (0, 0) and path.exists()


@ROOT_ONLY
def test_a_folder_of_another_user_is_refused(stored: tuple[Store, Recipe, Path]) -> None:
    store, one, _ = stored
    os.chown(store.root, 12345, 12345)
    with warned() as messages:
        assert store.get(one) is None
        store.put(recipe(1), content(1))
    assert len(messages) == 1 and all("belongs to user 12345" in text for text in messages)
    assert len(names(store)) == 1


def test_links_are_refused(stored: tuple[Store, Recipe, Path], tmp_path: Path) -> None:
    store, one, path = stored
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with warned() as messages:
        assert store.get(one) is None
    assert "cannot be opened" in messages[0]
    store.put(one, content())  # replaces the link, and does not write through it
    assert not path.is_symlink() and got(store, one) == content()
    path.unlink()
    os.link(elsewhere, path)
    with warned() as messages:
        assert store.get(one) is None
    assert "not a regular file, or it has several hard links" in messages[0]


def test_a_link_to_a_folder_is_refused(stored: tuple[Store, Recipe, Path], tmp_path: Path) -> None:
    store, one, _ = stored
    link = tmp_path / "link"
    link.symlink_to(store.root)
    through = Store(link, "rw", MOST)
    with warned() as messages:
        assert through.get(one) is None
        through.put(recipe(1), content(1))
    assert len(messages) == 1 and all("is a link or a file" in text for text in messages)
    assert len(names(store)) == 1


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.touch()])
def test_what_is_no_file_is_refused(store: Store, make: Callable[[Path], object]) -> None:
    """A pipe must not make us wait."""
    store.put(recipe(1), content(1))
    path = path_of(store, recipe())
    make(path)
    with warned() as messages:
        assert store.get(recipe()) is None
    assert len(messages) == 1


# ---- damage


def damaged(data: bytes) -> dict[str, bytes]:
    """Ways in which a file may be broken."""
    middle = len(data) // 2
    return {
        "nothing": b"",
        "one byte": data[:1],
        "zeros": bytes(len(data)),
        "garbage": os.urandom(len(data)),
        "no digest": data[:-32],
        "half": data[:middle],
        "all but one byte": data[:-1],
        "one byte more": data + b"\0",
        "a zero page": data[:middle] + bytes(16) + data[middle + 16 :],
        "twice": data + data,
        "a pickle": pickle.dumps({"binary": data}),
    }


@pytest.mark.parametrize("way", damaged(b"x" * 100))
def test_a_damaged_file_is_a_miss_with_one_warning(
    stored: tuple[Store, Recipe, Path], way: str
) -> None:
    store, one, path = stored
    path.write_bytes(damaged(path.read_bytes())[way])
    with warned() as messages:
        assert store.get(one) is None
        assert store.get(one) is None
    assert len(messages) == 1 and "compiled instead" in messages[0]
    assert [bool(found.problem) for found in store.entries()] == [True]
    store.put(one, content())
    assert got(store, one) == content()


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_bit_may_flip(data: st.DataObject) -> None:
    good = encode(recipe(), content(size=300))
    at = data.draw(st.integers(0, 8 * len(good) - 1))
    bad = bytearray(good)
    bad[at // 8] ^= 1 << at % 8
    with pytest.raises(DamagedError):
        decode(bytes(bad))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_refused_without_another_error(data: bytes) -> None:
    for body in (data, MAGIC + data):
        with pytest.raises(DamagedError):
            decode(body + sha256(body).digest())


@pytest.mark.parametrize("number", [1, 40])
def test_one_warning_for_each_fault_and_not_for_each_file(store: Store, number: int) -> None:
    faults: list[Callable[[Path], object]] = [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.chmod(0o666),
        lambda path: (path.unlink(), path.mkdir()),
    ]
    for fault in faults:
        store.clear()
        for at in range(number):
            path = path_of(store, recipe(at))
            if path.is_dir():
                path.rmdir()
            store.put(recipe(at), content(at))
            fault(path)
        with warned() as messages:
            assert [store.get(recipe(at)) for at in range(number)] == [None] * number
        assert len(messages) == 1, messages
    store.root.chmod(0o777)
    with warned() as messages:
        for at in range(number):
            assert store.get(recipe(at)) is None
            store.put(recipe(at), content(at))
    assert len(messages) == 1 and "neither read from disk nor kept" in messages[0]


def test_another_kernel_under_this_name_is_refused(stored: tuple[Store, Recipe, Path]) -> None:
    store, one, path = stored
    path.write_bytes(encode(recipe(1), content(1)))
    with warned() as messages:
        assert store.get(one) is None
    assert "another kernel" in messages[0]


# ---- what is removed


def test_the_longest_unused_go(store: Store) -> None:
    for number in range(10):
        store.put(recipe(number), content(number))
        os.utime(path_of(store, recipe(number)), (1000 + number, 1000 + number))
    assert got(store, recipe(0)) == content(0)  # used now
    size = path_of(store, recipe(0)).stat().st_size
    files_gone, bytes_gone = store.prune(most_bytes=5 * size)
    assert files_gone >= 5 and bytes_gone == files_gone * size
    held = [number for number in range(10) if store.get(recipe(number)) is not None]
    assert held == [0, *range(10 - len(held) + 1, 10)]


def test_the_cap_holds_while_writing(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", "rw", 100_000)
    for number in range(200):
        store.put(recipe(number), content(number))
        assert sum(one.size for one in store.stored_files()) < 115_000
    assert got(store, recipe(199)) == content(199)
    store.put(recipe(500), content(500, size=200_000))  # larger than all of it
    assert store.get(recipe(500)) is None and got(store, recipe(199)) == content(199)


def test_a_clock_that_was_set_back(store: Store) -> None:
    """Files from the future are used, and removed like others."""
    future = time.time() + 10**6
    for number in range(3):
        store.put(recipe(number), content(number))
        os.utime(path_of(store, recipe(number)), (future, future))
    (store.root / (".writing-" + "0" * 24)).write_bytes(b"")
    os.utime(store.root / (".writing-" + "0" * 24), (future, future))
    assert got(store, recipe(1)) == content(1)
    assert store.prune(most_bytes=3000)[0] == 2  # the one just used is now the oldest
    assert len(names(store)) == 1
    assert store.clear()[0] == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 4000, -4000, 10**6, -4**9]))))
def test_a_clock_that_jumps(steps: list[tuple[int, int]]) -> None:
    """An entry is there as it was put, or was removed to make room: whatever time it is."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        store, now = Store(Path(folder) / "store", "rw", 9000), [time.time()]
        utime = os.utime
        patch.setattr(stores.time, "time", lambda: now[0])
        patch.setattr(files.os, "utime", lambda file: utime(file, (now[0], now[0])))
        for number, jump in steps:
            now[0] += jump
            with warned() as messages, store.turn(recipe(number)):
                found = got(store, recipe(number))
                assert found in (None, content(number))
                store.put(recipe(number), content(number))
                assert store.get(recipe(number)) is not None or len(names(store)) > 1
            assert messages == []
            assert sum(one.size for one in store.stored_files()) < 9000 * 1.125 + 1


def test_what_is_not_ours_is_never_removed(store: Store) -> None:
    store.put(recipe(), content())
    others = ("notes.txt", ".writing", "0" * 64, "0" * 63 + ".kernel", "x" * 64 + ".kernel")
    for name in others:
        (store.root / name).write_text("mine")
    (store.root / ("1" * 64 + ".kernel")).mkdir()
    assert store.clear()[0] == 1
    assert names(store) == {*others, "1" * 64 + ".kernel"}


def test_an_unfinished_file_of_now_stays(store: Store) -> None:
    store.put(recipe(), content())
    (store.root / (".writing-" + "a" * 24)).write_bytes(b"half")
    store.prune()
    assert len(names(store)) == 2


# ---- which store


def test_read_only_writes_nothing(stored: tuple[Store, Recipe, Path]) -> None:
    store, one, path = stored
    os.utime(path, (1000, 1000))
    reading = Store(store.root, "ro", MOST)
    assert got(reading, one) == content()
    with reading.turn(one):
        reading.put(recipe(1), content(1))
    assert path.stat().st_mtime == 1000 and len(names(store)) == 1


def test_the_options_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with options(cache="off"):
        assert current_store() is None
    with options(cache="ro", cache_dir=str(tmp_path), cache_megabytes=3):
        found = current_store()
        assert found is not None
        assert (found.root, found.mode, found.most_bytes) == (tmp_path, "ro", 3 << 20)
    monkeypatch.delenv("THUNDER_FUSER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert current_store().root == tmp_path / "thunder_fuser"  # type: ignore[union-attr]
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # never below the current folder
    monkeypatch.setenv("HOME", str(tmp_path))
    assert current_store().root == tmp_path / ".cache" / "thunder_fuser"  # type: ignore[union-attr]
    with pytest.raises(OptionError, match="option cache: expected one of rw, ro, off"):
        options(cache="on").__enter__()
    with options(cache_dir="here"), pytest.raises(OptionError, match="an absolute path"):
        current_store()


def test_no_home_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THUNDER_FUSER_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(stores.Path, "home", homeless)
    with warned() as messages:
        assert current_store() is None
    assert len(messages) == 1


def test_a_home_that_is_no_absolute_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache would lie below whatever folder is the current one."""
    monkeypatch.delenv("THUNDER_FUSER_CACHE_DIR")
    monkeypatch.setenv("HOME", "relhome")
    for above in ("", "relative", "./x"):
        monkeypatch.setenv("XDG_CACHE_HOME", above)
        with warned() as messages:
            assert current_store() is None and current_store() is None
        assert len(messages) == 1 and "'relhome' is no absolute path" in messages[0]
    with options(cache_dir="~/store"), pytest.raises(OptionError, match="an absolute path"):
        current_store()


def test_a_lock_is_waited_for_and_left_by_the_dead(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with store.turn(recipe()):
            os.write(writer, b"locked")
            time.sleep(60)
        os._exit(0)
    assert os.read(reader, 6) == b"locked"
    with monkeypatch.context() as patch:
        patch.setattr(stores, "LONGEST_WAIT", 0.2)
        patch.setattr(stores, "SLOW_WAIT", 0.0)
        start = time.monotonic()
        with pytest.warns(SlowCompileWarning, match="after 0.2 seconds"), store.turn(recipe()):
            assert time.monotonic() - start >= 0.2  # both go on in the end
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    start = time.monotonic()
    with store.turn(recipe()):
        assert time.monotonic() - start < 30
    assert names(store) == set()


def test_no_code_here_runs_what_it_reads() -> None:
    """No pickle, marshal, eval, torch.load or shell anywhere in the store."""
    folder = Path(files.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text()
        for word in ("pickle", "marshal", "eval(", "exec(", "torch", "shelve", "subprocess"):
            assert word not in text, f"{path.name}: {word}"


def test_a_job_that_nobody_needs_leaves_no_lock(store: Store) -> None:
    """Neither where the kernel is free, nor where another one compiles it, nor an open file."""

    def attempt(after: float) -> None:
        abandoned = threading.Event()
        token = threads._abandoned.set(abandoned)
        timer = threading.Timer(after, abandoned.set)
        timer.start()
        timer.join(None if after == 0 else 0)
        try:
            with pytest.raises(threads.AbandonedError), store.turn(recipe()):
                raise AssertionError("it has a turn")
        finally:
            threads._abandoned.reset(token)

    open_files = len(os.listdir("/proc/self/fd"))
    attempt(0)
    assert not store.root.exists() or not names(store)
    with store.turn(recipe()):
        attempt(0.1)
    assert not list(store.root.iterdir())
    assert len(os.listdir("/proc/self/fd")) == open_files
