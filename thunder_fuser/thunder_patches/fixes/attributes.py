# SPDX-License-Identifier: Apache-2.0
"""Attributes that `forward` sets on the jitted module itself -> lines of Thunder's epilogue.

    self.steps += 1        def epilogue(module, t8):
                             write_attribute(module, 'steps', 1)        new
                             return t8

Thunder writes the attributes of submodules and of other objects back, and drops those of the module
that is jitted. Replaced: `process_recorded_modifications` of thunder.core.jit_ext. Python objects
that Thunder cannot return from a program are still dropped, now with a warning.

    self.steps += 1; self.last = y         Thunder notes the first store into an object, now all

Replaced: the lookaside of object.__setattr__, which stores by a bound method of the object's dict:
at the second store Thunder no longer knew whose dict it is.

    if x.dtype == torch.float32:           before: False, for x.dtype was a type of Thunder's

    x.max(1).values                        before: an AttributeError, now: x.max(1)[0]

Replaced: the lookaside of getattr. A program that compares types took another branch than in eager
torch.
"""

from __future__ import annotations

from operator import getitem
from types import FunctionType
from typing import Any

import torch
from thunder.core import jit_ext
from thunder.core.dtypes import to_torch_dtype
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    ProvenanceRecord,
    PseudoInst,
    WrappedValue,
    _interpret_call,
    unwrap,
    wrap,
    wrap_const,
)
from thunder.core.jit_ext import register_general_jit_lookaside
from thunder.core.module import ThunderModule
from thunder.core.prims import PrimIDs
from thunder.core.proxies import AnyProxy, Proxy, TensorProxy
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.base.warn import line_of_the_call, warn_at
from thunder_fuser.errors import LostWriteWarning, ThunderLimitError
from thunder_fuser.options import option
from thunder_fuser.thunder_patches.fixes.arguments import effect
from thunder_fuser.thunder_patches.fixes.reads import note_absent, note_read
from thunder_fuser.thunder_patches.patch import Hooks

_ITEMS = {"values": 0, "indices": 1}  # of max, sort, topk, ..., whose results are plain tuples here
_SCRIPTS = (torch.jit.ScriptFunction, torch._C.ScriptMethod)


def write_attributes_back(_: Hooks) -> None:
    """From now on, attributes that a jitted module's forward sets are set after each call."""
    _note_all_stores()
    of_thunder = jit_ext.process_recorded_modifications

    def process(context: Any, epilogue: TraceCtx) -> None:
        stores_of = context._additional_outputs
        for changed, stores in stores_of.items():
            root = _root_of(changed.provenance)
            if root is not None and option("thunder_fixes"):
                last = {key.value: value.value for _, _, key, value in stores}
                _write(root, last, epilogue)
        for changed in [each for each in stores_of if _is_made_inside(each.provenance)]:
            del stores_of[changed]  # nobody reads it after the call
        of_thunder(context, epilogue)
        for at, line in enumerate(epilogue.bound_symbols):
            if line.sym.id is PrimIDs.PACK_BUFFER:  # Thunder calls a buffer of the root ".name"
                module, name, value = line.args
                args = (module, name.removeprefix("."), value)
                epilogue.bound_symbols[at] = line.from_bsym(args=args)

    jit_ext.process_recorded_modifications = process


def _note_all_stores() -> None:
    of_thunder = jit_ext._general_jit_object_setattr_lookaside

    @register_general_jit_lookaside(object.__setattr__)
    def store(thing: Any, name: Any, value: Any) -> Any:
        # The traced program may make the object itself, or Thunder does not note its stores.
        is_own = jit_ext.is_created_during_tracing(thing.provenance)
        is_own = is_own or type(unwrap(thing)) in jit_ext._TORCH_DYNAMIC_TYPES
        if is_own or not hasattr(unwrap(thing), "__dict__") or not option("thunder_fixes"):
            stored, read = of_thunder(thing, name, value), thing.attribute_wrappers
            if stored is not INTERPRETER_SIGNALS.EXCEPTION_RAISED and unwrap(name) in read:
                read[unwrap(name)] = value
            return stored
        # An object that the prologue reads, and that nobody has written to, lacks a proxy.
        is_read = jit_ext.should_register_for_prologue(thing.provenance)
        is_new = thing.original_value is thing.nothing
        if is_read and is_new and getattr(thing.provenance, "proxy", None) is None:
            proxy = AnyProxy(unwrap(thing), history=thing.provenance)
            thing.provenance.proxy = thing.anyproxy = proxy
        attributes = _interpret_call(getattr, thing, wrap_const("__dict__"))
        if attributes is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            return attributes
        attributes.provenance.ext_flag |= jit_ext.EXT_FLAG_IS_MODULE_MEMBER_DICT
        return _interpret_call(dict.__setitem__, attributes, name, value)


def give_types_of_torch(_: Hooks) -> None:
    """From now on, the type of a tensor is torch's for the traced program."""
    of_thunder = jit_ext._general_jit_getattr_lookaside

    @register_general_jit_lookaside(getattr)
    def get(thing: Any, name: Any, *default: Any) -> Any:
        attribute, owner = unwrap(name), unwrap(thing)
        if attribute == "__call__" and isinstance(owner, _SCRIPTS):
            raise ThunderLimitError(  # Thunder would look into its class, and so end the process
                "Thunder cannot trace this program", expected="functions in Python",
                got=f"a {type(owner).__name__} of TorchScript", where=line_of_the_call(),
                do="leave torch.jit.script and torch.jit.trace out",
            )  # fmt: skip
        if attribute in thing.attribute_wrappers and option("thunder_fixes"):
            getter = _getter_to_run_again(thing, attribute)
            if getter is not None:
                return _interpret_call(getter, thing)
        if type(owner) is tuple and attribute in _ITEMS and option("thunder_fixes"):
            return _interpret_call(getitem, thing, wrap_const(_ITEMS[attribute]))
        value = of_thunder(thing, name, *default)
        if isinstance(value, WrappedValue) and callable(value.value):  # wrapped once for all reads
            path = [thing.provenance, name.provenance]
            note_read(ProvenanceRecord(PseudoInst.LOAD_ATTR, path), value.value)
        if default and value is default[0]:
            note_absent(thing.provenance, attribute)
        is_type = attribute == "dtype" and isinstance(owner, TensorProxy)
        if not is_type or not option("thunder_fixes"):
            return value
        return wrap(to_torch_dtype(unwrap(value)), provenance=value.provenance)


def _getter_to_run_again(thing: Any, name: str) -> Any:
    """The getter of a property that a traced program reads again, after it wrote something.

    Of other attributes what Thunder keeps is forgotten if it is no longer what the object holds:
    it does not see stores by `__dict__`, by a setter or by a descriptor, and no `del`.
    """
    value, known = unwrap(thing), thing.attribute_wrappers[name]
    is_made_inside = jit_ext.is_created_during_tracing(thing.provenance)
    has_written = is_made_inside or jit_ext.get_jit_ctx()._additional_outputs
    if isinstance(value, (Proxy, type)) or name == "__dict__" or not has_written:
        return None
    of_class = next((vars(base)[name] for base in type(value).__mro__ if name in vars(base)), None)
    if type(of_class) is property:
        return of_class.fget
    if is_made_inside and not isinstance(of_class, FunctionType):
        now = getattr(value, "__dict__", {}).get(name, of_class)
        is_known = now is known.value or now is known.original_value
        if hasattr(of_class, "__set__") or not is_known:
            del thing.attribute_wrappers[name]
    return None


def _is_made_inside(provenance: ProvenanceRecord) -> bool:
    """True for a dict of an object that the traced program makes."""
    while provenance.inst is PseudoInst.LOAD_ATTR:
        provenance = provenance.inputs[0]
    return bool(jit_ext.is_created_during_tracing(provenance))


def _root_of(provenance: ProvenanceRecord) -> ProvenanceRecord | None:
    """The jitted module, if this is its __dict__ and Thunder does not write to it."""
    if provenance.inst is not PseudoInst.LOAD_ATTR:
        return None
    of, name = provenance.inputs
    is_root = of.inst is PseudoInst.INPUT_FN and getattr(of, "proxy", None) is None
    return of if is_root and name.value == "__dict__" else None


def _write(root: ProvenanceRecord, values: dict[str, Any], epilogue: TraceCtx) -> None:
    module = Proxy(history=root)  # its name is one of the computation's
    epilogue.add_name(module.name)
    for name, value in values.items():
        if not isinstance(value, (Proxy, int, float, tuple, type(None))):
            text = f"self.{name} = ... in forward: a jitted module does not keep an attribute of"
            do = "To fix it: set it outside of forward, or keep numbers and tensors."
            warn_at("", f"{text} type {type(value).__name__}. {do}", LostWriteWarning)
            continue
        with tracectx(epilogue):
            epilogue.bound_symbols.append(_WRITE.bind(module, name, value, output=None))


def _write_attribute(module: Any, name: str, value: Any) -> None:
    """Sets the attribute where a jitted module reads it."""
    is_of_model = isinstance(module, ThunderModule) and name not in vars(module)
    setattr(module._model if is_of_model else module, name, value)


_WRITE = effect("write_attribute", _write_attribute)
