# SPDX-License-Identifier: Apache-2.0
"""An exception that ended the build of a fusion -> a typed error that names the files to look at.

A rejected kernel, a broken rule of an IR and a bug leave a dump of the stages before them: in the
folder of the option dump, else in a temporary one that stays. An error in the user's own arguments
or in the toolchain says all itself.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from thunder_fuser.dump import Dump
from thunder_fuser.errors import (
    BuildError,
    CompileError,
    FuserError,
    GivenScheduleError,
    ScheduleError,
    VerifyError,
)

OF_SYSTEM = (OSError, MemoryError)
_OF_WHAT_WAS_MADE = (CompileError, ScheduleError, VerifyError)


@contextmanager
def explaining(dump: Dump) -> Iterator[None]:
    """An exception that leaves the block is typed and names the files that show why."""
    try:
        yield
    except Exception as error:
        raise _explained(error, dump)  # noqa: B904  which has its cause; no name keeps it alive


def _explained(error: Exception, dump: Dump) -> Exception:
    is_typed = isinstance(error, (FuserError, Warning))  # a warning that the user made an error
    is_own = isinstance(error, GivenScheduleError) or not isinstance(error, _OF_WHAT_WAS_MADE)
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
    """The same text for fusions that fail alike, without names of kernels and numbers of lines."""
    text = re.sub(r"\bfused_\w+", "kernel", error.sentence)  # see analysis/names.py
    is_bug = isinstance(error, (CompileError, BuildError))
    return re.sub(r"\d+", "", text) if is_bug else text


def with_innermost_frame(error: BaseException | None) -> BaseException | None:
    """The error with the frame that raised it alone, if it is the system's.

    The frames of the compiler above it say nothing about a full disk.
    """
    frames = error.__traceback__ if isinstance(error, OF_SYSTEM) else None
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return error if error is None or frames is None else error.with_traceback(frames)


def _of_system(error: OSError | MemoryError) -> BuildError:
    """The name of a temporary file is random, so it is not in the sentence; see `cause_of`."""
    file = getattr(error, "filename", None)
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return BuildError(
        "The system did not let a fusion be built", expected="a compiled kernel", got=why,
        lines=(f"file: {file}",) * bool(file),
    )  # fmt: skip


def _of_bug(error: Exception) -> BuildError:
    told = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    place = "".join(f" in {one.filename}:{one.lineno}" for one in frames[-1:])
    return BuildError(
        "A fusion could not be built, which is a bug of thunder_fuser", got=f"{told}{place}",
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
    """Adds the kernel as the compiler has read it, which in the emulator is more, and the log."""
    for name, text in zip(failure.files, (failure.text, failure.log), strict=False):
        dump.add(name, text or "(nothing)\n")
    return failure.files
