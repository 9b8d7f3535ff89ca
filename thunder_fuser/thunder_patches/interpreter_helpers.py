# SPDX-License-Identifier: Apache-2.0
"""Thunder's own helpers, which it interprets like a user's program -> only the calls they make.

    for x in xs        Thunder interprets   def _next_impl(tos): return next(tos)
                       and in it            def impl(iterator): return iterator.__next__()
                       and in it            SequenceIter.__next__, of twenty instructions

An instruction costs Thunder 20 us or more. A function here makes the calls of one helper, through
Thunder's interpreter and in the same order. So the guards that the calls add, and the effects of
the user's own methods, stay the same. Python does the rest (comparisons of lengths, tests of
types): the values that it uses are guarded by the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    do_raise,
    get_interpreterruntimectx,
    unwrap,
    wrap_args_from_list,
    wrap_const,
    wrap_kwargs_from_dict,
)
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from torch import nn

from thunder_fuser.thunder_patches.patch import there

# Called with a function and its arguments. It returns the function's result; or NotImplemented
# before it has called anything, and then Thunder interprets the function.
Helper = Callable[..., Any]
_BUILTIN = (dict, list, tuple)


class _RaisedError(Exception):
    """The interpreted program has raised; Thunder keeps the exception."""


def run(helper: Helper, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The helper's result, or Thunder's signal of an exception."""
    try:
        return helper(function, *args, **kwargs)
    except _RaisedError:
        return INTERPRETER_SIGNALS.EXCEPTION_RAISED


# ------------------------------------------------------------------------------------------- steps


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    result = interpreter._interpret_call(function, *args, **kwargs)
    if result is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        raise _RaisedError
    return result


def _raise(error: BaseException) -> None:
    do_raise(error)
    raise _RaisedError


def _attribute(of: Any, name: str) -> Any:
    return _call(getattr, of, wrap_const(name))


def _method(of: Any, name: str, *args: Any) -> Any:
    """of.name(*args). For a builtin, the type's method is called, as Thunder does in the end."""
    kind = type(unwrap(of))
    known = getattr(kind, name, None) if kind in _BUILTIN else None
    return _call(_attribute(of, name), *args) if known is None else _call(known, of, *args)


def _has(value: Any, name: str) -> bool:
    return hasattr(type(unwrap(value)), name)


def _each(iterable: Any) -> Iterator[Any]:
    """The items, as a loop takes them."""
    iterator = _call(iter, iterable)
    while True:
        try:
            item = _call(next, iterator)
        except _RaisedError:
            context = get_interpreterruntimectx()
            if not isinstance(context.curexc, StopIteration):
                raise
            context.curexc = None
            return
        yield item


# ----------------------------------------------------------------------------------------- helpers


def _next_of_sequence(_: Any, self: Any) -> Any:
    if _attribute(self, "is_reversed").value:
        return NotImplemented
    sequence, at = _attribute(self, "s"), _attribute(self, "next_pos")
    if at.value >= _call(len, sequence).value:
        _raise(StopIteration())
    item = _item(None, sequence, at)
    _call(setattr, self, wrap_const("next_pos"), wrap_const(at.value + 1))
    return item


def _item(_: Any, of: Any, key: Any) -> Any:
    return _method(of, "__getitem__", key)


def _contains(_: Any, box: Any, item: Any) -> Any:
    return _method(box, "__contains__", item) if _has(box, "__contains__") else NotImplemented


def _length(_: Any, of: Any) -> Any:
    if not _has(of, "__len__"):
        return NotImplemented
    wrapped = _method(of, "__len__")
    length = unwrap(wrapped)
    if not isinstance(length, int):
        name = type(length).__name__
        _raise(TypeError(f"'{name}' object cannot be interpreted as an integer"))
    if length < 0:
        _raise(ValueError("__len__() should return >= 0"))
    return wrapped


def _update_by_keys(_: Any, mapping: Any, other: Any) -> Any:
    for key in _each(_method(other, "keys")):
        _method(mapping, "__setitem__", key, _item(None, other, key))
    return wrap_const(None)


def _store(_: Any, of: Any, name: Any, value: Any) -> Any:
    _call(setattr, of, name, value)
    return wrap_const(None)


def _operator(_: Any, x: Any, y: Any, name: Any) -> Any:
    kind = _call(type, x)
    if not hasattr(unwrap(kind), unwrap(name)):
        return wrap_const(NotImplemented)
    return _call(_call(getattr, kind, name), x, y)


def _out_of_place(_: Any, x: Any, y: Any, left: Any, right: Any, sign: Any) -> Any:
    result = _operator(None, x, y, left)
    if unwrap(result) is NotImplemented:
        result = _operator(None, y, x, right)
    if unwrap(result) is NotImplemented:
        kinds = f"'{type(unwrap(x))}' and '{type(unwrap(y))}'"
        _raise(TypeError(f"unsupported operand type(s) for {unwrap(sign)}: {kinds}"))
    return result


def _bound(_: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
    return _call(_attribute(method, "__func__"), _attribute(method, "__self__"), *args, **kwargs)


def _partial(_: Any, partial: Any, *args: Any, **kwargs: Any) -> Any:
    function = _attribute(partial, "func")
    first = wrap_args_from_list(_attribute(partial, "args"))
    keywords = wrap_kwargs_from_dict(_attribute(partial, "keywords"))
    return _call(function, *first, *args, **{**keywords, **kwargs})


def _attribute_of_module(_: Any, module: Any, name: Any) -> Any:
    """nn.Module.__getattr__: a parameter, a buffer or a submodule."""
    attributes = _attribute(module, "__dict__")
    for kind in map(wrap_const, ("_parameters", "_buffers", "_modules")):
        if _contains(None, attributes, kind).value:
            known = _item(None, attributes, kind)
            if _contains(None, known, name).value:
                return _item(None, known, name)
    text = f"'{type(unwrap(module)).__name__}' object has no attribute '{unwrap(name)}'"
    return _raise(AttributeError(text))


def _on_dtensors(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the symbol for DTensors if all tensors are DTensors, else that for plain tensors."""
    cells = unwrap(function).__code__.co_freevars, unwrap(function).__closure__
    symbols = {name: cell.cell_contents for name, cell in zip(*cells, strict=True)}
    values = tuple(map(unwrap, args)), {name: unwrap(value) for name, value in kwargs.items()}
    tensors = [leaf for leaf in tree_flatten(values)[0] if isinstance(leaf, TensorProxy)]
    is_spread = bool(tensors) and all(isinstance(tensor, DTensorProxy) for tensor in tensors)
    chosen = symbols["dtensor_symbol" if is_spread else "single_device_symbol"]
    return _call(chosen, *args, **kwargs)


# ------------------------------------------------------------------------------------------- codes


def _inside(code: CodeType, name: str) -> CodeType:
    """The code of a function that is defined inside of another, even in a comprehension there."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            named = inner if inner.co_name == name else _inside(inner, name)
            if named.co_name == name:
                return named
    return code


_OF_INTERPRETER = "thunder.core.interpreter:"
_OF_DTENSORS = "thunder.torch.experimental.dtensor_torch_and_prims:dispatch_to_impl"
# {(a function of Thunder's, the function inside of it that is interpreted): what is called instead}
_INSIDE: Mapping[tuple[str, str], Helper] = {
    (_OF_INTERPRETER + "_next_lookaside", "impl"): lambda _, it: _method(it, "__next__"),
    (_OF_INTERPRETER + "_for_iter_handler", "_next_impl"): lambda _, it: _call(next, it),
    (_OF_INTERPRETER + "_iter_lookaside", "nosentinel_impl"): lambda _, iterable: (
        _method(iterable, "__iter__") if _has(iterable, "__iter__") else NotImplemented
    ),
    (_OF_INTERPRETER + "_binary_subscr_handler", "getitem_impl"): _item,
    (_OF_INTERPRETER + "wrap_args_from_list", "<lambda>"): _item,
    (_OF_INTERPRETER + "wrap_kwargs_from_dict", "<lambda>"): _item,
    (_OF_INTERPRETER + "_setup_frame_and_run_python_function", "<lambda>"): _item,
    (_OF_INTERPRETER + "_contains_op_handler", "impl"): _contains,
    (_OF_INTERPRETER + "_len_lookaside", "impl"): _length,
    (_OF_INTERPRETER + "_list_extend_handler", "<lambda>"): lambda _, items, more: (
        _method(items, "extend", more)
    ),
    (_OF_INTERPRETER + "_dict_merge_handler", "<lambda>"): lambda _, more, mapping: (
        _method(mapping, "update", more)
    ),
    (_OF_INTERPRETER + "MutMappingWrapperMethods.update", "impl_other_keys"): _update_by_keys,
    (_OF_INTERPRETER + "_store_attr_handler", "impl"): _store,
    (_OF_INTERPRETER + "_setattr_lookaside", "<lambda>"): lambda _, kind, of, name, value: (
        _method(kind, "__setattr__", of, name, value)
    ),
    (_OF_INTERPRETER + "_binary_op", "inplace_impl"): _operator,
    (_OF_INTERPRETER + "_binary_op", "outofplace_impl"): _out_of_place,
    (_OF_INTERPRETER + "_call_dispatch", "_impl"): _bound,
    (_OF_INTERPRETER + "partial_call_lookaside", "partial_call_impl"): _partial,
    (_OF_DTENSORS, "wrapper"): _on_dtensors,
}
READ = tuple({place: None for place, _ in _INSIDE})

CODES: tuple[tuple[CodeType, Helper], ...] = (  # before anything in Thunder is replaced
    *((_inside(there(outer).__code__, name), _INSIDE[outer, name]) for outer, name in _INSIDE),
    (interpreter.SequenceIter.__next__.__code__, _next_of_sequence),
    (nn.Module.__getattr__.__code__, _attribute_of_module),
)
# {the identity of a function's code, for codes of equal content compare equal: its helper}
HELPERS: dict[int, Helper] = {id(code): helper for code, helper in CODES}
