# SPDX-License-Identifier: Apache-2.0
"""A place in Thunder -> what is there, and whether it is what a replacement was written for.

    thunder.core.jit_ext:JitCtx.add_constraint                              a function
    thunder.core.jit_ext:_general_jit_lookaside_map[dict.__setitem__]       a function in a table
    thunder.common:CompileData +is_grad_enabled                             not there: it is added

digests.json has, for each version of Thunder that was tested, the digest of each function's source.
"""

from __future__ import annotations

import json
import linecache
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2s
from importlib import import_module
from inspect import getattr_static, getblock
from pathlib import Path
from types import FunctionType, MemberDescriptorType
from typing import Any, Literal
from unittest import mock

import thunder
from thunder.common import CompileData
from thunder.core.compile_data import get_compile_data
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.extend import FusionExecutor

# Modules that import the functions by name, and call them at least once for each bound symbol.
_MODULES = (
    "core.pytree", "core.symbol", "core.utils", "core.codeutils", "core.transforms",
    "core.transform_common", "clang.langctx", "torch.langctx", "executors.passes",
    "core.trace_interpreter", "common", "transforms.autodiff",
)  # fmt: skip
DIGESTS = Path(__file__).with_name("digests.json")
_AROUND = ("contextlib", "functools", "torch.autograd.function")  # whose decorators Thunder uses
_INSIDE = ("__wrapped__", "__func__", "func", "fget")
replaced = mock.patch.object  # with replaced(owner, name, value): another value until the end


@dataclass(frozen=True, slots=True)
class Hooks:
    """What an executor adds to Thunder.

    before_gradient: (a trace that Thunder will differentiate, its aliases) -> the trace to take
    instead, or None. behind_transforms: a trace that all transforms have changed -> the trace to
    differentiate. note_argument: called with each tensor among the arguments (compilation,
    history of its proxy, tensor). may_be_edited: whether Thunder may move ops into or out of a
    fusion.
    """

    executor: FusionExecutor
    before_gradient: Callable[[TraceCtx, list[list[int]]], TraceCtx | None]
    behind_transforms: Callable[[TraceCtx], TraceCtx]
    note_argument: Callable[[CompileData, Any, Any], None]
    may_be_edited: Callable[[BoundSymbol], bool]

    def compilation(self) -> CompileData | None:
        """Thunder's data on the function that it compiles, if jitted with such an executor."""
        data, kind = get_compile_data(), type(self.executor)
        return data if data is not None and kind in map(type, data.executors_list) else None


@dataclass(frozen=True, slots=True)
class Patch:
    """One replacement: why, what of Thunder is replaced, and what else it was written for.

    kind: a fix changes results of Thunder that are wrong, a speed-up only how long Thunder takes,
    and a note only observes. since: the first version of Thunder that needs it.
    """

    why: str
    kind: Literal["fix", "speed-up", "note"]
    install: Callable[[Hooks], None]
    replaces: tuple[str, ...]
    reads: tuple[str, ...] = ()
    since: str = "0.2.6"

    @property
    def name(self) -> str:
        return self.install.__name__

    @property
    def places(self) -> tuple[str, ...]:
        return *self.replaces, *self.reads


def known_digests(version: str) -> Mapping[str, str]:
    """{place: digest} of a version of Thunder; empty for one that was not tested."""
    by_version: Mapping[str, Mapping[str, str]] = json.loads(DIGESTS.read_text("utf-8"))
    return by_version.get(version, {})


def why_unknown(patch: Patch, known: Mapping[str, str]) -> str:
    """The first place where Thunder has something else than expected; empty if there is none."""
    return next((why for place in patch.places if (why := _why_other(place, known))), "")


def _why_other(place: str, known: Mapping[str, str]) -> str:
    if " +" in place:
        owner, _, name = place.partition(" +")
        return f"{owner} has its own {name}" if name in vars(there(owner)) else ""
    try:
        value = there(place)
    except (ImportError, AttributeError, LookupError):
        return f"{place} is not there"
    if digest_of(value) == known.get(place):
        return ""
    by = getattr(next(_functions(value), None), "__globals__", {}).get("__name__", "")
    is_thunders = by.partition(".")[0] in ("thunder", "torch", "")
    return f"{place} is not that of a known version" if is_thunders else f"{by} replaced {place}"


def there(place: str) -> Any:
    """What Thunder has at a place, as it lies there: a staticmethod, a property, a function."""
    module, _, path = place.partition(":")
    path, _, key_name = path.partition("[")
    value: Any = import_module(module)
    for name in path.split(".") if path else ():
        static = getattr_static(value, name)
        is_slot = isinstance(static, MemberDescriptorType)
        value = getattr(value, name) if is_slot else static
    if not key_name:
        return value
    keys = {getattr(key, "__qualname__", None) or str(key): key for key in value}
    return value[keys[key_name.rstrip("]")]]


def digest_of(value: Any) -> str:
    """The digest of the source of a function, and of those that it wraps; "-" for a table."""
    sources = []
    for function in _functions(value):
        code = function.__code__  # inspect.getsource would look for it in the whole file
        lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
        sources.append("\n".join(line.strip() for line in getblock(lines)))
    return blake2s("\n".join(sources).encode(), digest_size=8).hexdigest() if sources else "-"


def _functions(value: Any) -> Iterator[FunctionType]:
    """The function, then the one that it wraps, and so on, without decorators of libraries."""
    while value is not None:
        if isinstance(value, FunctionType) and value.__globals__["__name__"] not in _AROUND:
            yield value
        value = next(filter(None, (getattr(value, name, None) for name in _INSIDE)), None)


def replace_everywhere(answers: Mapping[Any, Any]) -> None:
    """Replaces Thunder's functions, {Thunder's: ours}, under all their names in the modules."""
    by_identity = {id(old): new for old, new in answers.items()}
    for module in (thunder, *(import_module(f"thunder.{name}") for name in _MODULES)):
        for name, value in [*vars(module).items()]:
            if id(value) in by_identity:
                setattr(module, name, by_identity[id(value)])
