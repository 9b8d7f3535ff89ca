# SPDX-License-Identifier: Apache-2.0
"""Writes the result of each stage of a fusion into a file, before the next stage starts.

    FOLDER/NAME/fusion_0/0_fusion.py          the definition with types and axes
                         1_passes.txt         which pass changed which records, if one did
                         1_specialised.py     for the sizes of the call, after the passes
                         2_segments.txt       what each kernel computes
                         3_schedule_0.py      of segment 0
                         4_kernel_0.cpp       of segment 0; .cu for CUDA
                         4_kernel_0.log       the compiler's messages, if it rejected the kernel
                         5_program.py         the program that runs the kernels

NAME is the region's name in the trace. A FusionDefinition has none: FOLDER/fusion_0.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

from thunder_fuser.base.threads import first_time
from thunder_fuser.base.warn import warn_at
from thunder_fuser.errors import DumpWarning, OptionError

T = TypeVar("T")

FUSION, SPECIALISED, SEGMENTS = "0_fusion.py", "1_specialised.py", "2_segments.txt"
SCHEDULE, KERNEL, LOG = "3_schedule_{}.py", "4_kernel_{}.{}", "4_kernel_{}.log"
PASSES, PROGRAM = "1_passes.txt", "5_program.py"

_FULL = (errno.ENOSPC, errno.EDQUOT)
_KEPT = "thunder_fuser-failed-"  # begins the names of temporary folders
_MOST_KEPT = 8  # of them, in one folder of temporary files


class Dump:
    """The dump of one fusion. root: the option dump. If that is empty, results are remembered, so
    that `keep` can write them after a failure.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.folder = begun(root, new_folder) if root else None
        self._texts: dict[str, Callable[[], object]] = {}

    def add(self, name: str, result: T, text: Callable[[T], object] = str) -> T:
        """Writes the result of a stage as text, unless it is None. Returns the result."""
        if result is not None:
            self._texts[name] = partial(text, result)
            if self.folder is not None:
                with may_fill(self._root):
                    write_texts(self.folder, self._pop_texts())
        return result

    def keep(self) -> Path:
        """The folder with all results so far; OSError if it cannot be written.

        Without the option it is a temporary folder, which stays. Only this user can read it, since
        sizes may be confidential.
        """
        if self.folder is None:
            self.folder = temporary_folder()
            write_texts(self.folder, self._pop_texts())
        return self.folder

    def __reduce__(self) -> tuple[object, ...]:  # in another process it is empty
        return Dump, ("",)

    def _pop_texts(self) -> dict[str, str]:
        """Removes and returns the texts that are not written yet."""
        texts, self._texts = self._texts, {}
        return {name: _printed(text) for name, text in texts.items()}


def begun(root: str, make: Callable[[Path], Path]) -> Path | None:
    """What `make` makes there; None if the disk is full. OptionError if it cannot be written."""
    with may_fill(root):
        try:
            return make(Path(root))
        except OSError as error:
            if error.errno in _FULL:
                raise
            raise not_writable(Path(root), error) from error
    return None


@contextmanager
def may_fill(root: str) -> Iterator[None]:
    """Warns once, and not for each fusion. A full disk must not end the user's run."""
    try:
        yield
    except OSError as error:
        if first_time(("dump", error.errno)):
            why = error.strerror or error
            warn_at("", f"The dump in {root} is incomplete: {why}.", DumpWarning)


def temporary_folder() -> Path:
    """A new temporary folder for the stages before a failure; all but the newest are removed."""
    folder = Path(tempfile.mkdtemp(prefix=_KEPT))
    for old in _older(folder)[_MOST_KEPT - 1 :]:
        drop(old)
    return folder


def _older(folder: Path) -> list[Path]:
    """This user's other temporary folders beside one, the newest first."""
    times = {}
    for path in {*folder.parent.glob(f"{_KEPT}*")} - {folder}:
        with suppress(OSError):  # another process has just removed it
            status = path.lstat()
            if status.st_uid == os.getuid():
                times[path] = status.st_mtime_ns
    return sorted(times, key=times.__getitem__, reverse=True)


def drop(folder: Path | None) -> None:
    """Removes a temporary folder. A dump that the user asked for stays."""
    if folder is not None and folder.name.startswith(_KEPT):
        shutil.rmtree(folder, ignore_errors=True)


def new_folder(root: Path) -> Path:
    """Makes the first of fusion_0, fusion_1, ... that `root` does not have, and its parents."""
    return _numbered(root, "fusion_{}", Path.mkdir)


def new_plan(root: Path) -> Path:
    """Makes the first of plan_0.txt, plan_1.txt, ... that `root` does not have, and its parents."""
    return _numbered(root, "plan_{}.txt", partial(Path.touch, exist_ok=False))


def _numbered(root: Path, name: str, make: Callable[[Path], None]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for path in (root / name.format(number) for number in count()):
        with suppress(FileExistsError):  # another process may have taken the number
            make(path)
            break
    return path


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Writes each text under its name."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _printed(text: Callable[[], object]) -> str:
    """The text, or the error if it cannot be printed: the bug may be in that result."""
    try:
        return str(text())
    except Exception as error:
        return f"# cannot be printed: {error!r}\n"


def not_writable(root: Path, error: OSError) -> OptionError:
    """The error for a folder of the option dump that cannot be made or written."""
    return OptionError(
        "option dump", expected="a folder that can be written", got=f"{root} ({error.strerror})"
    )
