# SPDX-License-Identifier: Apache-2.0
"""Turns an exception during the build of a fusion into a typed error with the files to look at.

After a rejected kernel, a broken rule of an IR, or a bug, the stages before it are dumped: into the
folder of the option dump, else into a temporary one that stays. An error in the user's arguments or
in the toolchain needs no files.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from thunder_fuser.base.dump import Dump
from thunder_fuser.errors import (
    BuildError,
    CompileError,
    FuserError,
    GivenScheduleError,
    ScheduleError,
    VerifyError,
)

OF_SYSTEM = (OSError, MemoryError)
_OF_COMPILING = (CompileError, ScheduleError, VerifyError)


@contextmanager
def explaining(dump: Dump) -> Iterator[None]:
    """Makes an exception that leaves the block a typed error, which names files that explain it."""
    try:
        yield
    except Exception as error:
        raise _explained(error, dump)  # noqa: B904  it has its cause; no variable keeps it alive


def _explained(error: Exception, dump: Dump) -> Exception:
    is_typed = isinstance(error, (FuserError, Warning))  # a filter may raise a warning as an error
    is_own = isinstance(error, GivenScheduleError) or not isinstance(error, _OF_COMPILING)
    if is_typed and is_own:
        return error
    failure = build_error(error)
    return failure if isinstance(error, OF_SYSTEM) else _with_files(failure, dump)


def build_error(error: Exception) -> FuserError:
    """The error if it is typed, else a BuildError with it as the cause."""
    if isinstance(error, FuserError):
        return error
    failure = _of_system(error) if isinstance(error, OF_SYSTEM) else _of_bug(error)
    failure.__cause__ = error
    return failure


def cause_of(error: FuserError) -> str:
    """A text that is equal for similar failures: it has no kernel names or line numbers."""
    text = re.sub(r"\bfused_\w+", "kernel", error.sentence)  # see analysis/names.py
    is_bug = isinstance(error, (CompileError, BuildError))
    return re.sub(r"\d+", "", text) if is_bug else text


def with_innermost_frame(error: BaseException | None) -> BaseException | None:
    """The error. If it is the system's, its traceback keeps only the frame that raised it, because
    the compiler's frames say nothing about, for example, a full disk.
    """
    frames = error.__traceback__ if isinstance(error, OF_SYSTEM) else None
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return error if error is None or frames is None else error.with_traceback(frames)


def _of_system(error: OSError | MemoryError) -> BuildError:
    """The error for the system's. A temporary file's random name must not be in the sentence, or
    `cause_of` would differ."""
    file = getattr(error, "filename", None)
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return BuildError(
        "A fusion could not be built: the system refused", got=why,
        lines=(f"file: {file}",) * bool(file),
    )  # fmt: skip


def _of_bug(error: Exception) -> BuildError:
    message = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    place = "".join(f" in {frame.filename}:{frame.lineno}" for frame in frames[-1:])
    return BuildError(
        "A fusion could not be built, because thunder_fuser has a bug", got=f"{message}{place}",
        do="report it with the text of the stages",
    )  # fmt: skip


def _with_files(failure: FuserError, dump: Dump) -> FuserError:
    files = _add_kernel(failure, dump) if isinstance(failure, CompileError) else ()
    try:
        failure.folder = dump.keep()
    except OSError as error:
        return failure.followed_by([f"its stages could not be kept: {error}"])
    named = zip(("kernel", "compiler's output"), files, strict=False)
    lines = [f"{what}: {failure.folder / name}" for what, name in named]
    return failure.followed_by(lines or [f"text of the stages: {failure.folder}"])


def _add_kernel(failure: CompileError, dump: Dump) -> tuple[str, ...]:
    """Adds the compiler's log, and the kernel as it read it (the emulator adds more text)."""
    for name, text in zip(failure.files, (failure.text, failure.log), strict=False):
        dump.add(name, text or "(nothing)\n")
    return failure.files
