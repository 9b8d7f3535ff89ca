# SPDX-License-Identifier: Apache-2.0
"""What calls of a definition take: values, and a table from an argument's name to its kind.

    sum(T0, dims=[1.0])    ->  DefinitionError "sum: dims: expected an axis or a list of axes, ..."
    sum(T0, dims=1)        ->  dims is (1,)

The op's own rule checks later that axes exist and sizes agree.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from numbers import Integral
from typing import Any, Protocol, TypeVar, cast

from thunder_fuser.errors import DefinitionError, DtypeError, FuserError, MeshError, shown
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType, fits, held, of_number
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.mesh import REDUCTIONS, Mesh, word_of
from thunder_fuser.ir.op_schema import bind, own_names
from thunder_fuser.ir.record import Definition, Number, Operand, OpRecord
from thunder_fuser.ir.rules.type_rules import ValueType, result_types

F = TypeVar("F", bound=Callable[..., Any])


class Owner(Protocol):
    """The definition that a value belongs to: `language.Recorder`, as its values see it."""

    @property
    def records(self) -> Definition:
        """The calls so far."""

    def record(self, record: OpRecord) -> None:
        """Appends one call."""

    def view_of(self, name: str) -> TensorView:
        """The type and the axes of a value."""

    def operand(self, value: Any, call: str, name: str) -> Operand:
        """The name or Literal of an argument."""

    @property
    def ops(self) -> Any:
        """The ops, as methods."""


@dataclass(frozen=True, slots=True)
class Value:
    """What an op returns and takes: the name of a tensor or of a scalar, and its definition."""

    name: str
    owner: Owner = field(compare=False, repr=False)

    def __repr__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        """Raises a DefinitionError: `if`, `and`, `or` and `not` see no elements."""
        what, got = f"{self.name} as True or False", "a value that each call has"
        do = "choose elements with fd.ops.where; bitwise operators combine conditions"
        raise DefinitionError(what, expected="a bool of Python", got=got, do=do)

    def dtype(self) -> DataType:
        """The type of the elements, or of the scalar."""
        return self.owner.view_of(self.name).dtype

    def is_tensor(self) -> bool:
        """False for a scalar."""
        return not self.owner.view_of(self.name).is_scalar


# Python's operators -> ops. `==` compares names, because values are keys of dictionaries.
_OPERATORS = {
    **{name: name for name in ("add", "sub", "mul", "truediv", "pow")},
    **{name: f"bitwise_{name}" for name in ("and", "or", "xor")},
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_OTHERS = {name: name for name in ("lt", "le", "gt", "ge", "neg", "abs")} | {
    "invert": "bitwise_not"
}


def _operator(op: str, *, swapped: bool = False) -> Callable[..., Any]:
    def apply(self: Value, *other: Any) -> Any:
        return getattr(self.owner.ops, op)(*((*other, self) if swapped else (self, *other)))

    return apply


for _name, _op in (_OPERATORS | _OTHERS).items():
    setattr(Value, f"__{_name}__", _operator(_op))
for _name, _op in _OPERATORS.items():
    setattr(Value, f"__r{_name}__", _operator(_op, swapped=True))


@dataclass(frozen=True, slots=True, repr=False)
class Scalar(Value):
    """A scalar of a definition, given at the call or computed."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A scalar known when the fusion is defined. Operators on constants and numbers give more."""

    value: Number
    declared: DataType | None = field(default=None, compare=False)

    def dtype(self) -> DataType:
        """The type that it was defined with; by default Bool, Int or Double, by its value."""
        return self.declared or of_number(self.value)

    def is_tensor(self) -> bool:
        """False, as of every scalar."""
        return False


def _folded(op: str, name: str, *, swapped: bool = False) -> Callable[..., Any]:
    function = getattr(operator, name)

    def apply(self: Constant, *other: Any) -> Any:
        operands = [*other, self] if swapped else [self, *other]
        values = [_plain(operand) for operand in operands]
        if not all(isinstance(value, (int, float)) for value in values):
            return NotImplemented  # the operator of the other one takes it
        try:
            return _typed(op, function(*values), operands)
        except (ArithmeticError, TypeError, ValueError) as error:
            got = f"{name} of {', '.join(map(str, values))}: {error}"
            raise DefinitionError("a constant", expected="a number", got=got) from None

    return apply


def _typed(op: str, value: Number, operands: Sequence[Any]) -> Constant:
    """The result of an op on constants. One that was defined with a type decides the result's, as
    scalars of these types do."""
    if not any(isinstance(arg, Constant) and arg.declared for arg in operands):
        return Constant(value)
    types = [arg.dtype() if isinstance(arg, Constant) else of_number(arg) for arg in operands]
    (result,) = result_types(OpRecord(op), [ValueType(dtype, is_scalar=True) for dtype in types])
    return Constant(held(value, result), result)


for _name, _op in (_OPERATORS | _OTHERS).items():
    _function = {"and": "and_", "or": "or_"}.get(_name, _name)
    setattr(Constant, f"__{_name}__", _folded(_op, _function))
    if _name in _OPERATORS:
        setattr(Constant, f"__r{_name}__", _folded(_op, _function, swapped=True))


# ---- kinds of arguments


class _Refused(Exception):
    """The value is not of the expected kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of argument: its text in messages, the conversion of a value for records, its type.

    python: the type in signatures; only kinds of arguments of ops have one.
    """

    text: str
    take: Callable[[Any], Any]
    python: str = ""
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
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or not fits(int(value), DataType.Int):
        raise _Refused
    return int(value)


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
        for conversion in takes:
            try:
                return conversion(value)
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


def _one_of(words: Sequence[str]) -> Callable[[Any], Any]:
    def taken(value: Any) -> Any:
        if value not in words:
            raise _Refused
        return value

    return taken


def _device_type(value: Any) -> str:
    try:
        kind = ParallelType(value)
    except ValueError:
        raise _Refused from None
    if not kind.is_device:
        raise _Refused
    return kind.value


def _placements(value: Any) -> tuple[str, ...]:
    try:
        return tuple(map(word_of, value))
    except (TypeError, ValueError):
        raise _Refused from None


def _moves(value: Any) -> dict[int, int]:
    if not isinstance(value, Mapping):
        raise _Refused
    return {_integer(old): _integer(new) for old, new in value.items()}


_flag, _value = _instance(bool), _instance(Value)
_none = _instance(type(None))
_maybe = _either(_flag, _none)
_size = _either(_integer, _value)
_operand = _either(_number, _value)

TENSOR = Kind("a tensor", _value, "Value")
TENSORS = Kind("a list of tensors", _list_of(_operand), "Sequence[Value]")
OPERAND = Kind(
    "a tensor, a scalar or a real number, an integer one of 64 bits",
    _operand,
    "Value | Constant | float",
)

# `call.name` is an argument that has another kind than the name has in other calls.
_KINDS: dict[str, Kind] = {
    "block_size chunk define_vector.size factor num_weights output_block_scale_size"
    " padding_idx": Kind("an integer of 64 bits", _integer, "int"),
    "broadcast_dims sizes stride_order strides add_output.shape"
    " define_tensor.shape": Kind("a list of integers", _list_of(_integer), "Sequence[int]"),
    "max_norm": Kind(
        "a real number, an integer one of 64 bits, or a scalar", _operand, "float | Value"
    ),
    "norm_type": Kind(
        "a real number, an integer one of 64 bits, or a scalar",
        _either(_operand, lambda value: _none(value) or 2.0),
        "float | Value | Constant | None",
    ),
    "is_causal embedding_fwd.scale_grad_by_freq sparse": Kind(
        "True, False or a scalar",
        _either(_flag, _value, lambda value: bool(_none(value))),
        "bool | Value | Constant | None",
    ),
    "correction": Kind("a real number, an integer one of 64 bits", _number, "float"),
    "pad.value": Kind(
        "a real number, an integer one of 64 bits, or a scalar",
        _either(_number, lambda value: _none(value) or 0),
        "float | Value | Constant | None",
    ),
    "manual_padding": Kind("True or False", _either(_flag, _integer), "bool"),
    "apart descending donated imag inner_split is_cpu keepdim largest pairs scale_grad_by_freq"
    " shares short sorted output_gamma stable static_sizes swizzle_scales": Kind(
        "True or False", _flag, "bool"
    ),
    "is_broadcast_dim": Kind("a list of True and False", _list_of(_flag), "Sequence[bool]"),
    "at.vector": Kind("a list of integers and scalars", _list_of(_size)),
    "at.index": Kind("an integer of 64 bits", _integer),
    "at axis cat_dim dim inner outer split_dim": Kind("an axis", _integer, "int"),
    "root": Kind("a coordinate in the mesh", _integer, "int"),
    "on": Kind('"mesh_x", "mesh_y" or "mesh_z"', _device_type, "str", MeshError),
    "streams": Kind("an axis and a number of pieces", _list_of(_integer), "Sequence[int] | None"),
    "mesh": Kind(
        "a mesh of devices, or lists of ranks", lambda value: Mesh.of(value).nested, "Any",
        MeshError,
    ),
    "reduce": Kind(f"one of {', '.join(REDUCTIONS)}", _one_of(REDUCTIONS), "str"),
    "placements": Kind(
        "a list of Shard(axis), Replicate() and Partial(sum)", _placements, "Sequence[Any]"
    ),
    "dims": Kind(
        "an axis or a list of axes",
        _either(_list_of(_integer), lambda axis: (_integer(axis),)),
        "int | Sequence[int]",
    ),
    "dropout_p scale": Kind(
        "a real number or a scalar",
        _either(_number, _value, lambda value: _none(value) or 0.0),
        "float | Value | Constant | None",
    ),
    "k length embedding_fwd.padding_idx": Kind(
        "an integer of 64 bits, or a scalar", _size, "int | Value | Constant"
    ),
    "end_indices new_shape pad_widths shape start_indices": Kind(
        "a list of integers and scalars", _list_of(_size), "Sequence[int | Value | Constant]"
    ),
    "dtype output_block_scale_dtype": Kind(
        f"a DataType ({', '.join(d.name for d in DataType)})",
        _instance(DataType),
        "DataType",
        DtypeError,
    ),
    "contiguity": Kind(
        "True, False, or a list of True, False and None", _either(_flag, _list_of(_maybe))
    ),
    "drawn": Kind("a word", _instance(str)),
    "alias_input arg output": TENSOR,
    "tensors": TENSORS,
    "define_scalar.value": Kind(
        "a number, an integer one of 64 bits, or a DataType",
        _either(_number, _instance(complex), _instance(DataType)),
    ),
    "define_vector.values": Kind(
        "a number of scalars, or a list of integers and scalars",
        _either(_integer, _list_of(_either(_instance(Constant), _operand))),
    ),
    "reorder.order": Kind(
        "a list of axes, or {old: new} of axes", _either(_list_of(_integer), _moves)
    ),
    "set_allocation_domain.domain": Kind("a list of axes", _list_of(lambda axis: axis)),
    # The call itself checks these.
    "define_scalar.coordinate parallelize.parallel": Kind("", lambda it: it),
}
_BY_NAME: dict[str, Kind] = {name: kind for names, kind in _KINDS.items() for name in names.split()}


def kind_of(call: str, name: str) -> Kind:
    """The kind of an argument. Operands have no row in the table."""
    return _BY_NAME.get(f"{call}.{name}") or _BY_NAME.get(name, OPERAND)


def checked_argument(call: str, name: str, value: Any, default: Any) -> Any:
    """One argument as records store it. None is taken only if it is the default."""
    if value is None and default is None:
        return None
    return take(kind_of(call, name), f"{call}: {name}", value)


def checked(function: F) -> F:
    """Decorates a call: checks its arguments and converts them for records."""
    call, signature = function.__name__, inspect.signature(function)

    @wraps(function)
    def with_checks(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = bind(signature, call, (self, *args), own_names(signature, kwargs))
        del bound["self"]
        converted = {
            name: checked_argument(call, name, value, signature.parameters[name].default)
            for name, value in bound.items()
        }
        return function(self, **converted)

    return cast(F, with_checks)
