# SPDX-License-Identifier: Apache-2.0
"""Rewrites -> what Thunder calls in place of torch's functions, while it traces a program.

    roll(x, 0)  ->  x  ->  clone(x)        roll(x, 2)  ->  cat([x[-2:], x[:-2]])

A result that is the argument, or a view of it, is cloned unless it is a view in torch too: else the
caller could write to the argument through it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import prims
from thunder.core.interpreter import unwrap, wrap_const
from thunder.core.jit_ext import record_source_loc_in_symbol_header, recursively_proxy
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import detached_trace, get_tracectx

from thunder_fuser.executors.eager import may_differ, types_in_torch
from thunder_fuser.executors.functions.define import Function, Rewrite
from thunder_fuser.executors.types import ANY, COMPLEX, data_type
from thunder_fuser.trace.proxies import VIEWS, makes, parts, reads


def lookasides(rewrites: Mapping[str, Rewrite]) -> dict[Function, Function]:
    """{what a user's program calls: what is called in its place}."""
    symbols = {
        called: symbol
        for called, symbol in ltorch._torch_to_thunder_function_map.items()
        if isinstance(symbol, Symbol) and symbol.id in rewrites
    }
    found = {symbol: _replacement(rewrites[symbol.id], symbol) for symbol in symbols.values()}
    # A method of a tensor is called by its symbol.
    return found | {called: found[symbol] for called, symbol in symbols.items()}


def _replacement(rewrite: Rewrite, symbol: Symbol) -> Function:
    """The function; for a call that it does not take, Thunder's symbol."""
    signature = inspect.signature(getattr(rewrite.function, "meta", rewrite.function))
    types = ANY | COMPLEX if rewrite.of_complex else ANY

    def result_of(args: Any, kwargs: Any) -> Any:
        # Thunder's gradients of products fail on tensors without elements.
        plain = all(
            type(one) is TensorProxy and data_type(one.dtype) in types and one.numel
            for one in _tensors((args, kwargs))
        )
        if plain and _binds(signature, args, kwargs) and not _is_refused(symbol, args, kwargs):
            result = rewrite.function(*args, **kwargs)
            if result is not NotImplemented and _has_types_of_torch(result, symbol, args, kwargs):
                return result
        return symbol(*args, **kwargs)

    @functools.wraps(symbol.meta)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _noted(args, kwargs)
        scope = get_tracectx().peek_scope()
        before = len(scope)
        result = result_of(args, kwargs)
        if not rewrite.may_be_view:
            result = _own(result, scope[before:])
        _read(_tensors((args, kwargs)), scope[before:])
        return result

    return call


def _tensors(tree: Any) -> list[Any]:
    return [one for one in tree_flatten(tree)[0] if isinstance(one, (TensorProxy, torch.Tensor))]


def _noted(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments, after telling Thunder of the user's line, and that items of lists are read.

    Thunder does so for its own symbols. Without it, f(x, [2]) would run the trace of f(x, [1]).
    """
    record_source_loc_in_symbol_header(tuple)()
    # Thunder's interpreter gives an executor bare values, and finds its own record of each again.
    by_place = [wrap_const(one) for one in args]
    by_name = {name: wrap_const(one) for name, one in kwargs.items()}
    recursively_proxy(*by_place, **by_name)
    return tuple(map(unwrap, by_place)), {name: unwrap(one) for name, one in by_name.items()}


def _binds(signature: inspect.Signature, args: Any, kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _is_refused(symbol: Symbol, args: Any, kwargs: Any) -> bool:
    """True where torch raises, so that it may: Thunder asks it about what it does not know."""
    if OpTags.AUTO_REGISTERED not in (symbol.tags or ()):
        return False
    try:
        with detached_trace():
            symbol.meta(*args, **kwargs)
    except NotImplementedError:  # as which Thunder raises whatever torch does
        return True
    return False


def _has_types_of_torch(result: Any, symbol: Symbol, args: Any, kwargs: Any) -> bool:
    """False where Thunder's rules for types give others than torch has, or torch refuses."""
    results = [one for one in _tensors(result) if isinstance(one, TensorProxy)]
    given = [one for one in _tensors((args, kwargs)) if isinstance(one, TensorProxy)]
    if not results or not may_differ(given):
        return True
    theirs = types_in_torch(symbol, args, kwargs, {})
    return theirs is None or theirs == tuple(data_type(one.dtype) for one in results)


def _own(result: Any, bsyms: Sequence[BoundSymbol]) -> Any:
    """The result; tensors of which these bound symbols made nothing but views are cloned."""
    computed: set[str] = set()
    for leaf in (part for bsym in bsyms for part in parts(bsym)):
        if leaf.sym.id not in VIEWS or reads(leaf)[0].name in computed:
            computed.update(one.name for one in makes(leaf))

    def is_view(one: Any) -> bool:
        return type(one) is TensorProxy and one.name not in computed

    return tree_map(lambda one: ltorch.clone(one) if is_view(one) else one, result)


def _read(arguments: Sequence[Any], bsyms: Sequence[BoundSymbol]) -> None:
    """Reads tensors whose shape alone was used, by views without a use.

    Thunder counts an argument as one of the trace if something reads it. Where two arguments are
    the same tensor and one is not read, it takes others for them.
    """
    read = {one.name for bsym in bsyms for one in reads(bsym)}
    for one in arguments:
        if isinstance(one, TensorProxy) and one.name not in read:
            prims.shallow_copy(one)
