# SPDX-License-Identifier: Apache-2.0
"""Thunder's prologue -> the same, which also checks what Thunder's guards do not compare.

    def prologue(*args, **kwargs):
      # args: "Any"
      check_len(args, 2)
      # kwargs: "Any"
      check_len(kwargs, 0)
      check_structure(args, kwargs)             new: (x, None) has another program than (x, mask)
      x: "cpu f32[3]" = args[0]

    structure_of((x, None, [y, 2.0], {"scale": z}), {"dtype": torch.float32})
->  [0, None, [list, 0, 0], [dict, ("scale", 0)], {"dtype": [dtype, torch.float32]}]

A tensor, a number or a string is a 0: guards compare it. Without the check, f(x, mask), f(x, None)
and f(x, mask) compute the third result without the mask: the newest program fits. Replaced:
`thunder_general_jit` as thunder.jit calls it.

It also sets the stack of autocasts to those of the call. Thunder pushes to it at each call and
never pops, so a call outside of autocast was traced as if it were inside.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import thunder
import torch
from thunder.core.compile_data import get_compile_data
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, TraceResults, tracectx

from thunder_fuser.errors import ThunderLimitError
from thunder_fuser.options import option
from thunder_fuser.thunder_patches.fixes import shared_arguments
from thunder_fuser.thunder_patches.patch import Hooks

Structure = list[Any]

CHECK = "check_structure"
_COMPARED = (torch.Tensor, Number, str)
_USUAL = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str})
_CONSTANT = (
    type, Enum, torch.dtype, torch.device, torch.layout, torch.memory_format, range, frozenset,
    FunctionType, BuiltinFunctionType, MethodType,
)  # fmt: skip


class StructureCheck:
    """Raises an error for arguments of another structure than those of the traced call.

    layouts: how those that share memory lie in it; () if the program writes none of them.
    """

    layouts: shared_arguments.SharedLayouts = ()

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.expected = structure_of(args, kwargs)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if structure_of(args, kwargs) != self.expected:
            raise LookupError("arguments of another structure")
        if self.layouts and shared_arguments.layouts_of(args, kwargs) != self.layouts:
            raise LookupError("arguments that share memory in another way")


def compare_arguments(_: Hooks) -> None:
    """From now on, a call with other None, types, lengths or keys than an earlier one is traced."""
    of_thunder = thunder.thunder_general_jit

    def general_jit(
        function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /, **options: Any
    ) -> TraceResults:
        if not option("thunder_fixes"):
            return of_thunder(function, args, kwargs, **options)
        # The last autocast on the stack is this call's, if it is inside of one.
        stack = get_compile_data().autocast_stack.stack
        is_on = torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
        while len(stack) > is_on:
            stack.popleft()
        check = StructureCheck(args, kwargs)  # before the function may change its arguments
        with _unchanged(args, kwargs, check):
            results = of_thunder(function, args, kwargs, **options)
        trace = results.computation_trace
        check.layouts = shared_arguments.note_one_tensors(trace, args, kwargs)
        check_arguments(results.prologue_trace, CHECK, check)
        return results

    thunder.thunder_general_jit = general_jit


@contextmanager
def _unchanged(args: Any, kwargs: Any, check: StructureCheck) -> Iterator[None]:
    """Lists and dicts have what they had before: a trace would leave its proxies in them.

    Raises ThunderLimitError if the function changes one, for later calls would not.
    """
    before = [(each, each.copy()) for each in _containers([args, kwargs])]
    try:
        yield
    finally:
        is_changed = structure_of(args, kwargs) != check.expected
        for container, items in before if is_changed else ():
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(items)
    if is_changed:
        raise ThunderLimitError(
            "a list or dict that is an argument", expected="one that stays as it is",
            got="one that the function changes", do="return what it gets, and change it outside",
        )  # fmt: skip


def _containers(tree: Any) -> Iterator[Any]:
    """The lists and dicts in a tree, itself included."""
    if type(tree) in (list, dict, OrderedDict):
        yield tree
    if isinstance(tree, (list, tuple, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _containers(item)


def check_arguments(prologue: TraceCtx, name: str, check: Callable[..., None]) -> None:
    """Adds check(args, kwargs) behind the lines that take them."""
    taken = [
        (at, bsym.output) for at, bsym in enumerate(prologue.bound_symbols)
        if bsym.sym.id is PrimIDs.UNPACK_TRIVIAL and bsym.kwargs["name"] in ("args", "kwargs")
    ]  # fmt: skip
    if len(taken) == 2:
        add_check(prologue, taken[-1][0] + 1, name, check, *(output for _, output in taken))


def add_check(
    prologue: TraceCtx, at: int, name: str, check: Callable[..., None], *read: Any
) -> None:
    """Adds a call of the check: what it raises is a failed guard."""
    with tracectx(prologue):
        bsym = effect(name, check).bind(*read, output=None)
    prologue.bound_symbols.insert(at, bsym)


def effect(name: str, function: Callable[..., None]) -> Symbol:
    """A primitive of a prologue or an epilogue that calls the function, and returns nothing."""

    def bind(bsym: BoundSymbol) -> None:
        bsym._call_ctx = {name: function}

    return Symbol(
        name, lambda *read: None, id=name, is_prim=True, python_impl=function,
        tags=(OpTags.DONT_DCE,), _bind_postprocess=bind,
    )  # fmt: skip


def structure_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Structure:
    """Equal for two calls that one program may serve, as far as guards do not tell."""
    structure: Structure = [0 if type(arg) in _USUAL else _part(arg) for arg in args]
    if kwargs:
        structure.append({name: _part(arg) for name, arg in kwargs.items()})
    return structure


def _part(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in _USUAL or isinstance(value, _COMPARED):
        return None if value is None else 0
    if isinstance(value, (list, tuple)):
        return [kind, *map(_part, value)]
    if isinstance(value, dict):
        return [kind, *((key, _part(item)) for key, item in value.items())]
    if kind is set:
        return [kind, frozenset(value)]
    return [kind, value] if isinstance(value, _CONSTANT) else kind
