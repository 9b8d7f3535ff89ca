# SPDX-License-Identifier: Apache-2.0
"""The one door to Thunder's internals: what is replaced there, and what is left alone.

    install(Hooks(...))     once, at the end of executors/fuser.py
    left_alone()            {name of a replacement that was not made: why}

table.py has a row for each replacement. It is made if Thunder's version was tested and Thunder has
the functions that it was written for (patch.py); else Thunder's own way runs. Another package that
replaced one of them before us keeps its own; one that comes later gets ours, and may call it.
"""

from __future__ import annotations

from thunder.__about__ import __version__

from thunder_fuser.base.logs import LOGGER
from thunder_fuser.options import option
from thunder_fuser.thunder_patches.patch import Hooks, known_digests, why_unknown

_SWITCHES = {"fix": "thunder_fixes", "speed-up": "thunder_speedups"}
_left: dict[str, str] = {}


def install(hooks: Hooks) -> None:
    """From now on, Thunder has the replacements of the table that were written for it."""
    known = known_digests(__version__)
    if not known:
        _leave("all replacements", f"Thunder {__version__} was not tested")
        return
    from thunder_fuser.thunder_patches.table import PATCHES  # noqa: PLC0415 for known versions

    off = {kind for kind, switch in _SWITCHES.items() if not option(switch)}
    unknown = {patch.name: why_unknown(patch, known) for patch in PATCHES}
    for patch in PATCHES:
        if patch.kind in off:
            _left[patch.name] = f"the option {_SWITCHES[patch.kind]} is off"
        elif unknown[patch.name]:
            _leave(patch.name, unknown[patch.name])
        else:
            patch.install(hooks)


def left_alone() -> dict[str, str]:
    """{name of a replacement that was not made: why}"""
    return dict(_left)


def _leave(name: str, why: str) -> None:
    _left[name] = why
    LOGGER.warning("Thunder's own way runs, without %s: %s", name, why)
