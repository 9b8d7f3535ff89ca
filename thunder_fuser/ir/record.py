# SPDX-License-Identifier: Apache-2.0
"""A call of the definition language, as data and as a Python statement.

    OpRecord("mul", ("T0", Literal.of(2.0)), ("T1",))    <->    T1 = fd.ops.mul(T0, 2.0)

A Definition is a tuple of records, which is the key of the cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.op_schema import Op
from thunder_fuser.ir.op_table import OPS

Number = bool | int | float


@dataclass(frozen=True, slots=True)
class Literal:
    """A number in a definition, compared by type and bits: 1, 1.0, True differ, NaN equals NaN."""

    kind: str
    text: str

    @staticmethod
    def of(value: Number) -> Literal:
        text = value.hex() if isinstance(value, float) else str(value)
        return Literal(type(value).__name__, text)

    @property
    def value(self) -> Number:
        if self.kind == "float":
            return float.fromhex(self.text)
        return self.text == "True" if self.kind == "bool" else int(self.text)


Operand = str | Literal
AttrValue = bool | int | float | str | DataType | Literal | tuple["AttrValue", ...] | None

# Calls on a tensor that set its allocation domain and its sharding.
LAYOUT = (
    "split", "merge", "reorder", "parallelize", "set_allocation_domain", "set_device_mesh",
    "set_partial",
)  # fmt: skip

# Attributes in which a string is the name of a value.
NAMED_ATTRS = (
    "shape", "new_shape", "length", "start_indices", "end_indices", "pad_widths", "k", "alias",
    "dropout_p", "is_causal", "scale",
)  # fmt: skip

# Attributes that may hold a size, or depend on which axes have size 1.
SIZE_ATTRS = (*NAMED_ATTRS, "chunk", "dims", "keepdim")


def exact(value: AttrValue) -> AttrValue:
    """The value with bools and floats as Literals, which are equal by type and bits.

    Integers stay plain, because they may be `Sized`.
    """
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    if isinstance(value, Literal) and value.kind == "int":
        return value.value
    return Literal.of(value) if isinstance(value, (bool, float)) else value


@dataclass(frozen=True, slots=True, eq=False)
class OpRecord:
    """One call: `outputs = op(inputs, **attrs)`. Inputs are names or Literals.

    Attributes are compared by type and bits, because records are keys of caches: dims=[0] differs
    from dims=[0.0], and keepdim=True from keepdim=1.

    `op` is a row of OPS, `define_tensor` or `define_scalar` (without inputs), `add_output`
    (without outputs), or one of LAYOUT, such as `T1.split(0, 2)`.
    """

    op: str
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[str, ...] = ()
    attrs: tuple[tuple[str, AttrValue], ...] = ()
    # The key of equality and hash, cached because a record is looked up many times.
    _key: tuple[object, ...] = field(default=(), init=False, repr=False)

    def attr(self, name: str) -> AttrValue:
        """The value of an attribute; None if the record lacks it."""
        for key, value in self.attrs:
            if key == name:
                return value.value if isinstance(value, Literal) else value
        return None

    def integer(self, name: str) -> int:
        """An attribute that is an integer."""
        return self.attr(name)  # type: ignore[return-value]

    def ints(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        return self.attr(name)  # type: ignore[return-value]

    @property
    def row(self) -> Op:
        return OPS[self.op]

    def error(self, what: str, expected: str, got: object, do: str = "") -> DefinitionError:
        """The error of one of its arguments: "pad: pad_widths: expected ..., got ..."."""
        thing = f"{self.op}: {what}" if what else self.op
        return DefinitionError(thing, expected=expected, got=str(got), do=do)

    @property
    def computes(self) -> tuple[object, ...]:
        """The call without the names of its results: equal for records that compute the same."""
        return (self._key or self._made_key())[1:]

    def _made_key(self) -> tuple[object, ...]:
        attrs = exact(self.attrs) if self.attrs else ()
        object.__setattr__(self, "_key", (self.outputs, self.op, self.inputs, attrs))
        return self._key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OpRecord):
            return NotImplemented
        return (self._key or self._made_key()) == (other._key or other._made_key())

    def __hash__(self) -> int:
        return hash(self._key or self._made_key())


Definition = tuple[OpRecord, ...]


def names_of(record: OpRecord) -> tuple[str, ...]:
    """The names of the values that a record reads, in order."""
    return tuple(name for name in record.inputs if isinstance(name, str))


def rename(record: OpRecord, names: Mapping[str, Operand]) -> OpRecord:
    """The record with operands replaced by other names or literals; unknown names stay."""
    inputs = tuple(names.get(o, o) if isinstance(o, str) else o for o in record.inputs)
    attrs = tuple(
        (key, _renamed(value, names) if key in NAMED_ATTRS else value)
        for key, value in record.attrs
    )
    return replace(record, inputs=inputs, attrs=attrs)


def _renamed(value: AttrValue, names: Mapping[str, Operand]) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(_renamed(item, names) for item in value)
    if not isinstance(value, str):
        return value
    stands = names.get(value, value)
    return stands.value if isinstance(stands, Literal) else stands


def definition_text(definition: Definition) -> str:
    """A definition as Python, without types."""
    return "\n".join(["def fusion(fd):", *("    " + record_text(r) for r in definition)]) + "\n"


def record_text(record: OpRecord) -> str:
    """One record as one statement."""
    if record.op in LAYOUT:
        (name,) = names_of(record)
        values = (_attr_text(key, value) for key, value in record.attrs)
        return f"{name}.{record.op}({', '.join(values)})"
    left = f"{', '.join(record.outputs)} = " if record.outputs else ""
    owner = "fd.ops" if record.op in OPS else "fd"
    return f"{left}{owner}.{record.op}({', '.join(_arguments(record))})"


def sizeless_text(record: OpRecord) -> str:
    """`record_text` without attributes that may be sizes, for kernels that serve many sizes."""
    attrs = tuple((key, value) for key, value in record.attrs if key not in SIZE_ATTRS)
    return record_text(replace(record, attrs=attrs))


def _arguments(record: OpRecord) -> list[str]:
    operands = [o if isinstance(o, str) else number_text(o.value) for o in record.inputs]
    if record.op == "cat":
        operands = [f"[{', '.join(operands)}]"]
    if record.op in OPS and record.row.keywords:  # the last operands may be left out
        names = record.row.keywords[: len(operands)]
        operands = [f"{n}={o}" for n, o in zip(names, operands, strict=True)]
    keywords = ("alias_input" if key == "alias" else key for key, _ in record.attrs)
    values = (_attr_text(key, value) for key, value in record.attrs)
    return operands + [f"{key}={value}" for key, value in zip(keywords, values, strict=True)]


def number_text(value: bool | int | float) -> str:
    """A number as Python that evaluates to the same bits; any NaN evaluates to NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _attr_text(key: str, value: AttrValue) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_attr_text(key, item) for item in value)}]"
    if isinstance(value, str):
        return value if key in NAMED_ATTRS else repr(value)
    value = value.value if isinstance(value, Literal) else value
    return number_text(value) if isinstance(value, (bool, int, float)) else str(value)
