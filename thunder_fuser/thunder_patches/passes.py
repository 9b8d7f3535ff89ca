# SPDX-License-Identifier: Apache-2.0
"""Functions that Thunder's passes call for every bound symbol -> the same functions, faster.

    tree_flatten                  makes a set of 30 types at each call, to look its argument up in
    tree_flatten_with_dataclass   flattens a tree and builds it anew before it flattens it again
    Symbol.normalize              asks for the signature of a function again and again

Before Thunder claims the operations of a trace, it claims them on trial, to see whether the result
waits for a collective. A function jitted with this executor skips the trial unless its trace has a
wait: `claim_once`.

    t4 = sigmoid_(a)            a region of torchcompile notes that t4 and t3 are taken, and t0 not:
      t3 = sigmoid(a)           Thunder gives that name to a new value, too
        t0 = neg(a)
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from functools import lru_cache
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import optree
from thunder.core import pytree
from thunder.core.proxies import Proxy
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx
from thunder.distributed.prims import PrimIDs as Collectives
from thunder.executors import passes, torch_compile
from thunder.executors.torchex import wait_prim_impl

from thunder_fuser.thunder_patches.patch import Hooks, replace_everywhere
from thunder_fuser.trace.proxies import makes, parts

_TREES = (tuple, list, dict, type(None))

_flatten_of_thunder = pytree.tree_flatten
_peel_of_thunder = pytree.tree_flatten_with_dataclass
_signatures: WeakKeyDictionary[FunctionType, tuple[inspect.Signature, int]] = WeakKeyDictionary()
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def flatten_fast(_: Hooks) -> None:
    """From now on, Thunder's passes flatten trees by these functions."""
    replace_everywhere({
        _flatten_of_thunder: tree_flatten, _peel_of_thunder: tree_flatten_with_dataclass,
    })  # fmt: skip


def normalize_fast(_: Hooks) -> None:
    """From now on, Thunder asks once for the signature of a function."""
    Symbol.normalize = _normalize


def claim_once(hooks: Hooks) -> None:
    """From now on, functions jitted with this executor skip the trial."""
    claims = passes._transform_for_operator_executor_execution
    whole = passes.transform_for_execution
    is_real: ContextVar[bool] = ContextVar("is_real", default=False)

    def claimed(trace: TraceCtx, executors: Any) -> TraceCtx:
        if not is_real.get() and hooks.compilation() is not None:
            kinds = {part.sym.id for bsym in trace.bound_symbols for part in parts(bsym)}
            if kinds.isdisjoint({Collectives.WAIT, wait_prim_impl.id}):
                return trace
        return claims(trace, executors)

    def transform_for_execution(trace: TraceCtx, executors_list: Any) -> TraceCtx:
        token = is_real.set(True)
        try:
            return whole(trace, executors_list)
        finally:
            is_real.reset(token)

    passes._transform_for_operator_executor_execution = claimed
    passes.transform_for_execution = transform_for_execution


def note_inner_names(_: Hooks) -> None:
    """From now on, torchcompile's regions give the names of all parts to no other value."""
    of_thunder = torch_compile.transform_for_execution

    def transform_for_execution(region: TraceCtx, executors_list: Any) -> TraceCtx:
        inside = (part for bsym in region.bound_symbols for part in parts(bsym))
        region.names.update(proxy.name for part in inside for proxy in makes(part))
        return of_thunder(region, executors_list)

    torch_compile.transform_for_execution = transform_for_execution


def tree_flatten(args: Any, namespace: str = pytree.OPTREE_NAMESPACE) -> Any:
    """The leaves of a tree, and its structure; TypeError for a type that Thunder does not know."""
    if type(args) in _TREES or isinstance(args, Proxy):
        return optree.tree_flatten(args, none_is_leaf=True, namespace=namespace)
    return _flatten_of_thunder(args, namespace)


def tree_flatten_with_dataclass(tree: Any) -> Any:
    """The same, but dataclasses are trees too; Thunder registers each one at its first use."""
    if type(tree) not in _TREES and not isinstance(tree, Proxy):
        return _peel_of_thunder(tree)
    leaves, spec = optree.tree_flatten(tree, none_is_leaf=True, namespace=pytree.OPTREE_NAMESPACE)
    is_more = any(hasattr(type(leaf), "__dataclass_fields__") for leaf in leaves)
    return _peel_of_thunder(tree) if is_more or _has_size(spec) else (leaves, spec)


@lru_cache(maxsize=4096)
def _has_size(spec: Any) -> bool:
    """True if the tree has a torch.Size, which Thunder rebuilds as a tuple."""
    return "Size[" in repr(spec)


def _normalize(self: Symbol, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """All arguments of a call, including defaults."""
    signature, places = _signature_of(self.meta)
    if not kwargs and len(args) == places:
        return args, {}
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args, bound.kwargs


def _signature_of(function: Any) -> tuple[inspect.Signature, int]:
    """(the signature, its number of parameters if all may be given by position, else -1)"""
    is_kept = type(function) is FunctionType  # a bound method is a new object each time
    known = _signatures.get(function) if is_kept else None
    if known is None:
        signature = inspect.signature(function)
        parameters = signature.parameters.values()
        by_place = all(parameter.kind in _BY_PLACE for parameter in parameters)
        known = signature, len(parameters) if by_place else -1
        if is_kept:
            _signatures[function] = known
    return known
