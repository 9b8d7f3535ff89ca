# SPDX-License-Identifier: Apache-2.0
"""The two ways to define a torch function.

    Rewrite      clip(x, 0)  ->  where(ge(x, 0), x, 0)       while Thunder traces the program
    Composite    sigmoid(x)  ->  sigmoid(x), in the trace    while Thunder traces the program
                             ->  reciprocal(1 + exp(-x))     when the fuser claims it
                 its gradient    dy * y * (1 - y)

Thunder differentiates the functions that a Rewrite calls. A Composite has its own gradient. Both
compute 16-bit floats in float32, as torch: its one kernel for such a function rounds only the
result.

If a Rewrite returns its argument or a view of it, the result is cloned unless torch returns a view
too. Otherwise the caller could write to the argument through it. So roll(x, 0) is clone(x).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes, prims
from thunder.core.interpreter import unwrap, wrap_const
from thunder.core.jit_ext import record_source_loc_in_symbol_header, recursively_proxy
from thunder.core.prims import OpTags, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import detached_trace, get_tracectx
from thunder.core.utils import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_type_promotion

from thunder_fuser.executors.record.result_dtypes import may_differ, types_in_torch
from thunder_fuser.executors.support.dtypes import ANY, COMPLEX, FLOATS, data_type
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import VIEWS, makes, parts, reads

Function = Callable[..., Any]
# The gradient of the result -> (tensor, its gradient), ...
Backward = Callable[[Any], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A function that is called in place of torch's.

    For a call that it does not take, or that torch refuses, it returns NotImplemented.
    """

    function: Function
    may_be_view: bool = False  # the result may be a view of the argument, as in torch
    of_complex: bool = False  # takes complex tensors too


def rewrites(
    prefix: str, *functions: Function, may_be_view: bool = False, of_complex: bool = False,
    **named: Function,
) -> dict[str, Rewrite]:  # fmt: skip
    """{prefix + name: Rewrite}, for functions by their own names and by keywords."""
    every = {function.__name__: function for function in functions} | named
    return {prefix + name: Rewrite(every[name], may_be_view, of_complex) for name in every}


@dataclass(frozen=True, slots=True)
class Composite:
    """A function that stays one symbol of the trace until the fuser claims it.

    refuses: why Thunder keeps a call, or None; transform: the function that the call becomes;
    gradient: the same, with gradients; rewrite: a function that Thunder calls first, while it
    traces, and that calls Thunder's symbol.
    """

    refuses: Callable[..., Reject | None]
    transform: Function
    gradient: Function
    rewrite: Function | None = None


Table = Mapping[str, Rewrite | Composite]


def with_gradient(
    refuses: Callable[..., Reject | None],
    forward: Callable[..., tuple[Any, Backward]],
    transform: Function | None = None,
) -> Composite:
    """A Composite of forward(*args) -> (result, backward); gradients are cast to their tensors'.

    Of several results, the first one has a gradient. transform: the function to call if no
    gradient is needed; by default forward.
    """

    def gradient(*args: Any, **kwargs: Any) -> Any:
        result, backward = forward(*args, **kwargs)
        y = result[0] if isinstance(result, tuple) else result
        for tensor, of_tensor in backward(get_grad(y)):
            put_grad(tensor, as_type(of_tensor, tensor.dtype))
        return result

    def result_of(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)[0]

    return Composite(refuses, transform or result_of, gradient)


def of_calls(call: Function) -> Composite:
    """A Composite of call(*args) -> an object with the methods `refuses` and `forward`."""
    return with_gradient(
        lambda *args, **kwargs: call(*args, **kwargs).refuses(),
        lambda *args, **kwargs: call(*args, **kwargs).forward(),
    )


def refuses_tensors(of: str, *tensors: TensorProxy | None) -> Reject | None:
    """None for plain tensors of one device and of known sizes; else why they are refused."""
    operands = [tensor for tensor in tensors if tensor is not None]
    if any(type(x) is not TensorProxy or x.device != operands[0].device for x in operands):
        return Reject(f"{of} of operands that are not plain tensors on one device")
    known = all(type(size) is int for operand in operands for size in operand._shape)
    return None if known else Reject("symbolic size")


def refuses_floats(of: str, *tensors: TensorProxy | None) -> Reject | None:
    """As refuses_tensors, and the tensors must be floats and have elements."""
    if refused := refuses_tensors(of, *tensors):
        return refused
    taken = all(data_type(x.dtype) in FLOATS and x.numel for x in tensors if x is not None)
    return None if taken else Reject(f"{of} of tensors without elements, or not of floats")


def as_type(tensor: Any, dtype: dtypes.dtype) -> Any:
    """The tensor in a type; itself if it has the type, for Thunder would make a view."""
    return tensor if tensor.dtype == dtype else ltorch.to(tensor, dtype)


def compute_type(tensor: TensorProxy) -> dtypes.dtype:
    """float64 for float64 tensors, float32 for all shorter floats."""
    return dtypes.float64 if tensor.dtype == dtypes.float64 else dtypes.float32


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
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, TensorProxy)]
        if not any(map(is_16_bit, tensors)):
            return function(*args, **kwargs)
        args, kwargs = tree_map(lambda x: wide(x) if is_16_bit(x) else x, (args, kwargs))
        result = function(*args, **kwargs)
        return result if result is NotImplemented else ltorch.to(result, promoted(*tensors))

    return call


def is_16_bit(x: Any) -> bool:
    """True for a tensor of half or bf16."""
    types = (dtypes.float16, dtypes.bfloat16)
    return isinstance(x, TensorProxy) and dtypes.to_strong_dtype(x.dtype) in types


# -------------------------------------------------------- what Thunder calls in place of torch's


def lookasides(rewrites: Mapping[str, Rewrite]) -> dict[Function, Function]:
    """{a function that a user's program calls: the function to call instead}."""
    symbols = {
        called: symbol
        for called, symbol in ltorch._torch_to_thunder_function_map.items()
        if isinstance(symbol, Symbol) and symbol.id in rewrites
    }
    by_symbol = {symbol: replacement(rewrites[symbol.id], symbol) for symbol in symbols.values()}
    # A method of a tensor is called by its symbol.
    return by_symbol | {called: by_symbol[symbol] for called, symbol in symbols.items()}


def replacement(rewrite: Rewrite, symbol: Symbol) -> Function:
    """The function to call instead of a symbol; it calls the symbol if the rewrite does not fit."""
    signature = inspect.signature(getattr(rewrite.function, "meta", rewrite.function))
    types = ANY | COMPLEX if rewrite.of_complex else ANY

    def result_of(args: Any, kwargs: Any) -> Any:
        args = _with_one_tuple(signature, symbol, args)
        # Thunder's gradients of products fail on tensors without elements.
        plain = all(
            type(x) is TensorProxy and data_type(x.dtype) in types and x.numel
            for x in tree_flatten((args, kwargs))[0] if isinstance(x, (TensorProxy, torch.Tensor))
        )
        if plain and _is_taken(signature, symbol, args, kwargs):
            result = rewrite.function(*args, **kwargs)
            results = [] if result is NotImplemented else _proxies(result)
            # Thunder's rules may give the results other types than torch's, or torch may refuse.
            is_asked = results and may_differ(_proxies((args, kwargs)))
            theirs = types_in_torch(symbol, args, kwargs, {}) if is_asked else None
            is_same = theirs is None or theirs == tuple(data_type(x.dtype) for x in results)
            if result is not NotImplemented and is_same:
                return result
        return symbol(*args, **kwargs)

    @noted
    @functools.wraps(symbol.meta)
    def call(*args: Any, **kwargs: Any) -> Any:
        scope = get_tracectx().peek_scope()
        before = len(scope)
        result = result_of(args, kwargs)
        if not rewrite.may_be_view:
            result = _without_views(result, scope[before:])
        # Thunder makes an argument part of the trace only if something reads it: a view that
        # nothing uses reads those of which only the shape was used. If two arguments are the same
        # tensor and one is not read, Thunder confuses them with others.
        read = {x.name for bsym in scope[before:] for x in reads(bsym)}
        for x in _proxies((args, kwargs)):
            if x.name not in read:
                prims.shallow_copy(x)
        return result

    return call


def _proxies(tree: Any) -> list[TensorProxy]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, TensorProxy)]


def noted(function: Function) -> Function:
    """The function, called after Thunder has noted the user's line and the items of lists.

    Thunder does this for its own symbols. Without it, f(x, [2]) would run the trace of f(x, [1]).
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        record_source_loc_in_symbol_header(tuple)()
        # Thunder's interpreter passes bare values; wrap_const finds its record of each again.
        by_place = [wrap_const(x) for x in args]
        by_name = {name: wrap_const(x) for name, x in kwargs.items()}
        recursively_proxy(*by_place, **by_name)
        return function(*map(unwrap, by_place), **{x: unwrap(by_name[x]) for x in by_name})

    return call


def _with_one_tuple(signature: inspect.Signature, symbol: Symbol, args: Any) -> Any:
    """The arguments as torch's function takes them, where a method takes more forms.

    x.tile(2, 1)  ->  x.tile((2, 1))
    """
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    variadic = inspect.Parameter.VAR_POSITIONAL
    first = kinds.index(variadic) if variadic in kinds else len(args)
    numbers = args[first:]
    asks_torch = OpTags.AUTO_REGISTERED in (symbol.tags or ())
    if not (asks_torch and numbers and all(type(number) is int for number in numbers)):
        return args
    return (*args[:first], numbers)


def _is_taken(signature: inspect.Signature, symbol: Symbol, args: Any, kwargs: Any) -> bool:
    """False for arguments that the function lacks, or that torch refuses.

    For functions that Thunder does not know, its meta function asks torch, so any error of torch
    arrives here, as a NotImplementedError.
    """
    try:
        signature.bind(*args, **kwargs)
        if OpTags.AUTO_REGISTERED in (symbol.tags or ()):
            with detached_trace():
                symbol.meta(*args, **kwargs)
    except (TypeError, NotImplementedError):
        return False
    return True


def _without_views(result: Any, bsyms: Sequence[BoundSymbol]) -> Any:
    """The result; a tensor that these bound symbols only viewed, or did not make, is cloned."""
    computed: set[str] = set()
    for leaf in (part for bsym in bsyms for part in parts(bsym)):
        if leaf.sym.id not in VIEWS or reads(leaf)[0].name in computed:
            computed.update(x.name for x in makes(leaf))

    def is_view(x: Any) -> bool:
        return type(x) is TensorProxy and x.name not in computed

    return tree_map(lambda x: ltorch.clone(x) if is_view(x) else x, result)
