# SPDX-License-Identifier: Apache-2.0
"""What a traced program reads of objects that stay after the call -> a guard of its prologue.

    forward: x if self.mask is None else x + self.mask;  for n in self.sizes: ...;  self.act(x)

->  def reads(args, kwargs):
        if root.mask is not c2: raise changed
        if len(root.sizes) != c3: raise changed
        if root.act is not c4: raise changed
        if 'late' in root.__dict__: raise changed            getattr(self, "late", 1)

Of a module that a function calls, submodules and hooks are compared as those of a jitted module.

Thunder guards numbers, strings and tensors that it reads, and not None, functions, types, nor how
long a list is: what the first call saw of those stayed in the program. Functions and types that are
globals are not compared, nor methods; of a module's methods only the globals of its own forward.

A list that stays and that the program changes is refused, and a dict that gets values of the
program: Thunder would leave its proxies in it, and later calls would not change it.

Replaced: `thunder_general_jit` as thunder.jit calls it, the callback for each value, and the
lookaside of hasattr.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from inspect import getattr_static
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import thunder
import torch
from thunder.core.interpreter import INTERPRETER_CALLBACKS, ProvenanceRecord, PseudoInst, unwrap
from thunder.core.jit_ext import _general_jit_lookaside_map, general_jit_callbacks
from thunder.core.proxies import Proxy
from thunder.core.trace import TraceResults
from torch import nn

from thunder_fuser.errors import ThunderLimitError
from thunder_fuser.options import option
from thunder_fuser.thunder_patches.fixes.arguments import check_arguments
from thunder_fuser.thunder_patches.fixes.replaced_parts import (
    need_another_program,
    parts_now,
    parts_of,
)
from thunder_fuser.thunder_patches.patch import Hooks

ReadPath = tuple[tuple[str, Any], ...]  # ("root", ""), then ("attribute", name) or ("item", key)

_ROOTS = {"INPUT_FN": "root", "INPUT_ARGS": "args", "INPUT_KWARGS": "kwargs"}
_COUNTS: dict[type, Callable[[Any], Any]] = {
    list: len, tuple: len, range: tuple, dict: tuple, set: frozenset, frozenset: frozenset,
}  # fmt: skip
_SAME = (
    type(None), FunctionType, BuiltinFunctionType, type, Enum, torch.dtype, torch.layout,
    torch.memory_format, nn.Module,
)  # fmt: skip
_OF_PYTHON = {  # the same for each call of a function, or another object for each read
    "__dict__", "__globals__", "__closure__", "__code__", "__defaults__", "__builtins__",
    "__self__",
}  # fmt: skip
_OF_MODULES = {*dir(nn.Module())}
_MODULES = ("attribute", "_modules")
_ABSENT: Any = object()
_WRAP = INTERPRETER_CALLBACKS.WRAP_CALLBACK


class _Changed(LookupError):
    """An object that the program reads is another one: a guard that failed."""


class _Reads:
    """What one trace reads: {steps: what the guard compares}, and lists and dicts with a copy."""

    def __init__(self) -> None:
        self.expected: dict[ReadPath, Any] = {}
        self.containers: dict[int, tuple[Any, Any]] = {}


_READS: ContextVar[_Reads | None] = ContextVar("reads", default=None)


def guard_reads(_: Hooks) -> None:
    """From now on, a call that would read other objects than an earlier one is traced."""
    of_thunder, wrapped = thunder.thunder_general_jit, general_jit_callbacks[_WRAP]
    has_of_thunder = _general_jit_lookaside_map[hasattr]

    def general_jit(function: Any, *args: Any, **options: Any) -> TraceResults:
        if not option("thunder_fixes"):
            return of_thunder(function, *args, **options)
        reads = _Reads()
        token = _READS.set(reads)
        try:
            results = of_thunder(function, *args, **options)
        finally:
            _READS.reset(token)
            is_changed = _restore(reads)
        if is_changed:
            raise ThunderLimitError(
                "a list or dict that stays after the call", expected="one that stays as it is",
                got="one that the program changes",
                do="return what it gets and change it outside, or call thunder.dynamo.thunderfx",
            )  # fmt: skip
        _add_guard(results, reads, function, args)
        return results

    def noted(value: Any) -> Any:
        note_read(value.provenance, value.value)
        return wrapped(value)

    def has(thing: Any, name: Any) -> Any:
        result = has_of_thunder(thing, name)
        if unwrap(result) is False:
            note_absent(thing.provenance, unwrap(name))
        return result

    thunder.thunder_general_jit = general_jit
    general_jit_callbacks[_WRAP] = noted
    _general_jit_lookaside_map[hasattr] = has


def note_read(provenance: ProvenanceRecord, value: Any) -> None:
    """Notes a value that the program reads, if it is not the program's own."""
    if not (type(value) in _COUNTS or isinstance(value, _SAME)) or not (reads := _READS.get()):
        return
    steps = _steps_to(provenance)
    if steps is None or len(steps) == 1 or steps in reads.expected:
        return
    reads.expected[steps] = _compared(value)
    if type(value) in (list, dict) and steps[-1][1] not in _OF_PYTHON | _OF_MODULES:
        reads.containers.setdefault(id(value), (value, value.copy()))


def note_absent(provenance: ProvenanceRecord, name: Any) -> None:
    """Notes that the program asked an object for an attribute that it has not."""
    reads, steps = _READS.get(), _steps_to(provenance)
    if reads is not None and steps is not None:
        reads.expected.setdefault((*steps, ("attribute", name)), _ABSENT)


def _steps_to(provenance: ProvenanceRecord) -> ReadPath | None:
    inst = provenance.inst
    kind = inst._value_ if isinstance(inst, PseudoInst) else inst.opname
    if kind in _ROOTS:
        return (("root", _ROOTS[kind]),)
    if kind not in ("LOAD_ATTR", "BINARY_SUBSCR"):
        return None
    of, key = provenance.inputs
    before = _steps_to(of) if key.inst is PseudoInst.CONSTANT else None
    if before is None or type(key.value) not in (str, int):
        return None
    is_of_method = key.value == "__func__" and len(before) > 2  # behind root, forward
    if is_of_method or (key.value == "__closure__" and ("attribute", "__func__") in before):
        return None  # of methods only the globals of the root's forward are compared
    if before[-1] == ("attribute", "__dict__"):
        before, kind = before[:-1], "LOAD_ATTR"
    return (*before, ("attribute" if kind == "LOAD_ATTR" else "item", key.value))


def _compared(value: Any) -> Any:
    """What is compared of a value: itself; of a container its keys, members or length."""
    return _COUNTS[type(value)](value) if type(value) in _COUNTS else value


def _restore(reads: _Reads) -> bool:
    """True if the program changed a container; it is then as before.

    A dict may have got values that are not the program's: it keeps what takes long to compute.
    """
    is_changed = False
    for container, before in reads.containers.values():
        is_dict = isinstance(container, dict)
        items = container.values() if is_dict else container
        is_other = not is_dict and [*map(id, container)] != [*map(id, before)]
        if is_other or any(isinstance(item, Proxy) for item in items):
            is_changed = True
            container.clear()
            (container.update if is_dict else container.extend)(before)
    return is_changed


# --------------------------------------------------------------------------------------- the guard


def _add_guard(results: TraceResults, reads: _Reads, function: Any, args: Any) -> None:
    writer = _GuardWriter({"root": function, "args": args[0], "kwargs": args[1]})
    for steps, wanted in reads.expected.items():
        writer.add(steps, wanted)
    if writer.has_tests:
        check_arguments(results.prologue_trace, "check_reads", writer.function())


class _GuardWriter:
    """The lines of the guard. It names each object that several lines read."""

    def __init__(self, roots: dict[str, Any]) -> None:
        self._objects: dict[ReadPath, Any] = {(("root", name),): roots[name] for name in roots}
        self._names: dict[ReadPath, str] = {(("root", name),): name for name in roots}
        self._scope: dict[str, Any] = {"root": roots["root"], "changed": _Changed}
        self._lines = ["def reads(args, kwargs):"]
        self.has_tests = False

    def add(self, steps: ReadPath, wanted: Any) -> None:
        """Adds the lines for a read, unless the program itself has put there what it read."""
        if wanted is _ABSENT:
            return self._add_absent(*steps)
        try:
            value = self._object(steps)
            if not self._is_compared(steps, value) or _compared(value) != wanted:
                return
        except Exception:  # what is not compared, or is not there any more
            return
        self.has_tests, constant = True, f"c{len(self._scope)}"
        self._scope[constant] = wanted
        text = self._text(steps)
        if isinstance(value, nn.Module):
            self._scope[f"{constant}_parts"] = _check_of_parts(value)
            self._lines.append(f"{constant}_parts({text})")
        if type(value) in _COUNTS:
            text = f"{_COUNTS[type(value)].__name__}({text}) != {constant}"
        else:
            text += f" is not {constant}"
        self._lines.append(f"if {text}: raise changed")

    def _add_absent(self, *steps: tuple[str, Any]) -> None:
        *of, (_, name) = steps
        try:
            is_absent = name not in vars(self._object(tuple(of)))
        except Exception:
            return
        if is_absent:
            self.has_tests = True
            text = self._text((*of, ("attribute", "__dict__")))
            self._lines.append(f"if {name!r} in {text}: raise changed")

    def function(self) -> Callable[..., None]:
        exec("\n    ".join(self._lines), self._scope)
        check: Callable[..., None] = self._scope.pop("reads")  # the scope would hold it: a cycle
        return check

    def _object(self, steps: ReadPath) -> Any:
        if steps not in self._objects:
            of, (kind, key) = self._object(steps[:-1]), steps[-1]
            if kind == "attribute" and isinstance(getattr_static(type(of), key, None), property):
                raise LookupError("a property, whose own reads are compared")
            self._objects[steps] = getattr(of, key) if kind == "attribute" else of[key]
        return self._objects[steps]

    def _is_compared(self, steps: ReadPath, value: Any) -> bool:
        of, (kind, key) = self._object(steps[:-1]), steps[-1]
        if isinstance(value, nn.Module) and (isinstance(of, nn.Module) or _MODULES in steps):
            return False  # a part of a module that is compared
        if kind == "attribute" and isinstance(of, nn.Module) and key in _OF_MODULES:
            return False  # what is in its tables is followed, or guarded by Thunder
        if type(of).__module__.startswith("torch.nn.modules.") and type(value) is tuple:
            return False  # sizes and strides of layers, whose items Thunder guards
        if kind == "attribute" and getattr(of, key) is not value:
            return False  # a method, which Python makes for each read
        is_global = isinstance(of, ModuleType) or ("attribute", "__globals__") in steps
        is_shared = is_global and not isinstance(value, (type(None), list, dict, set, nn.Module))
        return key not in _OF_PYTHON and not is_shared

    def _text(self, steps: ReadPath) -> str:
        """The read as Python; the object that it reads from gets a name."""
        of, (kind, key) = steps[:-1], steps[-1]
        if of not in self._names:
            text = self._text(of)
            self._names[of] = f"v{len(self._names)}"
            self._lines.append(f"{self._names[of]} = {text}")
        return f"{self._names[of]}.{key}" if kind == "attribute" else f"{self._names[of]}[{key!r}]"


def _check_of_parts(module: nn.Module) -> Callable[[nn.Module], None]:
    """Raises for other submodules and hooks of a module that a function calls."""
    known = [parts_of(module)]

    def check(now: nn.Module) -> None:
        after = parts_now(now, known[0])
        if after is not known[0]:
            if need_another_program(known[0], after):
                raise _Changed
            known[0] = after

    return check
