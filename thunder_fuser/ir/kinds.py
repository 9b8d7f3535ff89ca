# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of calls by one table, from an argument's name to what it may be.

    sum(T0, dims=[1.0])    ->  DefinitionError "sum: dims: expected an axis or a list of axes, ..."
    sum(T0, dims=1)        ->  dims is (1,)

The op's own rule checks later that axes exist and sizes agree.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from numbers import Integral
from typing import Any, TypeVar, cast

from thunder_fuser.errors import DefinitionError, DtypeError, FuserError, shown
from thunder_fuser.ir.dtypes import DataType, fits
from thunder_fuser.ir.handles import Constant, Value
from thunder_fuser.ir.op_schema import bind

F = TypeVar("F", bound=Callable[..., Any])


class _Refused(Exception):
    """The value is not of the expected kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of argument: its text in messages, and the conversion of a value for records."""

    text: str
    take: Callable[[Any], Any]
    error: type[FuserError] = DefinitionError


def take(kind: Kind, what: str, value: Any) -> Any:
    """The value as records store it. Raises an error that names the call and the argument."""
    try:
        return kind.take(value)
    except _Refused:
        raise kind.error(what, expected=kind.text, got=shown(value)) from None


# ---- single values


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Constant) else value


def _integer(value: Any) -> int:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _Refused
    number = int(value)
    if not fits(number, DataType.Int):
        raise _Refused
    return number


def _number(value: Any) -> bool | int | float:
    value = _plain(value)
    if isinstance(value, bool):
        return value
    return float(value) if isinstance(value, float) else _integer(value)


def _instance(of: type) -> Callable[[Any], Any]:
    def taken(value: Any) -> Any:
        if not isinstance(_plain(value), of):
            raise _Refused
        return _plain(value)

    return taken


def _either(*takes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The first of several kinds that takes the value."""

    def taken(value: Any) -> Any:
        for one in takes:
            try:
                return one(value)
            except _Refused:
                continue
        raise _Refused

    return taken


def _list_of(entry: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def taken(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _Refused
        return tuple(map(entry, value))

    return taken


def _moves(value: Any) -> dict[int, int]:
    if not isinstance(value, Mapping):
        raise _Refused
    return {_integer(old): _integer(new) for old, new in value.items()}


_flag, _value = _instance(bool), _instance(Value)
_maybe = _either(_flag, _instance(type(None)))
_size = _either(_integer, _value)
_operand = _either(_number, _value)

INTEGERS = Kind("a list of integers", _list_of(_integer))
NUMBER = Kind("a real number, an integer one of 64 bits", _number)
TENSORS = Kind("a list of tensors", _list_of(_operand))
OPERAND = Kind("a tensor, a scalar or a real number, an integer one of 64 bits", _operand)
CHECKED = Kind("", lambda value: value)  # the call itself checks the argument

_KINDS: dict[str, Kind] = {
    "chunk factor k num_weights padding_idx": Kind("an integer of 64 bits", _integer),
    "broadcast_dims pad_widths sizes stride_order strides": INTEGERS,
    "correction max_norm norm_type": NUMBER,
    "descending donated inner_split is_cpu keepdim largest scale_grad_by_freq short sorted sparse"
    " stable static_sizes": Kind("True or False", _flag),
    "is_broadcast_dim": Kind("a list of True and False", _list_of(_flag)),
    "at axis dim inner outer": Kind("an axis", _integer),
    "dims": Kind(
        "an axis or a list of axes", _either(_list_of(_integer), lambda axis: (_integer(axis),))
    ),
    "length": Kind("an integer of 64 bits, or a scalar", _size),
    "end_indices new_shape shape start_indices": Kind(
        "a list of integers and scalars", _list_of(_size)
    ),
    "dtype": Kind(
        f"a DataType ({', '.join(d.name for d in DataType)})", _instance(DataType), DtypeError
    ),
    "contiguity": Kind(
        "True, False, or a list of True, False and None", _either(_flag, _list_of(_maybe))
    ),
    "drawn": Kind("a word", _instance(str)),
    "alias_input arg output": Kind("a tensor", _value),
    "tensors": TENSORS,
}
BY_NAME: dict[str, Kind] = {name: kind for names, kind in _KINDS.items() for name in names.split()}

# Exceptions: in these calls the name has another meaning.
BY_CALL: dict[tuple[str, str], Kind] = {
    ("pad", "value"): NUMBER,
    ("define_tensor", "shape"): INTEGERS,
    ("add_output", "shape"): INTEGERS,
    ("define_scalar", "value"): Kind(
        "a real number, an integer one of 64 bits, or a DataType",
        _either(_number, _instance(DataType)),
    ),
    ("define_scalar", "coordinate"): CHECKED,
    ("define_vector", "values"): Kind(
        "a number of scalars, or a list of integers and scalars",
        _either(_integer, _list_of(_either(_instance(Constant), _operand))),
    ),
    ("reorder", "order"): Kind(
        "a list of axes, or {old: new} of axes", _either(_list_of(_integer), _moves)
    ),
    ("parallelize", "parallel"): CHECKED,
    ("set_device_mesh", "mesh"): CHECKED,
    ("set_allocation_domain", "domain"): Kind("a list of axes", _list_of(lambda axis: axis)),
}


def checked_argument(call: str, name: str, value: Any, default: Any) -> Any:
    """One argument as records store it. None is taken only if it is the default.

    Operands have no row in the table.
    """
    if value is None and default is None:
        return None
    kind = BY_CALL.get((call, name)) or BY_NAME.get(name, OPERAND)
    return take(kind, f"{call}: {name}", value)


def checked(function: F) -> F:
    """Decorates a call: checks its arguments and converts them for records."""
    call, signature = function.__name__, inspect.signature(function)

    @wraps(function)
    def with_checks(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = bind(signature, call, _called(signature), self, *args, **kwargs)
        del bound["self"]
        found = {
            name: checked_argument(call, name, value, signature.parameters[name].default)
            for name, value in bound.items()
        }
        return function(self, **found)

    return cast(F, with_checks)


def _called(signature: inspect.Signature) -> str:
    names = [
        f"{p.name}={p.default}" if p.default is not inspect.Parameter.empty else p.name
        for p in list(signature.parameters.values())[1:]
    ]
    return f"({', '.join(names)})"
