# SPDX-License-Identifier: Apache-2.0
"""A function -> the same, whose result shares no memory with an argument.

    roll(x, 0)  ->  x  ->  clone(x)        roll(x, 2)  ->  cat([x[-2:], x[:-2]])  ->  as it is

A function that returns its argument, or a chain of views of one, would let the caller write to the
argument through the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import get_tracectx

from thunder_fuser.trace.proxies import makes, reads
from thunder_fuser.trace.sharing import VIEWS, parts

Function = Callable[..., Any]

# Those of Thunder that return a view of their argument where they repeat it once.
RETURNING = frozenset({"torch.Tensor.repeat", "torch.repeat_interleave"})


def fresh(function: Function) -> Function:
    """The function; what it returns is cloned if nothing but views was made of it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        scope = get_tracectx().peek_scope()
        before = len(scope)
        result = function(*args, **kwargs)
        computed = _computed(scope[before:])
        return tree_map(lambda one: _own(one, computed), result)

    return call


def reading(function: Function) -> Function:
    """The function; tensors of which it uses the shape alone are read too, by views without a use.

    Thunder counts an argument as one of the trace if something reads it; where two are the same
    tensor and one is missing, it takes others for them.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        scope = get_tracectx().peek_scope()
        before = len(scope)
        result = function(*args, **kwargs)
        read = {one.name for bsym in scope[before:] for one in reads(bsym)}
        for one in tree_flatten((args, kwargs))[0]:
            if isinstance(one, TensorProxy) and one.name not in read:
                prims.shallow_copy(one)
        return result

    return call


def _own(one: Any, computed: set[str]) -> Any:
    is_plain = type(one) is TensorProxy
    return ltorch.clone(one) if is_plain and one.name not in computed else one


def _computed(bsyms: Sequence[BoundSymbol]) -> set[str]:
    """The names of results that lie in memory made by these bound symbols."""
    names: set[str] = set()
    for leaf in (part for bsym in bsyms for part in parts(bsym)):
        if leaf.sym.id not in VIEWS or reads(leaf)[0].name in names:
            names.update(one.name for one in makes(leaf))
    return names
