# SPDX-License-Identifier: Apache-2.0
"""The table of options, with one typed row for each.

A value comes from the first of: the call's keyword, `with options(...)`, the environment, the
default.

The compiler's stages do not read options: `compile_options` makes their argument.

>>> with options(strict=True):
...     option("strict")
True
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.errors import OptionError, nearest, unknown_name
from thunder_fuser.multi_device import MultiDeviceParams

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
OptionValue = bool | int | float | str
PREFIX = "THUNDER_FUSER_"  # of environment variables


@dataclass(frozen=True, slots=True)
class Option:
    """One row."""

    name: str
    type: type
    default: OptionValue
    help: str
    least: int | None = None
    choices: tuple[OptionValue, ...] = ()
    or_callable: bool = False
    several: bool = False  # choices, with commas between
    env: str = field(default="", init=False)  # the environment variable

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", PREFIX + self.name.upper())

    def parse(self, value: object) -> OptionValue:
        """The value in the row's type; OptionError if it does not fit."""
        if isinstance(value, str) and self.type is bool:
            value = {"0": False, "false": False, "1": True, "true": True}.get(value.lower(), value)
        if isinstance(value, str) and self.type is int and value.isascii():
            value = int(value) if value.removeprefix("-").isdigit() else value
        if isinstance(value, str) and self.type is MultiDeviceParams:
            return self._params(value)
        if self.or_callable and callable(value):
            return value  # type: ignore[return-value]
        expected = do = ""
        if type(value) is not self.type:
            expected = f"the type {self.type.__name__}"
            expected += " (0, 1, false or true)" * (self.type is bool and isinstance(value, str))
        elif self.least is not None and not value >= self.least:  # type: ignore[operator]
            expected = f"at least {self.least}"
        elif self.choices and (wrong := self._wrong(value)):
            expected = f"{'some' if self.several else 'one'} of {', '.join(map(str, self.choices))}"
            near = nearest(wrong[0], map(str, self.choices))
            do = f"write {near}" * bool(near)
        if expected:
            raise OptionError(f"option {self.name}", expected=expected, got=repr(value), do=do)
        return value  # type: ignore[return-value]

    def _params(self, text: str) -> OptionValue:
        try:
            return MultiDeviceParams.parse(text)  # type: ignore[return-value]
        except OptionError as error:
            what, facts = f"option {self.name}", {**error.facts, "got": repr(text)}
            raise OptionError(what, **facts) from None

    def _wrong(self, value: object) -> list[str]:
        """The words in the value that are not among the choices."""
        words: list[object] = [value]
        if self.several:
            words = [word for word in str(value).replace(" ", "").split(",") if word]
        return [str(word) for word in words if word not in self.choices]


OPTIONS: Mapping[str, Option] = {
    row.name: row
    for row in (
        Option("strict", bool, False, "raise an error instead of falling back to torch ops"),
        Option("emulate", bool, False, "run CPU tensors through the CUDA source on the emulator"),
        Option("emulate_reversed", bool, False, "the emulator reverses the threads of a block"),
        Option("fuel", int, -1, "the most fusions of a function, to bisect; -1: all", least=-1),
        Option("name_prefix", str, "thunderFusion", "the prefix of names of fusions in a trace"),
        Option(
            "rematerialization", str, "time", or_callable=True,
            help="what is saved for the backward: none, time, memory, budget(0 to 1), save_only("
            "'t5', 't9') or a callable",
        ),
        Option(
            "repeatable", bool, False, "an op gives the same bits in every kernel (set for"
            " functions with gradients, whose backward recomputes values)",
        ),
        Option(
            "donation", bool, True, "results may overwrite arguments that a region reads last"
        ),
        Option(
            "loss_rows", int, -1, "rows of a language model's logits that exist at a time, where"
            " only its loss reads them; 0: all; -1: as the policy of rematerialization says",
            least=-1,
        ),
        Option("functional_writes", bool, True, "writes through views have their gradients"),
        Option(
            "thunder_fixes", bool, True, "replacements of Thunder's functions that give wrong"
            " results",
        ),
        Option(
            "thunder_speedups", bool, True, "shorter ways of Thunder's functions; read when the"
            " fuser is imported",
        ),
        Option("fast_tracing", bool, True, "Thunder traces with faster versions of its functions"),
        Option(
            "compile_ahead", bool, True, "all regions of a trace compile together, before their"
            " first calls",
        ),
        Option("cuda_graphs", bool, False, "calls on a GPU are captured in CUDA graphs"),
        Option("max_cuda_graphs", int, 32, "the most graphs of a function on a device", least=1),
        Option(
            "dependent_launches", bool, True, "a kernel in a CUDA graph is launched while the one"
            " before it runs, and waits for its end (sm_90)",
        ),
        Option("native_calls", bool, True, "C code finds programs, allocates and launches"),
        Option("dump", str, "", "a folder for the text of every stage of every fusion"),
        Option("skip_passes", str, "", "passes to leave out, with commas between"),
        Option("max_registers_bytes", int, 256, "persistent bytes a thread may hold", least=0),
        Option(
            "few_rows", int, 8, "matrix products with at most so many rows are kernels of ours,"
            " without gradients (on a CPU: one row, 16-bit floats); 0: none", least=0,
        ),
        Option(
            "multi_device", MultiDeviceParams, MultiDeviceParams(),  # type: ignore[arg-type]
            "what programs on several devices do, as a MultiDeviceParams",
        ),
        Option("max_fusions", int, 8192, "the most definitions in the process's cache", least=1),
        Option("max_programs", int, 256, "the most programs of a definition", least=1),
        Option(
            "cache", str, "rw", "compiled kernels on disk: rw, ro (read only) or off",
            choices=("rw", "ro", "off"),
        ),
        Option("cache_dir", str, "", "their folder; default: thunder_fuser in the user's cache"),
        Option("cache_megabytes", int, 1024, "the most megabytes in the folder", least=1),
        Option(
            "compile_seconds", int, 300, "the time limit of the C++ compiler for a kernel",
            least=1,
        ),
        Option(
            "peer_timeout", int, -1, "seconds until a process whose device waits for another rank"
            " is aborted; -1: the time-out of its process group; 0: never", least=-1,
        ),
        Option("assert_cache_hit", bool, False, "raise where a kernel must be compiled"),
        Option(
            "log", str, "", "topics to log, with commas between: fusions, kernels, cache, time,"
            " recompiles, graphs, or all", several=True,
            choices=("fusions", "kernels", "cache", "time", "recompiles", "graphs", "all"),
        ),
    )
}


class OptionValues(TypedDict, total=False):
    """The keywords of `options`, for editors and type checkers. OPTIONS describes them."""

    strict: bool
    emulate: bool
    emulate_reversed: bool
    fuel: int
    name_prefix: str
    rematerialization: str | Callable[..., Any]
    repeatable: bool
    donation: bool
    loss_rows: int
    functional_writes: bool
    thunder_fixes: bool
    thunder_speedups: bool
    fast_tracing: bool
    compile_ahead: bool
    cuda_graphs: bool
    max_cuda_graphs: int
    dependent_launches: bool
    native_calls: bool
    dump: str
    skip_passes: str
    max_registers_bytes: int
    few_rows: int
    multi_device: MultiDeviceParams
    max_fusions: int
    max_programs: int
    cache: str
    cache_dir: str
    cache_megabytes: int
    compile_seconds: int
    peer_timeout: int
    assert_cache_hit: bool
    log: str


_Overrides = Mapping[str, OptionValue]
_scopes: list[_Overrides] = []
# In a thread that works for another one: the scopes that were open there.
_held: ContextVar[tuple[_Overrides, ...] | None] = ContextVar("held", default=None)


def option(name: str) -> OptionValue:
    """The current value."""
    row = OPTIONS.get(name) or _row(name)
    held = _held.get()
    for scope in reversed(_scopes if held is None else held):
        if name in scope:
            return scope[name]
    text = os.environ.get(row.env)
    if text is None:
        return row.default
    try:
        return row.parse(text)
    except OptionError as error:
        raise error.at(f"the environment variable {row.env}") from None


@contextmanager
def options(**values: Unpack[OptionValues]) -> Iterator[None]:
    """Sets options until the block ends, on all threads: autograd runs backward on another one.

    OptionError for an unknown name, or a value that the option does not accept.
    """
    with in_force(values):
        yield


@contextmanager
def in_force(values: Mapping[str, object]) -> Iterator[None]:
    """As `options`, for options in a mapping."""
    scope = {name: _row(name).parse(value) for name, value in values.items()}
    _scopes.append(scope)
    try:
        yield
    finally:
        del _scopes[next(at for at, entered in enumerate(_scopes) if entered is scope)]


def with_options_as_now(job: Callable[[], T]) -> Callable[[], T]:
    """The job, which sees the options' current values, whenever and on whichever thread it runs."""
    scopes = (*_scopes,)

    def run() -> T:
        token = _held.set(scopes)
        try:
            return job()
        finally:
            _held.reset(token)

    return run


def unknown_variables() -> dict[str, str]:
    """{environment variable with our prefix that is no option's: the nearest option's variable}"""
    known = {row.env for row in OPTIONS.values()}
    return {
        name: _nearest_variable(name)
        for name in sorted(os.environ) if name.startswith(PREFIX) and name not in known
    }


def _nearest_variable(name: str) -> str:
    closest = nearest(name.removeprefix(PREFIX).lower(), OPTIONS)
    return OPTIONS[closest].env if closest else ""


_COMPILED = tuple(field.name for field in fields(CompileOptions) if field.name in OPTIONS)


def compile_options(schedules: tuple[tuple[int | str, Any], ...] = ()) -> CompileOptions:
    """The current values of the options that affect compilation, and a call's schedules."""
    values: dict[str, Any] = {name: option(name) for name in _COMPILED}
    return CompileOptions(**values, schedules=schedules)


def _row(name: str) -> Option:
    if name not in OPTIONS:
        raise unknown_name("option", name, OPTIONS, repr(name))
    return OPTIONS[name]
