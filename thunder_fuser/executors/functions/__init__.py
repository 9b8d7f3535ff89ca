# SPDX-License-Identifier: Apache-2.0
"""Functions that Thunder leaves to torch, in functions that it knows, before it sees them.

    t1 = torch.nn.functional.huber_loss(t0, y)  ->  t1 = sub(t0, y), t2 = abs(t1), ... mean(t9)

What Thunder does not know it hands to torch as one opaque call, which ends the region before it,
and computes once more for its gradient. A function of these tables is called in its place while
the user's function is traced, so all that follows, gradients and regions, is as if the user had
written it so. Some are known to Thunder, with other arguments or defaults than torch has.

pointwise   elementwise, and other names of what Thunder knows     losses    losses and distances
reductions  norms, extremes, matrix products                      movement  rolls, tiles, shuffles

What a function returns is copied where it is but a view of an argument, unless it is one in torch;
so are the results of some that Thunder knows, see fresh.py.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.interpreter import unwrap
from thunder.core.jit_ext import record_source_loc_in_symbol_header, recursively_proxy
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import Symbol
from thunder.core.trace import detached_trace

from thunder_fuser.executors.eager import may_differ, types_in_torch
from thunder_fuser.executors.functions.fresh import RETURNING, fresh, reading
from thunder_fuser.executors.functions.losses import LOSSES
from thunder_fuser.executors.functions.movement import MOVEMENT, VIEWING
from thunder_fuser.executors.functions.pointwise import CASTING, POINTWISE
from thunder_fuser.executors.functions.reductions import OF_COMPLEX, REDUCTIONS
from thunder_fuser.executors.types import ANY, COMPLEX, data_type
from thunder_fuser.ir.dtypes import DataType

Function = Callable[..., Any]

# By the name that Thunder gives torch's function, which is also that of the tensor's method.
# A function returns NotImplemented for what it leaves to torch, or for torch to refuse.
FUNCTIONS: dict[str, Function] = {**POINTWISE, **LOSSES, **REDUCTIONS, **MOVEMENT}

_REPLACED = FUNCTIONS.keys() | RETURNING
_MAY_BE_VIEWS = VIEWING | CASTING


def lookasides() -> dict[Function, Function]:
    """{what a user's program calls: what is called in its place}."""
    symbols = {
        called: symbol
        for called, symbol in ltorch._torch_to_thunder_function_map.items()
        if isinstance(symbol, Symbol) and symbol.id in _REPLACED
    }
    replacements = {
        symbol: _replacement(FUNCTIONS.get(symbol.id, symbol), symbol)
        for symbol in symbols.values()
    }
    # A method of a tensor is called by its symbol.
    return replacements | {called: replacements[symbol] for called, symbol in symbols.items()}


def _replacement(function: Function, symbol: Symbol) -> Function:
    """The function; Thunder's symbol where it does not take the arguments."""
    signature = inspect.signature(getattr(function, "meta", function))
    types = ANY | COMPLEX if symbol.id in OF_COMPLEX else ANY

    def chosen(*args: Any, **kwargs: Any) -> Any:
        if (
            not _bindable(signature, args, kwargs)
            or not _plain(args, kwargs, types)
            or _refused(symbol, args, kwargs)
        ):
            return symbol(*args, **kwargs)
        result = function(*args, **kwargs)
        taken = result is not NotImplemented and _has_types_of_torch(result, symbol, args, kwargs)
        return result if taken else symbol(*args, **kwargs)

    asked = reading(chosen if symbol.id in _MAY_BE_VIEWS else fresh(chosen))

    @functools.wraps(symbol.meta)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _with_items_noted(sys._getframe(1), args, kwargs)
        return asked(*args, **kwargs)

    return call


def _refused(symbol: Symbol, args: Any, kwargs: Any) -> bool:
    """True where torch raises, so that it may: Thunder asks it about what it does not know."""
    if OpTags.AUTO_REGISTERED not in (symbol.tags or ()):
        return False
    try:
        with detached_trace():
            symbol.meta(*args, **kwargs)
    except NotImplementedError:  # as which Thunder raises whatever torch does
        return True
    return False


def _with_items_noted(caller: FrameType, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments, after telling Thunder the user's line, and that the items of lists were read.

    Else it would not check them at the next call, and take `f(x, [2])` for a traced `f(x, [1])`.
    It does so for its own symbols; an executor's function gets bare values, from a function of
    Thunder's interpreter that has them with what it knows of them.
    """
    if caller.f_code.co_name != "wrapping_wrapper":
        return args, kwargs  # called by Python, say by a function that is a transform of Thunder's
    record_source_loc_in_symbol_header(tuple)()
    given = caller.f_locals
    recursively_proxy(*given["args"], **given["kwargs"])
    values = {unwrap(name): unwrap(one) for name, one in given["kwargs"].items()}
    return tuple(map(unwrap, given["args"])), values


def _has_types_of_torch(result: Any, symbol: Symbol, args: Any, kwargs: Any) -> bool:
    """False where Thunder's types, of which it is made, are not torch's, or torch refuses."""
    results = [one for one in tree_flatten(result)[0] if isinstance(one, TensorProxy)]
    given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, TensorProxy)]
    if not results or not may_differ(given):
        return True
    theirs = types_in_torch(symbol, args, kwargs, {})
    return theirs is None or theirs == tuple(data_type(one.dtype) for one in results)


def _bindable(signature: inspect.Signature, args: Any, kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _plain(args: Any, kwargs: Any, types: frozenset[DataType]) -> bool:
    given = tree_flatten((args, kwargs))[0]
    tensors = [one for one in given if isinstance(one, (TensorProxy, torch.Tensor))]
    return all(_is_plain(one, types) for one in tensors)


def _is_plain(tensor: Any, types: frozenset[DataType]) -> bool:
    """Of such numbers, and of any: Thunder's gradients of products cannot be of no elements."""
    return type(tensor) is TensorProxy and data_type(tensor.dtype) in types and bool(tensor.numel)
