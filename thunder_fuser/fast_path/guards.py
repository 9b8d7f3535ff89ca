# SPDX-License-Identifier: Apache-2.0
"""Thunder's prologue -> a shorter function with the same guards; it returns None, not raises.

    def guard(args, kwargs):
        if _len(args) != 1: return
        x: "cpu f32[2, 4]" = args[0]
        module0 = __function_obj
        module = _jitted()
        _own, _model = _split(module)
        if not _check0(x): return
        i0 = _own['training'] if 'training' in _own else _model.training
        if i0 is not True: return
        m1 = module._module_cache['a']
        i3 = m1.in_features
        if i3 != 4 or _type(i3) is not _int: return
        t_a_weight, t_a_bias = _pick1(module._overrides_parameters)
        if not _check2(t_a_weight, t_a_bias): return
        return ((x, t_a_bias, t_a_weight), ())

A line without a shorter form is Thunder's own. So all of Thunder's guards are there, except three:
torch's global state and the structure of the arguments, which are compared before (torch_state.py,
arguments.py), and, if the trace writes nothing in place, which arguments share memory. An
error counts as a failed guard, as in Thunder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import ref

import thunder
import torch
from thunder.core.codeutils import module_shortname
from thunder.core.module import ThunderModule
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from torch import nn

from thunder_fuser.fast_path.torch_state import Environment, environment_of
from thunder_fuser.host.call.native import Like, make_check
from thunder_fuser.thunder_patches.fixes.arguments import CHECK, Structure
from thunder_fuser.thunder_patches.fixes.shared_arguments import (
    SharedLayouts,
    aliases_of,
    layouts_of,
)
from thunder_fuser.thunder_patches.tied_parameters import TIED
from thunder_fuser.trace.proxies import reads

Inputs = tuple[tuple[Any, ...], tuple[Any, ...]]  # of the computation, and of the epilogue
GuardFunction = Callable[[tuple[Any, ...], dict[str, Any]], Inputs | None]


class Guarded(NamedTuple):
    """The guards of one entry of Thunder's cache."""

    guard: GuardFunction
    environment: Environment
    structure: Structure | None  # of the arguments; None: not compared
    text: str


def guarded(
    prologue: TraceCtx, jitted: ref[ThunderModule] | None, *, writes: bool
) -> Guarded | None:
    """The guards of a prologue. None if it reads global state that is not known here, or takes
    items from an iterator, which works only once.

    jitted: the jitted module, or None. writes: whether the trace writes in place.
    """
    if any(bsym.sym.id in _TAKES for bsym in prologue.bound_symbols):
        return None
    writer = _Writer(prologue, jitted)
    for bsym in prologue.bound_symbols:
        writer.add(bsym)
    aliases = writer.recorded.pop("alias_tensor_indices", "")
    expected = environment_of(writer.recorded)
    if expected is None:
        return None
    tests = f"_aliases(args, kwargs) != {aliases!r}"
    tests += f" or _layouts(args, kwargs) != {writer.layouts!r}" * bool(writer.layouts)
    text = writer.text(f"if {tests}: return" * writes)
    exec(compile(text, "thunder_fuser.guard", "exec"), writer.scope)
    guard = writer.scope.pop("guard")  # the scope would hold it: a cycle
    return Guarded(guard, expected, writer.structure, text)


# {primitive: (the jitted module's table that it reads, a plain module's)}
_TABLES = {
    PrimIDs.UNPACK_PARAMETER: ("_overrides_parameters", "_parameters"),
    PrimIDs.UNPACK_BUFFER: ("_overrides_buffers", "_buffers"),
    PrimIDs.UNPACK_SUBMODULE: ("_module_cache", "_modules"),
}
_TAKES = (PrimIDs.UNPACK_ITER, PrimIDs.UNPACK_NEXT)
_TENSORS = (PrimIDs.UNPACK_PARAMETER, PrimIDs.UNPACK_BUFFER)
_OF_TENSORS = ("check_tensor_metadata", "python_return")
_EQUAL = ("check_literal_like", "check_number_type_and_value", "check_string_value")


class _Writer:
    """The lines of the function, and the scope with the objects that they name.

    recorded: the values of torch's global state that the prologue expects, by Thunder's names.
    """

    def __init__(self, prologue: TraceCtx, jitted: ref[ThunderModule] | None) -> None:
        self.recorded: dict[str, Any] = {}
        self.structure: Structure | None = None
        self.layouts: SharedLayouts = ()
        self.scope: dict[str, Any] = {
            "thunder": thunder, "torch": torch, "__function_obj": prologue.fn, "_jitted": jitted,
            "_split": _split, "_aliases": aliases_of, "_layouts": layouts_of,
            "_len": len, "_type": type, "_int": int, "_float": float,
        }  # fmt: skip
        self._jitted = jitted
        self._lines: list[str] = []
        self._result: list[str] = []
        self._function = ""  # the proxy of the jitted function itself
        self._ours = isinstance(prologue.fn, nn.Module) and jitted is not None
        self._roots: set[str] = set()  # proxies of the jitted module
        self._others: set[str] = set()  # proxies of other modules, which Thunder does not jit
        self._state: dict[str, str] = {}  # proxies of torch's state -> Thunder's names of it
        self._prologue = prologue
        tensors = {b.output.name for b in prologue.bound_symbols if b.sym.id in _TENSORS}
        others = (b for b in prologue.bound_symbols if b.sym.name not in _OF_TENSORS)
        # The parameters and buffers that only checks of tensors and the return read.
        self._checked_only = tensors - {p.name for bsym in others for p in reads(bsym)}
        self._pending: dict[str, Like] = {}
        self._last: dict[str, Like] = {}
        self._picks: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._picked: set[str] = set()

    def add(self, bsym: BoundSymbol) -> None:
        """Adds the lines of a bound symbol; consecutive tensors are checked together."""
        name = bsym.sym.name
        if name == "check_tensor_metadata" and isinstance(bsym.args[0], Proxy):
            tensor = bsym.args[0].name
            checked = self._last if tensor in self._picked else self._pending
            _, shape, device, dtype, requires_grad = bsym.args
            checked[tensor] = Like(tuple(shape), dtype, torch.device(device), requires_grad)
        elif name == CHECK:
            check = bsym.sym.python_impl
            self.structure, self.layouts = check.expected, check.layouts
        elif name == "python_return":
            self._result = self._of_thunder(bsym)
        elif name != "unpack_trivial" and not self._is_state(bsym):
            self._flush()
            if bsym.sym.id is PrimIDs.UNPACK_FUNCTION_OBJ:
                self._function = bsym.output.name
                self._lines.append(f"{self._function} = __function_obj")
                return
            known = bsym.args and isinstance(bsym.args[0], Proxy)
            lines = self._shorter(bsym, bsym.args[0].name, *bsym.args[1:]) if known else None
            self._lines += self._of_thunder(bsym) if lines is None else lines

    def _is_state(self, bsym: BoundSymbol) -> bool:
        """True if the bound symbol reads or checks torch's state, which is then noted."""
        if bsym.sym.id is PrimIDs.UNPACK_CACHE_INFO:
            self._state[bsym.output.name] = ""
            return True
        name = getattr(bsym.args[0], "name", None) if bsym.args else None
        if name not in self._state:
            return False
        if bsym.sym.id is PrimIDs.UNPACK_GETITEM:
            self._state[bsym.output.name] = bsym.args[1]
        elif bsym.sym.name in _EQUAL:
            self.recorded[self._state[name]] = bsym.args[1]
        else:
            self.recorded[bsym.sym.name] = None  # a check that is not known here
        return True

    def _of_thunder(self, bsym: BoundSymbol) -> list[str]:
        with tracectx(self._prologue):  # which gives names to values that have no text
            lines: list[str] = bsym.python(indent=0, print_depth=1)
        modules, calls, objects = bsym.gather_ctxs()
        named = {module_shortname(name): module for name, module in modules.items()}
        self.scope.update({**named, **calls, **objects})
        return lines

    def _shorter(self, bsym: BoundSymbol, of: str, *rest: Any) -> list[str] | None:
        """None if only Thunder's line will do. of: the name of what the line reads."""
        kind = bsym.sym.id
        if kind is PrimIDs.UNPACK_THUNDER_MODULE:
            return self._module(bsym.output.name, of)
        if kind in _TABLES and of in self._roots:
            return self._looked_up(bsym, of, rest[0])
        if kind in _TABLES and of in self._others:
            return [f"{bsym.output.name} = {_path(of, rest[0], _TABLES[kind][1])}"]
        if kind is PrimIDs.UNPACK_ATTR:
            return [_attribute(bsym.output.name, of, rest[0], of in self._roots)]
        test = _test(bsym.sym.name, of, *rest)
        return [f"if {test}: return"] if test else None

    def _module(self, name: str, original: str) -> list[str]:
        """Lines for the module that Thunder calls instead: the jitted module, or the same one."""
        if self._ours and original == self._function:
            self._roots.add(name)
            return [f"{name} = _jitted()", f"_own, _model = _split({name})"]
        self._others.add(name)
        is_other = f"if {original} is __function_obj: return"  # that one has overridden parameters
        return [*[is_other] * self._ours, f"{name} = {original}"]

    def _looked_up(self, bsym: BoundSymbol, root: str, key: str) -> list[str]:
        """Of a second name of a parameter or module, which the table lacks, in the model."""
        name, (attribute, plain) = bsym.output.name, _TABLES[bsym.sym.id]
        table = f"{root}.{attribute}"
        if self._jitted is not None and key not in getattr(self._jitted(), attribute):
            return [f"if {key!r} in {table}: return", f"{name} = {_path('_model', key, plain)}"]
        if name not in self._checked_only:
            return [f"{name} = {table}[{key!r}]"]
        self._picks.setdefault((root, table), []).append((name, key))
        self._picked.add(name)
        return []

    def _flush(self) -> None:
        self._lines += self._checked(self._pending)
        self._pending = {}

    def _checked(self, tensors: Mapping[str, Like]) -> list[str]:
        if not tensors:
            return []
        function = self._named("_check", make_check([*tensors.values()]))
        return [f"if not {function}({', '.join(tensors)}): return"]

    def _named(self, kind: str, value: Any) -> str:
        name = f"{kind}{len(self.scope)}"
        self.scope[name] = value
        return name

    def text(self, more: str) -> str:
        """The source of the function; `more` is one more line before the parameters."""
        self._flush()
        picked = [
            f"{', '.join(name for name, _ in picks)}, = {self._pick(*(key for _, key in picks))}"
            f"({table})" for (_, table), picks in self._picks.items()
        ]  # fmt: skip
        lines = [*self._lines, more, *picked, *self._checked(self._last), *self._result]
        return "\n".join(["def guard(args, kwargs):", *(f"    {line}" for line in lines if line)])

    def _pick(self, *keys: str) -> str:
        pick: Any = itemgetter(*keys) if len(keys) > 1 else lambda table: (table[keys[0]],)
        return self._named("_pick", pick)


def _path(module: str, key: str, table: str) -> str:
    """module._modules['a']._parameters['weight']"""
    *above, last = key.split(".")
    return "".join([module, *(f"._modules[{name!r}]" for name in above), f".{table}[{last!r}]"])


def _attribute(name: str, of: str, key: str, is_root: bool) -> str:
    """The line that reads an attribute; a jitted module reads those that it lacks of its model."""
    if is_root and not hasattr(ThunderModule, key):
        return f"{name} = _own[{key!r}] if {key!r} in _own else _model.{key}"
    return f"{name} = {of}.{key}"


def _split(jitted: ThunderModule) -> tuple[dict[str, Any], nn.Module]:
    """The attributes of a jitted module, and its model; LookupError if it has other parts too."""
    attributes = vars(jitted)
    if len(attributes["_modules"]) != 1 or attributes["_parameters"] or attributes["_buffers"]:
        raise LookupError("a jitted module with parts of its own")
    return attributes, attributes["_modules"]["_model"]


def _test(check: str, name: str, *wanted: Any) -> str:
    """The condition on which the guard fails; empty if only Thunder's function can check it."""
    if check == "check_len":
        return f"_len({name}) != {wanted[0]}"
    if check == TIED:
        return f"{name} is not {wanted[0].name}"
    if check == "check_none":
        return f"{name} is not None"
    if check == "check_string_value":
        return f"{name} != {wanted[0]!r}" if type(wanted[0]) is str else ""
    if check != "check_number_type_and_value":
        return ""
    (value,) = wanted
    if type(value) is bool:
        return f"{name} is not {value}"
    kind = {int: "_int", float: "_float"}.get(type(value), "")
    is_plain = kind and repr(value) not in ("nan", "inf", "-inf")
    return f"{name} != {value!r} or _type({name}) is not {kind}" if is_plain else ""
