# SPDX-License-Identifier: Apache-2.0
"""Compilers that do not do as they should: typed errors or torch ops, and nothing bad is stored."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers.forked import Job, fork_all
from helpers.without_torch import TESTS, printed

from thunder_fuser import FusionCache, FusionDefinition
from thunder_fuser.errors import (
    CompileError,
    FallbackWarning,
    FuserError,
    SlowCompileWarning,
    ToolchainError,
)
from thunder_fuser.explain.jitted import jit
from thunder_fuser.options import options
from thunder_fuser.runtime import processes, toolchain
from thunder_fuser.store.store import Store, current_store

SHARED = ("-shared", "-fPIC")
# The functions of the kernels here.
KERNELS = [f"fused_{ops}_f32_pointwise" for ops in ("exp", "sin", "tanh", "cos", "sin_add")]
# A shell script that looks like a compiler: then $2 is the file to write.
FRONT = """#!/bin/sh
[ "$1" = --version ] && { echo "odd c++ 1.0"; exit; }
real=%s
all="$*"
source=$TMPDIR/kernel.cpp
while [ "$1" != -o ]; do shift; done
"""

Compiler = Callable[[str], None]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store that holds nothing, and a process that remembers nothing."""
    toolchain.forget()
    with options(cache_dir=str(tmp_path / "store")), FusionCache():
        found = current_store()
        assert found is not None
        yield found
    toolchain.forget()


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store) -> Compiler:
    """Makes a script the compiler of this process and those that it starts."""
    real = toolchain.find_compiler().path
    path = tmp_path / "odd-c++"

    def use(body: str) -> None:
        text = body if body.startswith("#!") else FRONT % real + body + "\n"
        path.write_text(text)
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return use


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files that a compiler may leave behind."""
    texts = {
        "good": "".join(f'extern "C" int {name}() {{ return 7; }}' for name in KERNELS),
        "other": 'extern "C" int other() { return 7; }',
        "undefined": 'extern "C" int missing();'
        + "".join(f'extern "C" int {name}() {{ return missing(); }}' for name in KERNELS),
    }
    folder = tmp_path_factory.mktemp("files")
    for name, text in texts.items():
        command = [toolchain.find_compiler().path, *SHARED, "-xc++", "-", "-o", folder / name]
        subprocess.run(command, input=text, text=True, check=True)
    whole = (folder / "good").read_bytes()
    contents = {
        "half": whole[: len(whole) // 2],
        "beginning": whole[:200],
        "all but a byte": whole[:-1],
        "empty": b"",
        "garbage": b"\x7fELF" + bytes(range(256)) * 40,
        "zeros": bytes(len(whole)),
        "another machine's": whole[:18] + b"\xf3" + whole[19:],
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {path.name: path for path in folder.iterdir()}


# What it leaves -> the words that name it.
LEFT = {
    "half": "only its beginning",
    "beginning": "only its beginning",
    "all but a byte": "only its beginning",
    "empty": "no file",
    "garbage": "no library",
    "zeros": "no library",
    "other": r"without the function fused_\w+_f32_pointwise",
    "undefined": "undefined symbol: missing",
    "another machine's": "one for this machine, got another",
}
# What it does -> the error and words.
DONE: dict[str, tuple[type[FuserError], str]] = {
    "kill -SEGV $$": (ToolchainError, r"SIGSEGV \(exit status 139\)"),
    "kill -KILL $$": (ToolchainError, r"SIGKILL \(exit status 137\)"),
    "echo 'no licence' >&2; exit 3": (CompileError, r"\(exit status 3\).*no licence"),
    "echo $source:$$: error: no >&2; exit 1": (CompileError, r"refused a generated kernel"),
    "echo $TMPDIR/cc$$.s: fatal error: no room >&2; exit 1": (CompileError, "error: no room"),
    "exit 0": (ToolchainError, "got no file"),
    "mkdir $2": (ToolchainError, "got no file"),
    "#!/no/such/interpreter\n": (ToolchainError, "does not start"),
    "sleep 600 & sleep 600": (ToolchainError, "an end within 1 seconds, got none"),
    "#!/bin/sh\nsleep 600\n": (ToolchainError, "an end within 1 seconds, got none"),
}


def definition(x: torch.Tensor) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.from_pytorch(x)))
    return fd


def check_refused(store: Store, kind: type[FuserError], words: str) -> None:
    """A definition raises, a jit call raises where it is strict, else runs torch and warns once."""
    x = torch.rand(5, 3)
    words = f"(?s){words}"
    with pytest.raises(kind, match=words):
        definition(x).execute([x], target="cpu")
    with pytest.raises(kind, match=words):
        jit(torch.sin, strict=True)(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for function in (torch.tanh, torch.cos, lambda x: torch.sin(x) + 2.0):
            for value in (x, x[:, :2]):
                torch.testing.assert_close(jit(function)(value), function(value))
    told = [one for one in caught if one.category is FallbackWarning]
    assert len(told) == 1, [str(one.message) for one in told]
    assert store.stored_files() == []


@pytest.mark.parametrize("name", LEFT)
def test_a_file_that_is_no_library(
    store: Store, compiler: Compiler, files: dict[str, Path], name: str
) -> None:
    compiler(f'cp "{files[name]}" "$2"')
    check_refused(store, ToolchainError, LEFT[name])


@pytest.mark.parametrize("body", DONE)
def test_a_compiler_that_fails(store: Store, compiler: Compiler, body: str) -> None:
    compiler(body)
    with options(compile_seconds=1):
        check_refused(store, *DONE[body])


@pytest.mark.parametrize("text", ["'", '"a', "no-such-compiler", "/", "''", "a\\"])
def test_a_variable_that_names_no_compiler(
    store: Store, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("CXX", text)
    check_refused(store, ToolchainError, "correct or unset CXX")


def test_a_compiler_that_goes(store: Store, compiler: Compiler) -> None:
    compiler("exit 1")
    path = Path(toolchain.find_compiler().path)
    path.unlink()
    with pytest.raises(ToolchainError, match=rf"{re.escape(str(path))} is gone: No such file"):
        toolchain.load_library("f", 'extern "C" void f() {}', SHARED)


def test_a_silent_compiler_is_asked_once(
    store: Store, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep each kernel waiting as long; one that has made a kernel is asked again."""
    monkeypatch.setattr(toolchain, "SLOW_SECONDS", 0)
    compiler(f"echo x >> {tmp_path}/asked; [ -e {tmp_path}/works ] || sleep 600; $real $all")

    def load(number: int) -> None:
        toolchain.load_library("f", f'extern "C" int f() {{ return {number}; }}', SHARED)

    with options(compile_seconds=1), pytest.warns(SlowCompileWarning, match="is stopped after 1"):
        for _ in range(3):
            with pytest.raises(ToolchainError, match="raise the option compile_seconds"):
                load(0)
    assert (tmp_path / "asked").read_text() == "x\n"
    (tmp_path / "works").touch()
    load(1)  # with the default, which is longer
    (tmp_path / "works").unlink()
    with options(compile_seconds=2):
        for number in (2, 3):
            with pytest.raises(ToolchainError):
                load(number)
    assert (tmp_path / "asked").read_text() == "x\n" * 4


def test_what_it_leaves_running_is_not_waited_for(store: Store, compiler: Compiler) -> None:
    """Such as a server that caches: it holds the compiler's output open."""
    compiler("sleep 90 & $real $all")
    with options(compile_seconds=60):
        toolchain.load_library("f", 'extern "C" void f() {}', SHARED)


# ---- no room for temporary files


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.ENOENT, errno.EROFS])
def test_no_room_for_temporary_files(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def full(*args: object, **kwargs: object) -> str:
        raise OSError(error, os.strerror(error), f"/tmp/{os.urandom(4).hex()}")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    check_refused(store, ToolchainError, f"to compile a kernel, got {os.strerror(error)}")


def test_a_temporary_folder_that_is_gone(
    store: Store, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    check_refused(store, ToolchainError, "got No such file or directory.*set TMPDIR")


def test_no_room_for_the_script(
    store: Store, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only for the kernel: the script that would show the failure again is not written."""
    compiler("echo kernel.cpp:1: error: odd >&2; exit 1")
    make = tempfile.mkdtemp

    def full(suffix: str | None = None, prefix: str | None = None, dir: str | None = None) -> str:
        if prefix == "thunder_fuser-failed-":
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(suffix, prefix, dir)

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    x = torch.rand(4)
    with pytest.warns(FallbackWarning, match=r"No script .* written \(No space left on device\)"):
        torch.testing.assert_close(jit(torch.exp)(x), torch.exp(x))


# ---- interrupted and killed


def are_gone(pids: Path, within: float = 20.0) -> bool:
    """Whether all processes whose numbers the file holds end."""
    end = time.monotonic() + within
    numbers = pids.read_text().split()
    assert numbers
    while any(_runs(number) for number in numbers):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _runs(number: str) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def left_in(store: Store, within: float = 20.0) -> list[str]:
    """What stays; what compiled ahead of the call, in another thread, gives its lock back, too."""
    end = time.monotonic() + within
    while any(store.root.iterdir()) and time.monotonic() < end:
        time.sleep(0.02)
    return [path.name for path in store.root.iterdir()]


def test_an_interrupt_ends_the_compiler(
    store: Store, compiler: Compiler, tmp_path: Path, interruptible: None
) -> None:
    """And passes through; the same function compiles when it is called again."""
    pids, again = tmp_path / "pids", tmp_path / "again"
    compiler(
        f"[ -e {again} ] && exec $real $all\n"
        # Later, so that the call waits for what is compiled ahead of it.
        f"sleep 600 & echo $$ $! >> {pids}; sleep 0.5; kill -INT {os.getpid()}; wait"
    )
    x = torch.rand(6, 2)
    function, fd = jit(lambda x: torch.exp(x) * 2.0), definition(x)
    for call in (lambda: function(x), lambda: fd.execute([x], target="cpu")):
        with pytest.raises(KeyboardInterrupt):
            call()
        assert are_gone(pids)
        assert left_in(store) == []
    again.touch()
    torch.testing.assert_close(function(x), torch.exp(x) * 2.0)
    torch.testing.assert_close(fd.execute([x], target="cpu")[0], torch.exp(x))
    # The process's first call also builds the launcher in C.
    names = [one.entry.fields["name"] for one in store.entries() if one.entry]
    assert len([name for name in names if name.startswith("fused_")]) == 2


LOADS = """
import os, sys
from thunder_fuser.options import options
from thunder_fuser.runtime import toolchain
os.environ["PARENT"] = str(os.getpid())
text = 'extern "C" int seven() { return 7; }'
with options(cache_dir=sys.argv[1]):
    toolchain.load_library("seven", text, ("-shared", "-fPIC"))
"""


def test_a_kill_9_ends_the_compiler(store: Store, compiler: Compiler, tmp_path: Path) -> None:
    """The next process compiles: no lock is held and no half of a kernel is stored."""
    pids, again = tmp_path / "pids", tmp_path / "again"
    compiler(
        f"[ -e {again} ] && exec $real $all\n"
        f"sleep 600 & echo $$ $! >> {pids}; kill -KILL $PARENT; wait"
    )
    command = [sys.executable, "-c", LOADS, str(store.root)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True, check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert are_gone(pids)
    assert store.stored_files() == []
    again.touch()
    printed(LOADS, str(store.root))
    assert len(store.stored_files()) == 1 and all(one.entry for one in store.entries())


# ---- several processes


EXECUTED = """
import torch
from thunder_fuser import FusionDefinition
x = torch.full((9,), 2.0)
with FusionDefinition() as fd:
    fd.add_output(fd.ops.exp(fd.from_pytorch(x)))
torch.testing.assert_close(fd.execute([x], target="cpu"), [x.exp()])
"""


def test_workers_compile_one_kernel_once(
    store: Store, compiler: Compiler, tmp_path: Path
) -> None:
    """With a compiler that takes long: the second waits for the first."""
    compiler(f"echo x >> {tmp_path}/asked; sleep 2; exec $real $all")
    environment = {
        "CXX": os.environ["CXX"], "THUNDER_FUSER_CACHE_DIR": str(store.root),
        "THUNDER_FUSER_NATIVE_CALLS": "0",  # it would be compiled too
    }  # fmt: skip
    script, said = tmp_path / "worker.py", tmp_path / "said"
    script.write_text(EXECUTED)
    job = Job([str(script)], str(said), str(said), environment)
    assert fork_all([job, job]) == [0, 0], said.read_text()
    assert (tmp_path / "asked").read_text() == "x\n"
    kinds = [one.entry.fields["kind"] for one in store.entries() if one.entry]
    assert sorted(kinds) == ["library", "plan"]


# ---- what runs the compiler


def run(*command: str, limit: float = 60.0) -> processes.Ended:
    return processes.run(command, os.environ, limit, lambda seconds: None)


def test_how_a_command_ends() -> None:
    ended = run("/bin/sh", "-c", "echo out; echo words >&2; exit 5")
    assert (ended.status, ended.output, ended.errors, ended.signal) == (5, "out\n", "words\n", None)
    for one in (signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGBUS):
        assert run("/bin/sh", "-c", f"kill -{one.name[3:]} $$").signal is one
    assert run("/bin/sh", "-c", "kill -KILL 0").signal is signal.SIGKILL  # the whole group
    many = run("/bin/sh", "-c", "head -c 300000 /dev/zero; cat")
    assert len(many.output) == 300000 and many.status == 0  # its input is empty
    assert run("/bin/echo", "$(x)", "a b", "'").output == "$(x) a b '\n"  # nothing is expanded


def test_no_descriptor_is_left() -> None:
    run("/bin/true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run("/bin/true")
        with pytest.raises(processes.TooLongError):
            run("/bin/sleep", "60", limit=0.01)
    assert len(os.listdir("/proc/self/fd")) == before
