# SPDX-License-Identifier: Apache-2.0
"""A call of a torch function -> the types of its results, as torch itself has them.

    torch.floor_divide(f16[] a, a)         ->  f16
    torch.mean(b8[2] m, 0, dtype=uint8)    ->  Reject

Thunder has rules of its own for types. So torch is asked: the function is called with tensors of
its meta device, which have a shape and a type, and no elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from thunder.core.devices import Device
from thunder.core.dtypes import dtype as thunder_dtype
from thunder.core.dtypes import to_torch_dtype as torch_dtype_of
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import Symbol
from thunder.executors.torchex import ex as torch_executor
from thunder.torch import _torch_to_thunder_function_map

from thunder_fuser.executors.types import EXACT, data_type, is_known_number
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.torch_types import from_torch_dtype, to_torch_dtype
from thunder_fuser.trace.op import Reject

# None: unknown.
Answer = tuple[DataType, ...] | Reject | None
Types = Mapping[str, DataType | None]

_UNKNOWN = (AttributeError, NotImplementedError, TypeError)
_REFUSED = (RuntimeError, ValueError, OverflowError, IndexError)


def may_differ(tensors: Sequence[TensorProxy]) -> bool:
    """Where to ask: beside integers, bools, 0-dim tensors, and integers divided by a number.

    To Thunder, the last have a weak type, which gives way to any other.
    """
    return any(
        not one.ndim or one.true_dtype.is_weak or data_type(one.dtype) in EXACT for one in tensors
    )


def types_in_torch(symbol: Symbol, args: Any, kwargs: Any, types: Types) -> Answer:
    """Those of the function of a composite, or of one that Thunder's torch executor has claimed.

    types: those of tensors that differ from the trace's.
    """
    function = _claimed(symbol) if symbol.executor is not None else _named(symbol.id)
    if function is None:
        return None
    try:
        given = tree_map(functools.partial(_meta, types=types), (args, kwargs))
        named = {name: one for name, one in given[1].items() if one is not None}  # as left out
        return _types(function(*given[0], **named))
    except _UNKNOWN:
        return None
    except _REFUSED as error:
        return Reject(f"torch refuses it: {str(error).splitlines()[0]}")


def common_type(operands: Sequence[Any], types: Types) -> DataType | None:
    """The type in which torch compares two operands; None where it is unknown."""
    try:
        first, second = (_meta(one, types) for one in operands)
        return from_torch_dtype(torch.result_type(first, second))
    except (*_UNKNOWN, *_REFUSED):
        return None


def _claimed(symbol: Symbol) -> Callable[..., Any] | None:
    return getattr(symbol.module, symbol.name, None) if symbol.executor is torch_executor else None


@functools.cache
def _named(id: Any) -> Callable[..., Any] | None:
    """That of Thunder's id: mostly it is the name, torch.nn.functional.threshold."""
    found: Any = torch
    for name in str(id).removeprefix("torch.").split("."):
        found = getattr(found, name, None)
    return found if callable(found) else _listed().get(id)


@functools.cache
def _listed() -> dict[Any, Callable[..., Any]]:
    """Of a function with several names, one; some have another symbol in Thunder's list."""
    known = _torch_to_thunder_function_map.items()
    return {symbol.id: function for function, symbol in known if isinstance(symbol, Symbol)}


def _meta(value: Any, types: Types) -> Any:
    if isinstance(value, TensorProxy):
        dtype = types[value.name] if value.name in types else data_type(value.dtype)
        if dtype is None:
            raise TypeError(f"the type of {value.name} is unknown")
        return torch.empty(tuple(value._shape), dtype=to_torch_dtype(dtype), device="meta")
    if isinstance(value, NumberProxy):
        return value.value if is_known_number(value) else value.python_type(1)
    if isinstance(value, Proxy):
        raise TypeError(f"{value.name} is no tensor and no number")
    if isinstance(value, (Device, torch.device)):
        return torch.device("meta")
    return torch_dtype_of(value) if isinstance(value, thunder_dtype) else value


def _types(result: Any) -> tuple[DataType, ...] | None:
    results = result if isinstance(result, (tuple, list)) else (result,)
    if not all(isinstance(one, torch.Tensor) for one in results):
        return None
    return tuple(from_torch_dtype(one.dtype) for one in results)
