# SPDX-License-Identifier: Apache-2.0
"""thunder.jit's keywords and the environment -> the fuser's options, each checked.

    thunder.jit(f, fuser_strickt=True)      OptionError, which names fuser_strict
    thunder.jit(f, strict=True)             OptionWarning, the same: Thunder takes any keyword
    thunder.jit(f, mode="max-autotune")     OptionWarning, which says what to write here
    thunder_fuser.jit(f, mode="...")        OptionError, the same
    THUNDER_FUSER_STRICT=maybe              OptionError
    THUNDER_FUSER_STRCT=1                   OptionWarning, which names THUNDER_FUSER_STRICT

A compilation checks all options. So the user learns of a wrong one at once, not at its first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thunder.core.compile_data import get_compile_data, get_compile_option

from thunder_fuser.base.threads import first_time
from thunder_fuser.base.warn import warn_at
from thunder_fuser.errors import OptionError, OptionWarning, unknown_name
from thunder_fuser.options import OPTIONS, OptionValue, option, unknown_variables
from thunder_fuser.rematerialization.policy import policy_of
from thunder_fuser.store.store import root_of

_KEYWORD = "fuser_"
_MODES = {
    "reduce-overhead": "write fuser_cuda_graphs=True",
    "max-autotune": "write fuser_cuda_graphs=True; schedules are not searched",
    "max-autotune-no-cudagraphs": "leave it out: schedules are not searched",
}
_SHAPES = "leave it out: each new shape is traced again, and most kernels are shared by all shapes"
WORDS = {
    "mode": "leave it out",
    "dynamic": _SHAPES,
    "fullgraph": "leave it out: the whole function is one graph, or an error",
    "backend": 'leave it out, or write torch.compile(f, backend="thunder_fuser")',
    "options": "write each option as a keyword, such as fuser_strict=True",
    "disable": "leave it out, and call the function itself",
}


def options_of_jit() -> dict[str, OptionValue]:
    """The fuser's options among thunder.jit's keywords; OptionError for one that does not exist."""
    data = get_compile_data()
    if data is None:
        return {}
    known = [_KEYWORD + name for name in OPTIONS]
    for name, value in data.compile_options.items():
        if name.startswith(_KEYWORD) and name not in known:
            raise unknown_name("thunder.jit", name, known)
        advice = f"write {_KEYWORD}{name}=..." if name in OPTIONS else advice_on(name, value)
        if advice and first_time(("keyword", name)):
            text = f"thunder.jit({name}=...) sets no option of the fuser; {advice}"
            warn_at("", text, OptionWarning)
    keywords = {
        name: get_compile_option(_KEYWORD + name, row.help) for name, row in OPTIONS.items()
    }
    return {
        name: OPTIONS[name].parse(value)
        for name, value in keywords.items() if value is not None
    }


def jit_option(name: str) -> OptionValue:
    """The value of an option in the running compilation: thunder.jit's keyword, or what is in
    force."""
    return options_of_jit().get(name, option(name))


def may_differentiate() -> bool:
    """False while a function is traced for calls without gradients."""
    data = get_compile_data()
    return data is None or data.is_grad_enabled


def check_options(of_jit: Mapping[str, OptionValue]) -> None:
    """Raises OptionError for the first bad value, in force or of a jit; warns of each environment
    variable that looks like an option and is none."""
    for name, value in (*((name, option(name)) for name in OPTIONS), *of_jit.items()):
        _check(name, value)
    for name, near in unknown_variables().items():
        if first_time(("variable", name)):
            warn_at("", unknown(name, near), OptionWarning)


def unknown(name: str, near: str) -> str:
    """The message on an environment variable that is no option. near: an option's, or empty."""
    advice = f"did you mean {near}?" if near else "see python -m thunder_fuser env"
    return f"The environment variable {name} is no option of the fuser; {advice}"


def problem_of(name: str) -> str:
    """The problem with an option's value in force; empty if there is none."""
    try:
        _check(name, option(name))
    except OptionError as error:
        return str(error)
    return ""


def _check(name: str, value: OptionValue) -> None:
    """Raises OptionError for a value of the right type that the option does not take."""
    if name in _CHECKS:
        _CHECKS[name](value)


def _check_prefix(value: OptionValue) -> None:
    if not str(value).isidentifier():
        raise OptionError("option name_prefix", expected="a Python name", got=repr(value))


def _check_dump(value: OptionValue) -> None:
    """Checks the folder without making it: one that does not exist needs a writable parent."""
    path = Path(str(value))
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if value and not (above.is_dir() and os.access(above, os.W_OK)):
        expected = "a folder that can be written"
        raise OptionError("option dump", expected=expected, got=f"{path} (below {above})")


_CHECKS: Mapping[str, Callable[[OptionValue], object]] = {
    "name_prefix": _check_prefix,
    "dump": _check_dump,
    "cache_dir": lambda value: value and root_of(str(value)),
    "rematerialization": policy_of,
}


# ------------------------------------------------------------------------ keywords of torch.compile


def advice_on(name: str, value: object) -> str:
    """What to write in place of a keyword; empty for one that is not torch.compile's.

    >>> advice_on("mode", "reduce-overhead"), advice_on("mode", "default"), advice_on("cache", "")
    ('write fuser_cuda_graphs=True', 'leave it out', '')
    """
    advice = WORDS.get(name, "")
    return _MODES.get(str(value), advice) if name == "mode" else advice


def refuse_words(door: str, keywords: Mapping[str, Any], where: str = "") -> None:
    """Raises OptionError for the first keyword of torch.compile. where: the words go in there."""
    for name, value in keywords.items():
        if advice := advice_on(name, value):
            raise OptionError(
                door, expected="keywords of thunder.jit",
                got=f"{name}={value!r}, which is torch.compile's", do=advice + where,
            )  # fmt: skip
