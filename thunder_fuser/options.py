# SPDX-License-Identifier: Apache-2.0
"""Every option, one typed row each. A call's keyword wins over `with options(...)`, that over the
environment, that over the default.

The stages of the compiler read none of this: `compile_options` gives them an argument.

>>> with options(strict=True):
...     option("strict")
True
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields

from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.errors import OptionError

Value = bool | int | str


@dataclass(frozen=True, slots=True)
class Option:
    """One row."""

    name: str
    type: type
    default: Value
    help: str
    least: int | None = None
    choices: tuple[Value, ...] = ()
    or_callable: bool = False

    @property
    def env(self) -> str:
        return f"THUNDER_FUSER_{self.name.upper()}"

    def parse(self, value: object) -> Value:
        """The value in the row's type; OptionError if it has another."""
        if isinstance(value, str) and self.type is bool:
            value = {"0": False, "false": False, "1": True, "true": True}.get(value.lower(), value)
        if isinstance(value, str) and self.type is int and value.lstrip("-").isdigit():
            value = int(value)
        if self.or_callable and callable(value):
            return value  # type: ignore[return-value]
        if type(value) is not self.type:
            raise OptionError(
                f"option {self.name}", expected=f"the type {self.type.__name__}", got=repr(value)
            )
        if self.least is not None and isinstance(value, int) and value < self.least:
            raise OptionError(
                f"option {self.name}", expected=f"at least {self.least}", got=str(value)
            )
        if self.choices and value not in self.choices:
            listed = ", ".join(map(str, self.choices))
            raise OptionError(
                f"option {self.name}", expected=f"one of {listed}", got=repr(value)
            )
        return value  # type: ignore[return-value]


OPTIONS: Mapping[str, Option] = {
    row.name: row
    for row in (
        Option("strict", bool, False, "raise where a region would fall back to its torch ops"),
        Option("emulate", bool, False, "run CPU tensors through the CUDA text on the emulator"),
        Option("emulate_reversed", bool, False, "the emulator runs a block's threads in reverse"),
        Option("fuel", int, -1, "how many regions may be fused; -1: all (to bisect)", least=-1),
        Option("name_prefix", str, "thunderFusion", "what names of fusions begin with in a trace"),
        Option(
            "rematerialization", str, "time", or_callable=True,
            help="what the backward keeps: none, time, memory, budget(x), save_only(names) or a"
            " callable; see docs/rematerialization.md",
        ),
        Option(
            "repeatable", bool, False, "an op has the same bits whatever stands around it (set for"
            " functions with gradients, where values are recomputed)",
        ),
        Option(
            "donation", bool, True, "results may be written over what a region is the last to read"
        ),
        Option("dump", str, "", "a folder that gets the text of every verb of every fusion"),
        Option("max_registers_bytes", int, 256, "persistent bytes a thread may keep", least=0),
        Option("max_fusions", int, 8192, "how many definitions the process's cache keeps", least=1),
        Option("max_programs", int, 256, "how many programs a definition keeps", least=1),
        Option(
            "cache", str, "rw", "compiled kernels on disk: rw, ro (read only) or off",
            choices=("rw", "ro", "off"),
        ),
        Option("cache_dir", str, "", "their folder; default: thunder_fuser in the user's cache"),
        Option("cache_megabytes", int, 1024, "the most that the folder may hold", least=1),
        Option(
            "compile_seconds", int, 300, "the longest that the C++ compiler may take for a kernel",
            least=1,
        ),
        Option("assert_cache_hit", bool, False, "raise where a kernel must be compiled"),
    )
}

_scopes: list[dict[str, Value]] = []


def option(name: str) -> Value:
    """The value in force here."""
    row = _row(name)
    for scope in reversed(_scopes):
        if name in scope:
            return scope[name]
    text = os.environ.get(row.env)
    return row.default if text is None else row.parse(text)


@contextmanager
def options(**values: Value) -> Iterator[None]:
    """Sets options for a while, for all threads (autograd runs backward on another one)."""
    scope = {name: _row(name).parse(value) for name, value in values.items()}
    _scopes.append(scope)
    try:
        yield
    finally:
        del _scopes[next(at for at, one in enumerate(_scopes) if one is scope)]


_COMPILED = tuple(field.name for field in fields(CompileOptions))


def compile_options() -> CompileOptions:
    """The values in force here of the options that change what is compiled."""
    return CompileOptions(*map(option, _COMPILED))  # type: ignore[arg-type]


def _row(name: str) -> Option:
    if name not in OPTIONS:
        raise OptionError("option", expected=f"one of {', '.join(OPTIONS)}", got=repr(name))
    return OPTIONS[name]
