# SPDX-License-Identifier: Apache-2.0
"""Shorter ways for Thunder through a user's program, each of whose instructions it interprets.

    model(x)            ->  model.forward(x)            if neither it nor torch has hooks
    a global's name     ->  dict.__getitem__(globals, name)
    Thunder's helpers   ->  the calls they make, see interpreter_helpers.py

nn.Module.__call__ looks for hooks in eight dictionaries, and Thunder interprets each look-up. For a
global, Thunder interprets two functions of one line. For the traceback of an exception in the
program, Thunder makes a Python frame in a thread that it waits for up to 5 ms; here that happens
once for each line.

Two fixes are here too, and always on: torch's multi-head attention is read, not called whole; and
functions of torch and Python that the interpreter cannot read, or reads slowly, are called.

Thunder guards neither hooks nor the way a name was found, so traces and guards stay the same; the
tests compare their texts. Only functions jitted with this executor take these ways, and none with
the option fast_tracing=False.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from types import FrameType, FunctionType
from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import INTERPRETER_SIGNALS, _interpret_call, unwrap, wrap_const
from thunder.core.jit_ext import register_general_jit_lookaside
from torch import nn
from torch._dynamo.mutation_guard import GenerationTracker
from torch.backends.mha import get_fastpath_enabled
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.nn.modules import module as of_torch
from torch.nn.modules.transformer import _detect_is_causal_mask
from torch.utils.hooks import RemovableHandle

from thunder_fuser.base.threads import Bounded
from thunder_fuser.options import OPTIONS, option
from thunder_fuser.thunder_patches.interpreter_helpers import HELPERS, run
from thunder_fuser.thunder_patches.patch import Hooks

_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS: tuple[Mapping[int, Any], ...] = (
    of_torch._global_backward_hooks, of_torch._global_backward_pre_hooks,
    of_torch._global_forward_hooks, of_torch._global_forward_pre_hooks,
)  # fmt: skip

_CALL_OF_MODULES = nn.Module._call_impl  # another package may replace it later
_MOST_KNOWN = 4096  # lines that raise


def _is_on(hooks: Hooks) -> bool:
    data = hooks.compilation()
    if data is None:
        return False
    word = data.compile_options.get("fuser_fast_tracing")
    return bool(option("fast_tracing") if word is None else OPTIONS["fast_tracing"].parse(word))


def detour_calls_of_modules(hooks: Hooks) -> None:
    """From now on, Thunder reads only the forward of a module without hooks."""
    called = nn.Module._wrapped_call_impl
    # A copy of the function: Thunder interprets it, as it is not registered below.
    interpreted = FunctionType(called.__code__, called.__globals__, called.__name__)

    @register_general_jit_lookaside(called)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_on(hooks) or not _calls_forward_alone(unwrap(module)):
            return _interpret_call(interpreted, module, *args, **kwargs)
        forward = _interpret_call(getattr, module, wrap_const("forward"))
        if forward is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            return forward
        return _interpret_call(forward, *args, **kwargs)


def _calls_forward_alone(module: nn.Module) -> bool:
    """True if a call of the module only calls its forward."""
    has_hooks = any(_GLOBAL_HOOKS) or any(getattr(module, name) for name in _HOOKS)
    is_plain = type(module)._call_impl is _CALL_OF_MODULES and "_call_impl" not in vars(module)
    compiled = module._compiled_call_impl  # type: ignore[attr-defined]
    return is_plain and not has_hooks and compiled is None and not torch._C._get_tracing_state()


def call_while_traced(_: Hooks) -> None:
    """From now on, these are called: what writes a graph of Dynamo, registers and removes hooks,
    reads a line of a traceback, whose whole file would become guards, and notes a new module for
    Dynamo, among weak references that garbage collection changes."""
    for function in (
        _LazyGraphModule.real_recompile, RemovableHandle.remove, linecache.getline,
        nn.Module.register_forward_hook, nn.Module.register_forward_pre_hook,
        GenerationTracker.tag.__func__,  # type: ignore[attr-defined]
    ):  # fmt: skip
        register_general_jit_lookaside(function)(_called(function))


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrap_const(function(*map(unwrap, args), **{k: unwrap(kwargs[k]) for k in kwargs}))

    return call


def read_attention(_: Hooks) -> None:
    """From now on, Thunder reads torch's multi-head attention, which calls products and attention.
    torch's layers do not take their fast path, one call of all of a layer in inference, and do not
    compare a mask with the causal one: it is applied, whatever it is."""
    for table in (ltorch._torch_to_thunder_function_map, jit_ext._general_jit_lookaside_map):
        table.pop(F.multi_head_attention_forward)
    register_general_jit_lookaside(get_fastpath_enabled)(lambda: wrap_const(False))

    @register_general_jit_lookaside(_detect_is_causal_mask)
    def is_causal(mask: Any, is_causal: Any = None, size: Any = None) -> Any:
        return _interpret_call(lambda word: word is True, is_causal)


def detour_globals(hooks: Hooks) -> None:
    """From now on, Thunder looks a global up by one call."""
    of_thunder = interpreter.globals_lookup

    def look_up(scope: Any, name: Any) -> Any:
        names = unwrap(scope)
        if type(names) is not dict or not _is_on(hooks):
            return of_thunder(scope, name)
        if unwrap(name) in names:
            return _interpret_call(dict.__getitem__, scope, name)
        builtins = names.get("__builtins__")  # a dictionary, or in __main__ a module
        if type(builtins) is not dict or unwrap(name) not in builtins:
            return of_thunder(scope, name)
        of_scope = _interpret_call(dict.__getitem__, scope, wrap_const("__builtins__"))
        return _interpret_call(dict.__getitem__, of_scope, name)

    interpreter.globals_lookup = look_up


def detour_helpers(hooks: Hooks) -> None:
    """From now on, Thunder makes the calls of its helpers without reading them."""
    of_thunder = interpreter._setup_frame_and_run_python_function

    def interpret(compiled: Any, running: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        helper = HELPERS.get(id(unwrap(function).__code__))
        if helper is not None and _is_on(hooks):
            result = run(helper, function, args, kwargs)
            if result is not NotImplemented:
                return result
        return of_thunder(compiled, running, function, *args, **kwargs)

    interpreter._setup_frame_and_run_python_function = interpret


def make_frames_once(hooks: Hooks) -> None:
    """From now on, Thunder makes a frame for tracebacks once for each line."""
    of_thunder = interpreter.InterpreterFrame.get_or_make_python_frame
    known: Bounded[FrameType] = Bounded(_MOST_KNOWN)

    def frame_of(self: Any) -> FrameType:
        if not _is_on(hooks):
            return of_thunder(self)  # type: ignore[no-any-return]
        code = self.code
        place = code.co_filename, code.co_firstlineno, code.co_name, self.qualname
        return known.get_or_make((*place, self.positions.lineno), lambda: of_thunder(self))

    interpreter.InterpreterFrame.get_or_make_python_frame = frame_of
