# SPDX-License-Identifier: Apache-2.0
"""The two ways to define a torch function.

    Rewrite      clip(x, 0)  ->  where(ge(x, 0), x, 0)       while Thunder traces the program
    Composite    sigmoid(x)  ->  sigmoid(x), in the trace    while Thunder traces the program
                             ->  reciprocal(1 + exp(-x))     when the fuser claims it
                 its gradient    dy * y * (1 - y)

Thunder differentiates what a Rewrite calls. A Composite brings its own gradient. Both compute
16-bit floats in float32: torch computes such a function in one kernel, and rounds its result alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.utils import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_type_promotion

from thunder_fuser.executors.types import are_floats, as_type, compute_type, refuses_tensors
from thunder_fuser.trace.op import Reject

Function = Callable[..., Any]
# The gradient of a result -> (tensor, its gradient), ...
Backward = Callable[[Any], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A function that is called in place of torch's.

    It returns NotImplemented for a call that it leaves to torch, or that torch should refuse.
    """

    function: Function
    may_be_view: bool = False  # of its argument, as in torch
    of_complex: bool = False  # takes complex tensors too


def rewrites(
    prefix: str, *functions: Function, may_be_view: bool = False, of_complex: bool = False,
    **named: Function,
) -> dict[str, Rewrite]:  # fmt: skip
    """{prefix + name: Rewrite}, for functions by their own names and by keywords."""
    every = {one.__name__: one for one in functions} | named
    return {prefix + name: Rewrite(one, may_be_view, of_complex) for name, one in every.items()}


@dataclass(frozen=True, slots=True)
class Composite:
    """When a call stays with Thunder, what else it becomes, and that with gradients."""

    refuses: Callable[..., Reject | None]
    transform: Function
    gradient: Function


Table = Mapping[str, Rewrite | Composite]


def with_gradient(
    refuses: Callable[..., Reject | None],
    forward: Callable[..., tuple[Any, Backward]],
    transform: Function | None = None,
) -> Composite:
    """A Composite of forward(*args) -> (result, backward).

    transform: what to call where no gradient is asked for, if not forward.
    """

    def gradient(*args: Any, **kwargs: Any) -> Any:
        result, backward = forward(*args, **kwargs)
        for tensor, found in backward(get_grad(result)):
            put_grad(tensor, found)
        return result

    def result_of(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)[0]

    return Composite(refuses, transform or result_of, gradient)


def of_calls(call: Function) -> Composite:
    """A Composite of what makes a call's arguments an object with `refuses` and `forward`."""
    return with_gradient(
        lambda *args, **kwargs: call(*args, **kwargs).refuses(),
        lambda *args, **kwargs: call(*args, **kwargs).forward(),
    )


def refuses_floats(of: str, *tensors: TensorProxy | None) -> Reject | None:
    """Taken: plain tensors of floats, with elements, of known sizes, on one device."""
    given = [one for one in tensors if one is not None]
    if refused := refuses_tensors(of, given):
        return refused
    taken = are_floats(*given) and all(one.numel for one in given)
    return None if taken else Reject(f"{of} of no elements, or of other than floats")


def wide(tensor: TensorProxy) -> Any:
    return as_type(tensor, compute_type(tensor))


def promoted(*tensors: TensorProxy) -> dtypes.dtype:
    """The type to which tensors of several types promote."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return elementwise_type_promotion(*tensors, type_promotion_kind=kind)[1]


def rounded_once(function: Function) -> Function:
    """f(bf16 x, bf16 y)  ->  to(f(to(x, f32), to(y, f32)), bf16)"""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, TensorProxy)]
        if not any(map(_is_16_bit, tensors)):
            return function(*args, **kwargs)
        args, kwargs = tree_map(lambda one: wide(one) if _is_16_bit(one) else one, (args, kwargs))
        result = function(*args, **kwargs)
        return result if result is NotImplemented else ltorch.to(result, promoted(*tensors))

    return call


def _is_16_bit(one: Any) -> bool:
    types = (dtypes.float16, dtypes.bfloat16)
    return isinstance(one, TensorProxy) and dtypes.to_strong_dtype(one.dtype) in types
