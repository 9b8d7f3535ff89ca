# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder_fuser cache ...`, and the archive it carries kernels in."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.stores import MOST, content, got, library, names, path_of, recipe, warned

from thunder_fuser.__main__ import main
from thunder_fuser.options import options
from thunder_fuser.store.entry import ENDING, encode
from thunder_fuser.store.store import Store

Command = Callable[..., tuple[int, str]]
LIBRARY = recipe(9, kind="library", name="a_library", arch="x86_64, CPU, 0", flags=("-O3",))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three cubins, the last from a newer compiler, and a library."""
    made = Store(tmp_path / "store", "rw", MOST)
    newer = recipe(2, toolchain="NVRTC 13.1 (2 bytes)")
    for at, one in enumerate((recipe(1), LIBRARY, recipe(2), newer)):
        made.put(one, library("a_library") if one is LIBRARY else content(at))
        os.utime(path_of(made, one), (1000 + at, 1000 + at))
    return made


@pytest.fixture
def command(store: Store, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> tuple[int, str]:
        with options(cache_dir=str(store.root)):
            code = main(["cache", *arguments])
        caught = capsys.readouterr()
        return code, caught.out + caught.err

    return run


def test_info(command: Command, store: Store) -> None:
    code, text = command("info")
    assert code == 0 and str(store.root) in text and "1 CPU library, 3 cubin" in text


def test_list(command: Command) -> None:
    _, text = command("list")
    assert [line.split()[0] for line in text.splitlines()[1:]] == [
        recipe(1).key[:12], LIBRARY.key[:12], recipe(2).key[:12],
        recipe(2, toolchain="NVRTC 13.1 (2 bytes)").key[:12],
    ]  # fmt: skip
    _, text = command("list", "a_library")
    assert len(text.splitlines()) == 2 and "x86_64" in text


def test_verify_finds_and_removes_what_is_damaged(command: Command, store: Store) -> None:
    assert command("verify") == (0, "intact: 4 entries\n")
    path_of(store, recipe(1)).write_bytes(b"")
    (store.root / ("0" * 64 + ENDING)).write_bytes(encode(recipe(5), b""))
    code, text = command("verify")
    assert code == 1 and "it is empty" in text and "another kernel" in text
    assert len(names(store)) == 5
    assert command("verify", "--remove")[0] == 1
    assert len(names(store)) == 3 and command("verify")[0] == 0


def test_verify_finds_a_library_that_cannot_be_loaded(command: Command, store: Store) -> None:
    """Its digest is right: the compiler made it so."""
    whole = library("a_library")
    for bad, why in (
        (whole[:100], "only its beginning"),
        (whole[:-1], "only its beginning"),
        (b"", "only its beginning"),
        (library("another"), "without the function a_library"),
    ):
        store.put(LIBRARY, bad)
        with warned() as messages:
            assert store.get(LIBRARY) is None
        assert len(messages) == 1 and why in messages[0]
        code, text = command("verify")
        assert code == 1 and why in text, text
    assert command("verify", "--remove")[0] == 1 and command("verify")[0] == 0


def test_prune_and_clear(command: Command, store: Store) -> None:
    assert command("prune", "1") == (0, "0 entries removed, 0.0 KiB\n")
    (store.root / "mine").write_text("mine")
    assert "4 entries removed" in command("clear")[1]
    assert names(store) == {"mine"}
    assert command("clear") == (0, "0 entries removed, 0.0 KiB\n")


def test_explain_names_the_fields_that_differ(command: Command) -> None:
    _, text = command("explain")  # the newest
    assert text.splitlines()[-1] == (
        "  toolchain: 'NVRTC 13.1 (2 bytes)' here, 'NVRTC 13.0 (1 bytes)' there"
    )
    _, text = command("explain", recipe(1).key[:8])
    assert text.splitlines()[-3:] == ["  text:", "    -// kernel 2", "    +// kernel 1"]
    code, text = command("explain", "xyz")
    assert code == 1 and "InputError" in text


def test_carried_to_another_machine(command: Command, store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "kernels.zip"
    code, text = command("export", str(archive))
    assert code == 0 and "3 entries" in text and "1 left out: damaged, or CPU libraries" in text
    assert archive.stat().st_mode & 0o077 == 0
    assert command("export", str(archive))[0] == 1  # nothing is overwritten
    command("clear")
    assert command("import", str(archive)) == (0, "3 entries added\n")
    assert got(store, recipe(1)) == content(0) and store.get(LIBRARY) is None
    told = "0 entries added; 3 already there\n"
    assert command("import", str(archive)) == (0, told)
    damaged = store.root / (recipe(1).key + ENDING)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    told = "1 entry added; 2 already there\n"
    assert command("import", str(archive)) == (0, told)
    assert got(store, recipe(1)) == content(0)


def test_libraries_are_carried_where_asked(
    command: Command, store: Store, tmp_path: Path
) -> None:
    archive = tmp_path / "kernels.zip"
    command("export", str(archive), "--libraries")
    command("clear")
    assert "1 left out" in command("import", str(archive))[1]
    assert store.get(LIBRARY) is None
    told = "1 entry added; 3 already there\n"
    assert command("import", str(archive), "--libraries") == (0, told)
    assert got(store, LIBRARY) == library("a_library")


def test_an_archive_brings_nothing_but_good_entries(
    command: Command, store: Store, tmp_path: Path
) -> None:
    good, name = encode(recipe(7), b"x"), recipe(7).key + ENDING
    command("clear")
    archive = tmp_path / "odd.zip"
    with zipfile.ZipFile(archive, "w") as odd:
        odd.writestr("../../escaped", good)
        odd.writestr("/tmp/absolute", good)
        odd.writestr("sub/" + name, good)
        odd.writestr("0" * 64 + ENDING, good)
        odd.writestr(recipe(8).key + ENDING, good[:-1])
        odd.writestr(recipe(6).key + ENDING, b"\0" * 10**6, zipfile.ZIP_DEFLATED)
        odd.writestr(name, good)
        odd.writestr(LIBRARY.key + ENDING, encode(LIBRARY, library("a_library")[:-1]))
    assert command("import", str(archive))[1] == (
        "1 entry added; 7 left out: damaged, or CPU libraries, which need --libraries\n"
    )
    told = command("import", str(archive), "--libraries")[1]
    # that library is one of them
    assert told == "0 entries added; 1 already there; 7 left out: damaged\n"
    assert names(store) == {name}
    assert not (tmp_path.parent / "escaped").exists()
    archive.write_bytes(b"PK" + b"garbage" * 99)
    code, text = command("import", str(archive))
    assert code == 1 and "ArchiveError" in text
    assert "expected a file that `cache export` wrote, got a file of another kind" in text
    assert command("import", str(tmp_path / "absent"))[0] == 1


def test_a_store_that_is_off_or_refused(command: Command, store: Store) -> None:
    with options(cache="off"):
        code, text = command("info")
    assert code == 1 and "option cache: expected rw or ro, got off" in text
    store.root.chmod(0o777)
    code, text = command("list")
    assert code == 1 and "others may change it" in text


def test_a_store_that_is_not_there(command: Command, store: Store) -> None:
    command("clear")
    store.root.rmdir()
    for arguments in (["info"], ["list"], ["verify"], ["prune", "1"], ["clear"]):
        code, text = command(*arguments)
        assert code == 0, text
    assert "not made yet" in command("info")[1]


def test_wrong_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["prune"], ["prune", "-1"], ["prune", "many"], ["nothing"]):
        with pytest.raises(SystemExit) as caught:
            main(["cache", *arguments])
        assert caught.value.code == 2
        is_missing = "a command is missing: info, list, verify, " in capsys.readouterr().err
        assert is_missing == (arguments == [])
