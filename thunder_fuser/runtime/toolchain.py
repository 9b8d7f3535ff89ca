# SPDX-License-Identifier: Apache-2.0
"""C++ text -> a shared library, by the system's compiler.

Libraries live in one private directory per process, which goes away with it. The same text and
flags are built once, however many threads ask.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from thunder_fuser.errors import CompileError, ToolchainError
from thunder_fuser.once import Once

CANDIDATES = ("g++", "clang++", "c++")
CONTEXT_LINES = 3
MESSAGE_LIMIT = 4000


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler of this machine."""

    command: tuple[str, ...]
    path: str
    version: str

    @property
    def is_clang(self) -> bool:
        """Whether it is clang, which names some flags differently."""
        return "clang" in self.version


def find_compiler() -> Compiler:
    """The compiler of `CXX`, else the first of g++, clang++ and c++ on the path."""
    return _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@cache
def _find_compiler(requested: str, search_path: str) -> Compiler:
    commands = [shlex.split(requested)] if requested.strip() else [[name] for name in CANDIDATES]
    for command in commands:
        path = shutil.which(command[0], path=search_path)
        if path is not None:
            return Compiler((path, *command[1:]), path, _version((path, *command[1:])))
    raise ToolchainError(_no_compiler(requested))


def _no_compiler(requested: str) -> str:
    if requested.strip():
        return (
            f"CXX names the C++ compiler {requested!r}, which was not found; correct or unset CXX."
        )
    return "No C++ compiler was found; install g++ or clang++, or set CXX to one."


def _version(command: Sequence[str]) -> str:
    lines = _run([*command, "--version"]).stdout.splitlines()
    return lines[0] if lines else "unknown"


def build_shared_library(text: str, flags: Sequence[str]) -> Path:
    """Compiles and links `text`; flags that name libraries (-l...) go after the source."""
    compiler = find_compiler()
    digest = sha256("\0".join([text, *flags, *compiler.command]).encode()).hexdigest()
    key = (os.getpid(), digest)
    return _LIBRARIES.get(key, lambda: _build(compiler, text, tuple(flags), digest))


def _build(compiler: Compiler, text: str, flags: tuple[str, ...], digest: str) -> Path:
    folder = _private_directory(os.getpid())
    source, library = folder / f"{digest[:24]}.cpp", folder / f"{digest[:24]}.so"
    source.write_text(text, encoding="utf-8")
    before = [flag for flag in flags if not _is_library(flag)]
    after = [flag for flag in flags if _is_library(flag)]
    result = _run([*compiler.command, *before, "-o", str(library), str(source), *after])
    if result.returncode != 0:
        raise CompileError(describe_failure(compiler.path, result.stderr, text, str(source)))
    if not library.is_file():
        raise ToolchainError(
            f"The C++ compiler {compiler.path}", expected="a shared library", got="no file",
            do="set CXX to a working g++ or clang++",
        )
    return library


def _is_library(flag: str) -> bool:
    return flag.startswith("-l") or flag.endswith(".so")


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"LC_ALL": "C"}  # messages in English, to find the line in
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, check=False
        )
    except OSError as error:
        raise ToolchainError(f"The C++ compiler {command[0]} does not start: {error}.") from error


def describe_failure(compiler: str, log: str, text: str, source: str) -> str:
    """The compiler's words, without our path, and the numbered lines around the first error."""
    log = log.replace(source, "kernel").strip()
    if len(log) > MESSAGE_LIMIT:
        log = log[:MESSAGE_LIMIT] + "\n..."
    found = re.search(r"[:(](\d+)\)?:(?:\d+:)?\s*(?:fatal |catastrophic )?error", log)
    excerpt = "\n" + numbered_lines(text, int(found.group(1))) if found else ""
    return f"{compiler} refused a generated kernel.\n{log}{excerpt}"


def numbered_lines(text: str, line: int) -> str:
    """The lines around `line` (counted from 1), which is marked.

    >>> print(numbered_lines("a\\nb\\nc", 2))
       1 | a
    >  2 | b
       3 | c
    """
    lines = text.splitlines()
    first = max(line - CONTEXT_LINES, 1)
    last = min(line + CONTEXT_LINES, len(lines))
    return "\n".join(
        f"{'>' if number == line else ' '} {number:2d} | {lines[number - 1]}"
        for number in range(first, last + 1)
    )


@cache
def _private_directory(process: int) -> Path:
    """A directory only this user can enter; a forked child gets its own."""
    folder = Path(tempfile.mkdtemp(prefix="thunder_fuser-"))
    atexit.register(_remove, folder, process)
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


_LIBRARIES: Once[Path] = Once({})
