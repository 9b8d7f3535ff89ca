# SPDX-License-Identifier: Apache-2.0
"""A call of the definition language as data, and as the statement that makes it.

    OpRecord("mul", ("T0", Literal.of(2.0)), ("T1",))    <->    T1 = fd.ops.mul(T0, 2.0)

A Definition is a tuple of records, the key of the cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.op_schema import Op
from thunder_fuser.ir.op_table import OPS

Number = bool | int | float


@dataclass(frozen=True, slots=True)
class Literal:
    """A number in a definition; equal by type and bits, so 1, 1.0 and True differ, NaN equals."""

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

# Calls on a tensor: from its logical axes to those of its memory, and who holds which part.
LAYOUT = ("split", "merge", "reorder", "parallelize", "set_allocation_domain", "set_device_mesh")

# Attributes in which a string is the name of a value, not a word.
NAMED_ATTRS = ("shape", "new_shape", "length", "start_indices", "end_indices", "alias")

# Those that may hold a size of the call, or depend on which axes have size 1.
SIZE_ATTRS = (*NAMED_ATTRS, "pad_widths", "chunk", "dims", "keepdim")


def exact(value: AttrValue) -> AttrValue:
    """The value with its flags and fractions as Literals, which are equal by type and bits.

    Integers stay plain: a size of the call is one that knows where it comes from.
    """
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    if isinstance(value, Literal) and value.kind == "int":
        return value.value
    return Literal.of(value) if isinstance(value, (bool, float)) else value


@dataclass(frozen=True, slots=True, eq=False)
class OpRecord:
    """One call: `outputs = op(inputs, **attrs)`. Inputs are names or Literals.

    Two are equal if their attributes are by type and bits: a record is a key of caches, and
    dims=[0] is not dims=[0.0], nor keepdim=True keepdim=1.

    Beside the rows of OPS there are records of the definition itself: `define_tensor`,
    `define_scalar` (no inputs), `add_output` (no outputs), and those of LAYOUT, which say how a
    tensor lies in memory and on devices: `T1.split(0, 2)`.
    """

    op: str
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[str, ...] = ()
    attrs: tuple[tuple[str, AttrValue], ...] = ()
    # What equality and hash go by, made when first asked for: a record is looked up many times.
    _key: tuple[object, ...] = field(default=(), init=False, repr=False)

    def attr(self, name: str) -> AttrValue:
        """The value of an attribute; None if the record has none of that name."""
        found = next((value for key, value in self.attrs if key == name), None)
        return found.value if isinstance(found, Literal) else found

    @property
    def row(self) -> Op:
        return OPS[self.op]

    @property
    def computes(self) -> tuple[object, ...]:
        """What it does, whatever its results are called: equal ones compute the same."""
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
    """The values a record reads, in order, literals left out."""
    return tuple(name for name in record.inputs if isinstance(name, str))


def rename(record: OpRecord, names: Mapping[str, str]) -> OpRecord:
    """The record with the values it reads renamed; unknown names stay."""
    inputs = tuple(names.get(o, o) if isinstance(o, str) else o for o in record.inputs)
    attrs = tuple(
        (key, _renamed(value, names) if key in NAMED_ATTRS else value)
        for key, value in record.attrs
    )
    return replace(record, inputs=inputs, attrs=attrs)


def _renamed(value: AttrValue, names: Mapping[str, str]) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(_renamed(item, names) for item in value)
    return names.get(value, value) if isinstance(value, str) else value


def definition_text(definition: Definition, name: str = "fusion") -> str:
    """An unfinished or untyped definition, without the comments."""
    return "\n".join([f"def {name}(fd):", *("    " + record_text(r) for r in definition)]) + "\n"


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
    """`record_text` without what may be a size: a comment for kernels that serve many."""
    attrs = tuple((key, value) for key, value in record.attrs if key not in SIZE_ATTRS)
    return record_text(replace(record, attrs=attrs))


def _arguments(record: OpRecord) -> list[str]:
    operands = [_operand_text(operand) for operand in record.inputs]
    if record.op == "cat":
        operands = [f"[{', '.join(operands)}]"]
    if record.op in OPS and record.row.keywords:  # the last ones may be left out
        names = record.row.keywords[: len(operands)]
        operands = [f"{n}={o}" for n, o in zip(names, operands, strict=True)]
    attrs = [f"{_keyword(key)}={_attr_text(key, value)}" for key, value in record.attrs]
    return operands + attrs


def _keyword(key: str) -> str:
    return "alias_input" if key == "alias" else key


def _operand_text(operand: Operand) -> str:
    return number_text(operand.value) if isinstance(operand, Literal) else operand


def number_text(value: bool | int | float) -> str:
    """A number as Python that reads back to the same bits (any NaN to NaN)."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _attr_text(key: str, value: AttrValue) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_attr_text(key, item) for item in value)}]"
    if isinstance(value, str):
        return value if key in NAMED_ATTRS else repr(value)
    if isinstance(value, Literal):
        return number_text(value.value)
    if isinstance(value, (bool, int, float)):
        return number_text(value)
    return str(value)
