# SPDX-License-Identifier: Apache-2.0
"""A script -> the page of every function that it jits with the fuser: `thunder_fuser report`."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from thunder_fuser.base.stages import timed
from thunder_fuser.errors import FuserError, InputError
from thunder_fuser.explain.jitted import Jitted, jitted_inside, name_of
from thunder_fuser.explain.page import check_path, write_page
from thunder_fuser.explain.reports import report
from thunder_fuser.explain.shown import plural


def report_on_script(script: Path, arguments: Sequence[str], page: Path | None) -> tuple[str, bool]:
    """Runs the script as `python SCRIPT ARGUMENTS` does, then writes the page.

    page: where; None for report.html here, or report-1.html, ... if that exists already.
    Returns (the text to print, whether the script succeeded and jitted a function). If the script
    fails, its traceback is printed; the page then has the functions that were called before.

    Raises InputError for a script that does not exist, ReportError for a page that cannot be
    written.
    """
    if not script.is_file():
        raise InputError("report", expected="a file with a Python script", got=str(script))
    page = (page or _free()).absolute()  # the script may change the folder
    check_path(page)
    with timed(), jitted_inside() as functions:
        failed = _failure(script, arguments)
        entries = [*_entries(functions)]
    write_page(entries, page, str(script))
    line = f"{page}: {plural(len(entries), 'function')} of {script}"
    if not functions:
        line += f"; {script} jits no function with the fuser"
    return f"{line}; {script} failed" if failed else line, bool(functions) and not failed


def _free() -> Path:
    """The first of report.html, report-1.html, ... that does not exist."""
    paths = (Path(f"report-{number}.html" if number else "report.html") for number in count())
    return next(path for path in paths if not path.exists())


def _failure(script: Path, arguments: Sequence[str]) -> bool:
    """Runs the script; True if it failed. Then the error is on standard error."""
    try:
        with _as_main(script, arguments):
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as left:
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
        return left.code not in (None, 0)
    except BaseException as error:  # an interrupt too: what ran until then is worth a page
        _print_error(error, str(script))
        return True
    return False


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Sets sys.argv and sys.path as `python SCRIPT ARGUMENTS` does."""
    argv, path = sys.argv, sys.path
    sys.argv = [str(script), *arguments]
    sys.path = [str(script.resolve().parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


def _print_error(error: BaseException, script: str) -> None:
    """The traceback, from the script's first line on."""
    frames: Any = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)


def _entries(functions: Sequence[Jitted]) -> Iterator[dict[str, Any]]:
    """The page's entries of each function that was called; the others go to standard error."""
    for function in functions:
        try:
            yield report(function).page_entries()
        except FuserError as error:
            print(f"no report on {name_of(function)}: {error}", file=sys.stderr)
