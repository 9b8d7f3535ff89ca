# SPDX-License-Identifier: Apache-2.0
"""C++ text -> a library in this process, by the system's compiler or from the store.

A library is loaded once, however many ask, and unloaded when nothing holds a function of it. Its
file is gone as soon as it is loaded: nothing is left behind, also by a process that is killed.
"""

import _ctypes
import ctypes
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

from thunder_fuser.errors import CompileError, ToolchainError
from thunder_fuser.once import Once
from thunder_fuser.runtime import binaries
from thunder_fuser.runtime.binaries import binary
from thunder_fuser.store.entry import Recipe

CANDIDATES = ("g++", "clang++", "c++")
CONTEXT_LINES = 3
MESSAGE_LIMIT = 4000


class Library:
    """A library of this process; unloaded when nothing holds it or a function of it.

    Not a ctypes.CDLL: a function of one refers to itself, and so would stay until a collection.
    """

    def __init__(self, path: str) -> None:
        handle = _ctypes.dlopen(path, os.RTLD_NOW)
        finalize(self, _ctypes.dlclose, handle).atexit = False
        self._handle = handle

    def address(self, name: str) -> int:
        """Where a function begins."""
        return int(_ctypes.dlsym(self._handle, name))

    def function(self, name: str, argument_types: Sequence[Any], result: Any = None) -> Any:
        """A function, which holds its library; it runs without Python's lock."""
        made = _FUNCTION(self.address(name))  # ctypes would keep a type for each signature
        made.argtypes, made.restype = list(argument_types), result
        made.library = self  # type: ignore[attr-defined]
        return made


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler of this machine."""

    command: tuple[str, ...]
    path: str
    version: str

    @property
    def fingerprint(self) -> str:
        """What changes when the compiler does, also where another one says the same version."""
        size = os.stat(self.path).st_size  # not by a Path, which interns every part of its name
        glibc = os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else ""
        return f"{self.version} ({' '.join(self.command)}, {size} bytes), {glibc}"

    @property
    def is_clang(self) -> bool:
        """Whether it is clang, which names some flags differently."""
        return "clang" in self.version

    @property
    def kernel_flags(self) -> tuple[str, ...]:
        """Those of a library of one kernel: it has neither constructors nor link-time
        optimization, and is linked faster without what serves them."""
        return () if self.is_clang else ("-fno-use-linker-plugin", "-nostartfiles")


def find_compiler() -> Compiler:
    """The compiler of `CXX`, else the first of g++, clang++ and c++ on the path."""
    return _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@lru_cache(maxsize=16)
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


def load_library(
    name: str, text: str, flags: Sequence[str], beside: Mapping[str, bytes] | None = None
) -> Library:
    """Compiles, links and loads `text`; flags that name libraries (-l...) go after the source.

    beside: libraries to link with, by file name, which must be their soname and say all they hold.
    """
    recipe = library_recipe(name, text, flags, beside or {})
    return _LOADED.get(recipe.key, lambda: _load(name, library(recipe, beside or {})))


def forget() -> None:
    """From here on every library is loaded anew, from the store; who holds an old one keeps it."""
    binaries.forget()
    _LOADED.values.clear()


def library_recipe(
    name: str, text: str, flags: Sequence[str], beside: Mapping[str, bytes]
) -> Recipe:
    """All that a library of this machine depends on."""
    wanted = (*flags, *beside)
    return Recipe("library", name, text, machine(), wanted, find_compiler().fingerprint)


def library(recipe: Recipe, beside: Mapping[str, bytes]) -> bytes:
    """The bytes of a library."""
    return binary(recipe, lambda: _build(find_compiler(), recipe, beside))


def _build(compiler: Compiler, recipe: Recipe, beside: Mapping[str, bytes]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="thunder_fuser-") as path:
        folder = Path(path)  # mode 0700
        source, made = folder / "kernel.cpp", folder / "kernel.so"
        source.write_text(recipe.text, encoding="utf-8")
        for name, content in beside.items():
            (folder / name).write_bytes(content)
        flags = [flag for flag in recipe.flags if flag not in beside]
        before = [flag for flag in flags if not _is_library(flag)]
        after = [*(str(folder / n) for n in beside), *(f for f in flags if _is_library(f))]
        result = _run([*compiler.command, *before, "-o", str(made), str(source), *after])
        if result.returncode != 0:
            log = describe_failure(compiler.path, result.stderr, recipe.text, str(source))
            raise CompileError(log)
        if not made.is_file():
            raise ToolchainError(
                f"The C++ compiler {compiler.path}", expected="a shared library", got="no file",
                do="set CXX to a working g++ or clang++",
            )
        return made.read_bytes()


def _load(name: str, content: bytes) -> Library:
    """The library of these bytes: they were checked, and no file that others know is read again."""
    if not _is_for(content, _own_program()):
        raise ToolchainError(f"library {name}", expected="one for this machine", got="another")
    with tempfile.TemporaryDirectory(prefix="thunder_fuser-") as folder:  # mode 0700
        path = os.path.join(folder, f"{name}.so")
        with open(path, "wb") as file:
            file.write(content)
        try:
            return Library(path)
        except OSError as error:  # a folder that may not hold programs
            raise ToolchainError("a built kernel", expected="to load", got=str(error)) from error


def _is_for(library: bytes, program: bytes) -> bool:
    """Whether both are ELF files of one word size, byte order and instruction set."""
    sets = [struct.unpack_from("<H", one, 18) for one in (library, program) if len(one) >= 20]
    return library[:6] == program[:6] and len(sets) == 2 and sets[0] == sets[1]


@cache
def _own_program() -> bytes:
    with open("/proc/self/exe", "rb") as program:
        return program.read(64)


@cache
def machine() -> str:
    """The instruction set, and a digest of what this CPU can do, for -march=native."""
    facts = ("model name", "flags", "Features", "CPU part", "cpu family", "model", "stepping")
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        first = platform.processor()
    lines = [line for line in first.splitlines() if line.split("\t")[0].rstrip(": ") in facts]
    model = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "CPU")
    return f"{platform.machine()}, {model}, {sha256(chr(10).join(lines).encode()).hexdigest()[:12]}"


def _is_library(flag: str) -> bool:
    return flag.startswith("-l")


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


_FUNCTION = ctypes.CFUNCTYPE(None)

# By key. Weak: what nothing holds is unloaded.
_LOADED: Once[Library] = Once(WeakValueDictionary())
