# SPDX-License-Identifier: Apache-2.0
"""C++ source -> a library in this process, built by the system's compiler or found in the store.

A library is loaded once, and unloaded when nothing refers to its functions. Its file is removed as
soon as it is loaded, so that a killed process leaves no files.
"""

import _ctypes
import ctypes
import os
import platform
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

from thunder_fuser.base.threads import SingleFlight, first_time
from thunder_fuser.base.warn import warn_at
from thunder_fuser.errors import CompileError, SlowCompileWarning, ToolchainError
from thunder_fuser.options import option
from thunder_fuser.runtime import binaries, processes
from thunder_fuser.runtime.binaries import binary
from thunder_fuser.runtime.processes import Ended
from thunder_fuser.runtime.rejected import rejected
from thunder_fuser.store.entry import Binary, Recipe, problem_of

CANDIDATES = (["g++"], ["clang++"], ["c++"])
VERSION_SECONDS = 30  # the time limit for a compiler's version
SLOW_SECONDS = 30  # after these, a warning says what the process waits for
CANNOT_START = (126, 127)  # the shell's exit statuses if it cannot start the compiler
# The compilers' messages if a folder cannot be written.
NO_ROOM = ("No space left on device", "Disk quota exceeded", "Read-only file system")
WORKING = "set CXX to a working g++ or clang++"


class Library:
    """A library of this process, unloaded when nothing refers to it or its functions.

    It is no ctypes.CDLL, whose functions are reference cycles that stay until a garbage collection.
    name: of the function for which it was compiled.
    """

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        handle = _ctypes.dlopen(path, os.RTLD_NOW)
        finalize(self, _ctypes.dlclose, handle).atexit = False
        self._handle = handle

    def address(self, name: str) -> int:
        """The address of a function."""
        try:
            return int(_ctypes.dlsym(self._handle, name))
        except OSError as error:
            raise ToolchainError(
                "a built kernel", expected=f"the function {name}", got="none", do=WORKING
            ) from error

    def function(self, name: str, argument_types: Sequence[Any], result: Any = None) -> Any:
        """A function. It keeps its library loaded, and runs without Python's global lock."""
        function = _FUNCTION(self.address(name))  # one type: ctypes caches that of each signature
        function.argtypes, function.restype = list(argument_types), result
        function.library = self  # type: ignore[attr-defined]
        return function


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler of this machine."""

    command: tuple[str, ...]
    version: str

    @property
    def path(self) -> str:
        return self.command[0]

    @property
    def fingerprint(self) -> str:
        """A text that differs between compilers, even if their versions are equal."""
        try:
            size = os.stat(self.path).st_size  # a Path would intern every part of its name
        except OSError as error:
            raise ToolchainError(
                f"The C++ compiler {self.path} is gone: {error.strerror}; {WORKING}."
            ) from error
        glibc = os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else ""
        return f"{self.version} ({' '.join(self.command)}, {size} bytes), {glibc}"

    @property
    def is_clang(self) -> bool:
        """True for clang, some of whose flags have other names."""
        return "clang" in self.version

    @property
    def kernel_flags(self) -> tuple[str, ...]:
        """Flags for a library with one kernel. It links faster without support for constructors
        and link-time optimization, which it does not need."""
        return () if self.is_clang else ("-fno-use-linker-plugin", "-nostartfiles")


def find_compiler() -> Compiler:
    """The compiler of `CXX`, else the first of g++, clang++ and c++ on the path."""
    return _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@lru_cache(maxsize=16)
def _find_compiler(requested: str, search_path: str) -> Compiler:
    try:
        commands = [shlex.split(requested)] if requested.strip() else CANDIDATES
    except ValueError as error:
        raise ToolchainError(
            "CXX", expected="a shell command line", got=f"{requested!r} ({error})",
            do="correct or unset CXX",
        ) from error
    for name, *flags in commands:
        path = shutil.which(name, path=search_path)
        if path is not None:
            words = _run([path, *flags, "--version"], {}, VERSION_SECONDS).output.splitlines()
            return Compiler((path, *flags), words[0] if words else "unknown")
    if requested.strip():
        raise ToolchainError(
            f"CXX names the C++ compiler {requested!r}, which was not found; correct or unset CXX."
        )
    raise ToolchainError(
        "No C++ compiler was found; install g++ or clang++, or set CXX to one."
    )


def load_library(
    name: str, text: str, flags: Sequence[str], beside: Mapping[str, bytes] = {}
) -> Library:
    """Compiles, links and loads source. Flags for libraries (-l...) come after the source file.

    beside: {file name: library to link with}. The name must be the soname, and unique for the
    content.
    """
    recipe = library_recipe(name, text, flags, beside)
    return _LOADED.get(recipe.key, lambda: _load(library(recipe, beside)))


def forget() -> None:
    """Later calls load every library from the store again. Loaded libraries stay in use."""
    binaries.forget()
    _LOADED.values.clear()


def library_recipe(
    name: str, text: str, flags: Sequence[str], beside: Mapping[str, bytes] = {}
) -> Recipe:
    """The recipe of a library for this machine."""
    wanted = (*flags, *beside)
    return Recipe("library", name, text, machine(), wanted, find_compiler().fingerprint)


def library(recipe: Recipe, beside: Mapping[str, bytes] = {}) -> Binary:
    """Finds or builds a library: its bytes, and the name of its function."""
    return binary(recipe, lambda: _build(find_compiler(), recipe, beside))


def _build(compiler: Compiler, recipe: Recipe, beside: Mapping[str, bytes]) -> bytes:
    """Builds a library and loads it once, because only libraries that load are stored."""
    with _scratch() as path:
        folder = Path(path)
        source, output = folder / "kernel.cpp", folder / "kernel.so"
        source.write_text(recipe.text, encoding="utf-8")
        for name, other in beside.items():
            (folder / name).write_bytes(other)
        flags = [flag for flag in recipe.flags if flag not in beside]
        before = [flag for flag in flags if not flag.startswith("-l")]
        after = [*(str(folder / n) for n in beside), *(f for f in flags if f.startswith("-l"))]
        command = [*compiler.command, *before, "-o", str(output), str(source), *after]
        # The compiler's temporary files are in this folder, which is removed even if it is killed.
        ended = _run(command, {"TMPDIR": str(folder)}, int(option("compile_seconds")))
        if ended.status != 0:
            raise _failure(compiler, ended, recipe.text, folder)
        content = output.read_bytes() if output.is_file() else b""
    problem = problem_of(content, recipe.name) if content else "no file"
    if problem:
        raise ToolchainError(
            f"The C++ compiler {compiler.path}", expected="a shared library", got=problem,
            do=WORKING,
        )
    _load(Binary(recipe.name, content))
    _ANSWERED.add(compiler.path)
    return content


@contextmanager
def _scratch() -> Iterator[str]:
    """A private folder (mode 0700), removed at the end of the block. ToolchainError if the disk is
    full."""
    try:
        with tempfile.TemporaryDirectory(prefix="thunder_fuser-") as path:
            yield path  # a Path would intern every part of its name
    except OSError as error:
        raise _no_room(error.strerror or str(error)) from error


def _no_room(why: str) -> ToolchainError:
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:  # Python found no folder that can be written
        folder = os.environ.get("TMPDIR", "")
    return ToolchainError(
        f"The folder of temporary files {folder}".rstrip(),
        expected="disk space to compile a kernel", got=why,
        do="set TMPDIR to a folder that can be written",
    )  # fmt: skip


def _failure(
    compiler: Compiler, ended: Ended, text: str, folder: Path
) -> CompileError | ToolchainError:
    # Removes random names, so that equal failures have equal messages.
    words = re.sub(rf"{re.escape(str(folder))}/(cc\w+)?", "", ended.errors).strip()
    if ended.status in CANNOT_START:
        return ToolchainError(f"The C++ compiler {compiler.path} does not start: {words}.")
    if ended.signal is not None:
        return ToolchainError(
            f"The C++ compiler {compiler.path}", expected="a shared library",
            got=f"{ended.signal.name} (exit status {ended.status}) {words}".rstrip(),
        )
    if (why := next((phrase for phrase in NO_ROOM if phrase in words), "")):
        return _no_room(why)
    return rejected(f"{compiler.path} (exit status {ended.status})", words, text, "kernel.cpp")


def _load(built: Binary) -> Library:
    """Loads the bytes of a library through a file in a private folder."""
    name, content = built
    if _platform(content) != _platform(_own_program()):
        raise ToolchainError(f"library {name}", expected="one for this machine", got="another")
    with _scratch() as folder:
        path = os.path.join(folder, f"{name}.so")
        with open(path, "wb") as file:
            file.write(content)
        try:
            return Library(name, path)
        except OSError as error:  # a folder on a file system without execute permission
            words = str(error).replace(f"{folder}/", "")
            raise ToolchainError(
                "a built kernel", expected="to load", got=words,
                do="set TMPDIR to a folder that may hold programs, or CXX to another compiler",
            ) from error


def _platform(program: bytes) -> bytes:
    """The word size, byte order and instruction set of an ELF file."""
    return program[:6] + program[18:20]


@cache
def _own_program() -> bytes:
    with open("/proc/self/exe", "rb") as program:
        return program.read(64)


@cache
def machine() -> str:
    """The instruction set and a digest of this CPU's features, for -march=native."""
    facts = ("model name", "flags", "Features", "CPU part", "cpu family", "model", "stepping")
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        first = platform.processor()
    lines = [line for line in first.splitlines() if line.split("\t")[0].rstrip(": ") in facts]
    model = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "CPU")
    return f"{platform.machine()}, {model}, {sha256(chr(10).join(lines).encode()).hexdigest()[:12]}"


def _run(command: Sequence[str], environment: dict[str, str], limit: int) -> Ended:
    """Runs the compiler. ToolchainError if it does not start or does not end in time."""
    path, limit = command[0], min(limit, int(option("compile_seconds")))
    asked = (path, limit)
    silent = ToolchainError(
        f"The C++ compiler {path}", expected=f"an end within {limit} seconds", got="none",
        do=f"{WORKING}, or raise the option compile_seconds",
    )
    if asked in _SILENT:
        raise silent
    try:
        # With LC_ALL=C messages are in English, so that the line with the error can be found.
        return processes.run(
            command, os.environ | {"LC_ALL": "C"} | environment, limit,
            lambda seconds: _warn_if_slow(path, seconds, limit),
        )
    except processes.TooLongError as error:
        if path not in _ANSWERED:
            _SILENT.add(asked)
        raise silent from error
    except OSError as error:
        raise ToolchainError(f"The C++ compiler {path} does not start: {error}.") from error


def _warn_if_slow(path: str, seconds: float, limit: int) -> None:
    if seconds > SLOW_SECONDS and first_time(("slow", path)):
        warn_at(
            "", f"The C++ compiler {path} has worked on one kernel for {SLOW_SECONDS} seconds; it"
            f" is stopped after {limit} (option compile_seconds).", SlowCompileWarning,
        )


_FUNCTION = ctypes.CFUNCTYPE(None)

_ANSWERED: set[str] = set()  # compilers that have compiled a kernel in this process
# (compiler, time limit) for compilers that never have, and exceeded the limit. They are not called
# again, because each kernel would wait as long.
_SILENT: set[tuple[str, int]] = set()

# By recipe key. The values are weak, so that an unreferenced library is unloaded.
_LOADED: SingleFlight[Library] = SingleFlight(WeakValueDictionary())
