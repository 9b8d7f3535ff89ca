# SPDX-License-Identifier: Apache-2.0
"""What ends a build: torch ops and a warning that says where and why, or one short typed error."""

from __future__ import annotations

import errno
import gc
import inspect
import os
import stat
import tempfile
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch

from thunder_fuser import FusionCache, FusionDefinition, compiler, fuser
from thunder_fuser.base.threads import BACKGROUND
from thunder_fuser.errors import (
    BuildError,
    CompileError,
    DumpWarning,
    FallbackWarning,
    FuserError,
    LaunchError,
    OptionError,
    ToolchainError,
)
from thunder_fuser.explain import dump
from thunder_fuser.explain.jitted import Jitted
from thunder_fuser.options import options
from thunder_fuser.runtime import toolchain

# Compilers: of a kernel they say what stands below, and they know their version.
FRONT = """#!/bin/sh
[ "$1" = --version ] && { echo "odd c++ 1.0"; exit; }
"""
REFUSES = (
    FRONT + 'for one in "$@"; do case "$one" in *.cpp) echo "int bad = x;" >> "$one";; esac; done'
)
FULL = (
    FRONT
    + """
echo "$TMPDIR/kernel.cpp:7:1: fatal error: error writing to x.s: No space left on device" >&2
exit 1
"""
)
X = torch.rand(5, 3)
STAGES = {
    "0_fusion.py", "1_specialised.py", "2_segments.txt", "3_schedule_0.py", "4_kernel_0.cpp",
}  # fmt: skip


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing is compiled yet, and nothing is kept after the test."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    toolchain.forget()
    with FusionCache(), options(cache="off", native_calls=False):
        yield
    toolchain.forget()


@pytest.fixture
def compiler_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a script the C++ compiler."""
    real = toolchain.find_compiler().path
    path = tmp_path / "odd-c++"

    def use(text: str) -> None:
        path.write_text(f'{text}\nexec {real} "$@"\n')
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return use


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2.0 + 3.0


LINE = inspect.getsourcelines(function)[1] + 1


def jit(**given: object) -> Jitted:
    keywords = {f"fuser_{name}": value for name, value in given.items()}
    return thunder.jit(function, executors=[fuser], **keywords)  # type: ignore[no-any-return]


def told(run: Callable[[], torch.Tensor]) -> list[warnings.WarningMessage]:
    """The warnings of a call that has torch's result."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(run(), function(X))
    return [one for one in caught if one.category in (FallbackWarning, DumpWarning)]


def paths_in(text: str) -> list[Path]:
    """The files and folders that a message names, at the ends of its lines."""
    words = [line.rpartition(" ")[2] for line in text.splitlines()[1:]]
    return [Path(word) for word in words if word.startswith("/")]


# ---- a kernel that is rejected


def test_a_rejected_kernel_is_told_in_lines_one_can_act_on(
    compiler_is: Callable[[str], None],
) -> None:
    compiler_is(REFUSES)
    (one,) = told(lambda: jit()(X))
    text = str(one.message)
    assert Path(one.filename).name == Path(__file__).name and one.lineno == LINE
    first = text.splitlines()[0]
    assert f"test_failures.py:{LINE}) falls back to torch for 3 ops" in first
    assert "error: 'x' was not declared in this scope" in first
    assert len(text.splitlines()) < 20
    kernel, log, script = paths_in(text)
    assert "fusion" in script.read_text() and 'extern "C"' in kernel.read_text()
    assert "int bad = x;" in log.read_text()  # all that the compiler said
    assert {path.name for path in kernel.parent.iterdir()} == {*STAGES, log.name, script.name}
    assert stat.S_IMODE(kernel.parent.stat().st_mode) == 0o700


def test_what_is_not_announced_leaves_no_file(compiler_is: Callable[[str], None]) -> None:
    compiler_is(REFUSES)
    (one,) = told(lambda: jit()(X))
    folder = paths_in(str(one.message))[0].parent
    other = thunder.jit(lambda x: torch.tanh(x) - 1.0, executors=[fuser])
    torch.testing.assert_close(other(X), torch.tanh(X) - 1.0)  # fails alike, without a word
    BACKGROUND.abandon()  # what compiles ahead has a folder until it ends
    assert list(Path(tempfile.gettempdir()).iterdir()) == [folder] and folder.exists()


def test_strict_raises_the_same_in_few_lines(compiler_is: Callable[[str], None]) -> None:
    compiler_is(REFUSES)
    with pytest.raises(CompileError) as caught:
        jit(strict=True)(X)
    text = str(caught.value)
    assert len(text.splitlines()) < 20
    assert "thunderFusion0, " in text and f"test_failures.py:{LINE})" in text
    assert "'x' was not declared" in text.splitlines()[0]
    assert all(path.is_file() for path in paths_in(text)) and len(paths_in(text)) == 2
    frames = {Path(frame.filename).name for frame in traceback.extract_tb(caught.tb)}
    assert not frames & {"toolchain.py", "threads.py", "compiler.py"}
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_definition_raises_it_too(compiler_is: Callable[[str], None]) -> None:
    compiler_is(REFUSES)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.from_pytorch(X)))
    with pytest.raises(CompileError, match="'x' was not declared") as caught:
        fd.execute([X])
    kernel, log = paths_in(str(caught.value))
    assert kernel.is_file() and log.is_file()


def test_a_rejected_kernel_is_in_the_dump(
    compiler_is: Callable[[str], None], tmp_path: Path
) -> None:
    compiler_is(REFUSES)
    (one,) = told(lambda: jit(dump=str(tmp_path / "dump"))(X))
    folder = tmp_path / "dump" / "thunderFusion0" / "fusion_0"
    assert folder.is_dir() and {path.parent for path in paths_in(str(one.message))} == {folder}
    assert {path.name for path in folder.iterdir()} >= STAGES
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


# ---- the system


def test_a_full_folder_of_temporary_files_is_named(compiler_is: Callable[[str], None]) -> None:
    """It fills up while the compiler writes, who tells of it as of an error in the kernel."""
    compiler_is(FULL)
    (one,) = told(lambda: jit()(X))
    text = str(one.message)
    assert f"temporary files {tempfile.gettempdir()}: " in text and "No space left" in text
    assert f"test_failures.py:{LINE})" in text and "set TMPDIR" in text
    with pytest.raises(ToolchainError, match="No space left on device"):
        jit(strict=True)(X)


def fails(error: Exception) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> Any:
        raise error

    return fail


# Calls of the system in a build, outside of what writes temporary files.
SYSTEM: dict[str, tuple[Any, str, Exception]] = {
    "too many files": (toolchain, "_own_program", OSError(errno.EMFILE, "Too many open files")),
    "no /proc": (toolchain, "_own_program", OSError(errno.ENOENT, "No such file", "/proc/self/x")),
    "no compiler": (compiler, "launcher_for", PermissionError(errno.EACCES, "denied", "/bin/g++")),
    "no memory": (compiler, "segment", MemoryError("no memory")),
    "full": (Path, "write_text", OSError(errno.ENOSPC, "No space left on device", "/tmp/a/b")),
}


@pytest.mark.parametrize("name", SYSTEM)
def test_an_error_of_the_system_falls_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, error = SYSTEM[name]
    monkeypatch.setattr(module, attribute, fails(error))
    (one,) = told(lambda: jit()(X))
    why = getattr(error, "strerror", "no memory")
    assert why in str(one.message).splitlines()[0]
    assert "bug" not in str(one.message) and "python" not in str(one.message)
    assert f"test_failures.py:{LINE})" in str(one.message)
    with pytest.raises((BuildError, ToolchainError), match=why) as caught:
        jit(strict=True)(X)
    cause = caught.value.__cause__
    assert cause is None or len(traceback.extract_tb(cause.__traceback__)) == 1
    assert len(str(caught.value).splitlines()) < 20


# ---- a bug


def test_a_bug_falls_back_and_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "emit", fails(AssertionError("a row of 7")))
    (one,) = told(lambda: jit()(X))
    text = str(one.message)
    assert "thunder_fuser has a bug: got AssertionError: a row of 7" in text
    assert f"test_failures.py:{LINE})" in text and "report it" in text
    (folder, _) = paths_in(text)
    assert {path.name for path in folder.iterdir()} >= STAGES - {"4_kernel_0.cpp"}
    with pytest.raises(BuildError) as caught:
        jit(strict=True)(X)
    cause = caught.value.__cause__
    assert isinstance(cause, AssertionError)
    assert len(traceback.extract_tb(cause.__traceback__)) > 1  # where the bug is


@pytest.mark.parametrize(
    "error", [LaunchError("kernel 0"), OptionError("option"), UserWarning("x")]
)
def test_what_is_no_failure_to_build_is_raised(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "launcher_for", fails(error))
    with pytest.raises(type(error)) as caught, options(compile_ahead=False):
        jit()(X)
    assert caught.value is error
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


@pytest.mark.parametrize("error", [AssertionError("a bug"), OSError(28, "full"), CompileError("k")])
def test_a_failure_keeps_no_argument_alive(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the collector comes, as a frame would that is in the traceback of its own error."""
    monkeypatch.setattr(compiler, "segment", fails(error))
    x, jitted = torch.rand(5, 3), jit()
    gc.collect()
    gc.disable()
    try:
        with pytest.warns(FallbackWarning):
            jitted(x)
        gone = weakref.ref(x)
        del x
        error.__traceback__ = None  # this test's own name for it
        assert gone() is None
    finally:
        gc.enable()


def test_a_build_that_works_keeps_nothing_and_says_nothing() -> None:
    assert told(lambda: jit()(X)) == []
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


# ---- dumps

# The function of the compiler that fails -> the files that are there then.
FAILING = {
    "run_passes": {"0_fusion.py"},
    "segment": {"0_fusion.py", "1_specialised.py"},
    "schedule": {"0_fusion.py", "1_specialised.py", "2_segments.txt"},
    "emit": STAGES - {"4_kernel_0.cpp"},
    "launcher_for": STAGES,
    "plan": STAGES,
}


@pytest.mark.parametrize("stage", FAILING)
def test_each_file_is_written_before_the_next_stage(
    stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that dies in a stage leaves the files of those before it."""
    found = []

    def look(*args: object, **kwargs: object) -> Any:
        found.append({path.name for path in tmp_path.glob("dump/*/*/*")})
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler, stage, look)
    with pytest.raises(KeyboardInterrupt):
        jit(dump=str(tmp_path / "dump"))(X)
    assert found == [FAILING[stage]]


def files(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def test_the_option_and_the_function_write_the_same(tmp_path: Path) -> None:
    """Two fusions, of which one runs on two shapes, and a torch call before a kernel."""

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.linalg.inv(torch.sin(x) + w) * 2.0)

    jitted = thunder.jit(model, executors=[fuser], fuser_dump=str(tmp_path / "option"))
    jitted(torch.rand(3, 3), torch.rand(3, 3))
    jitted(torch.rand(3, 3), torch.rand(3, 3).t())
    dump(jitted, tmp_path / "function")
    found = files(tmp_path / "option")
    assert found.pop("plan_0.txt").startswith("== read")
    assert found == files(tmp_path / "function")
    assert {path.split("/")[0] for path in found} == {"thunderFusion0", "thunderFusion1"}
    assert any("fusion_1" in path for path in found)


def twice(x: torch.Tensor) -> torch.Tensor:
    """Two equal fusions."""
    return torch.sin(torch.linalg.inv(torch.sin(x)))


def test_equal_fusions_are_dumped_under_each_name(tmp_path: Path) -> None:
    """They share kernels, and who looks for the second must find it."""
    root = tmp_path / "dump"
    thunder.jit(twice, executors=[fuser], fuser_dump=str(root))(torch.rand(3, 3))
    names = ["plan_0.txt", "thunderFusion0", "thunderFusion1"]
    assert sorted(path.name for path in root.iterdir()) == names


def test_a_definition_is_dumped_without_a_name(tmp_path: Path) -> None:
    with FusionDefinition() as fd, options(dump=str(tmp_path / "dump")):
        fd.add_output(fd.ops.exp(fd.from_pytorch(X)))
        fd.execute([X])
    assert {path.name for path in (tmp_path / "dump" / "fusion_0").iterdir()} > STAGES


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("write_text", "2_segments.txt"), ("mkdir", "fusion_0"),
        ("touch", "plan_0.txt"), ("open", "plan_0.txt"),
    ],
)  # fmt: skip
def test_a_disk_that_is_full_does_not_end_a_run(
    call: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    original = getattr(Path, call)

    def full(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, call, full)
    root, x = tmp_path / "dump", torch.eye(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = thunder.jit(twice, executors=[fuser], fuser_dump=str(root))(x)
    torch.testing.assert_close(result, twice(x))
    (text,) = [str(one.message) for one in caught if one.category is DumpWarning]
    assert str(root) in text and "No space left" in text
    assert not [one for one in caught if one.category is FallbackWarning]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "dump"):
        with pytest.raises(OptionError, match=f"option dump: expected a folder .*{root}"):
            thunder.jit(twice, executors=[fuser], fuser_dump=str(root))(torch.eye(3))


def test_errors_keep_what_they_know_of_files() -> None:
    error = CompileError("k", lines=("a",))
    error.log, error.folder = "words", Path("/x")
    moved = error.followed_by(["b"]).at("model.py:3")
    assert (moved.log, moved.folder) == ("words", Path("/x"))
    assert str(moved) == "k (at model.py:3)\na\nb" and moved.sentence == "k (at model.py:3)"
    assert moved.at("other.py:1") is moved and isinstance(moved, FuserError)
