# SPDX-License-Identifier: Apache-2.0
"""A region that could not be compiled -> a warning, and a script that reproduces it without
Thunder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder_fuser.dump import drop, temporary_folder
from thunder_fuser.errors import FallbackWarning, FuserError, ToolchainError
from thunder_fuser.failures import OF_SYSTEM, cause_of
from thunder_fuser.host.script import repro_text
from thunder_fuser.ir.record import Definition
from thunder_fuser.source.warn import warn_at
from thunder_fuser.threads import first_time


def warn_of_fallback(
    error: FuserError,
    definition: Definition,
    args: Sequence[Any],
    *,
    name: str,
    ops: int,
    where: str,
) -> None:
    """Gives a FallbackWarning at a line of the user's program, one for all regions that fail alike.

    definition: empty if the region has none. ops: the number of torch ops that run instead. where:
    file:line.
    """
    if not first_time(("fallback", cause_of(error))):
        drop(error.folder)  # no message names it
        return
    told = [
        f"{name} ({where}) runs its {ops} torch ops one by one, for it could not be compiled:"
        f" {error.sentence.rstrip('.')}.",
        *error.facts["lines"],
        "Other regions that fail so are not reported.",
    ]
    is_of_machine = isinstance(error, ToolchainError) or isinstance(error.__cause__, OF_SYSTEM)
    if definition and not is_of_machine:
        told.append(_again(name, error, definition, args))
    warn_at(where, "\n".join(told), FallbackWarning)


def _again(name: str, error: FuserError, definition: Definition, args: Sequence[Any]) -> str:
    """Writes the script beside the text of the stages, else into a folder of its own."""
    try:
        path = (error.folder or temporary_folder()) / f"{name}.py"
        path.write_text(repro_text(name, error.sentence, definition, args), encoding="utf-8")
    except OSError as full:
        return f"No script that reproduces it could be written ({full.strerror or full})."
    return f"To reproduce it without Thunder: python {path}"
