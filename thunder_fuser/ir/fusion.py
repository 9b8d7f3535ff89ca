# SPDX-License-Identifier: Apache-2.0
"""What a fusion is: tensors, expressions over their names, inputs and outputs. Flat and frozen.

An OpRecord is one call a user makes; a Definition is a tuple of them, the key of the cache.
A Fusion is what the calls mean: every tensor has a type and domains. The records stay with it, so
a pass rewrites records and defines them anew, and types are never patched by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from thunder_fuser.ir.domain import TensorDomain
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.ops import OPS, Op
from thunder_fuser.ir.scalar import Scalar

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

# Attributes in which a string is the name of a value, not a word.
NAMED_ATTRS = ("shape", "new_shape", "length", "start_indices", "end_indices", "alias")


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One call: `outputs = op(inputs, **attrs)`. Inputs are names or Literals.

    Beside the rows of OPS there are three records of the definition itself:
    `define_tensor`, `define_scalar` (no inputs) and `add_output` (no outputs).
    """

    op: str
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[str, ...] = ()
    attrs: tuple[tuple[str, AttrValue], ...] = ()

    def attr(self, name: str) -> AttrValue:
        """The value of an attribute; None if the record has none of that name."""
        found = next((value for key, value in self.attrs if key == name), None)
        return found.value if isinstance(found, Literal) else found

    @property
    def row(self) -> Op:
        return OPS[self.op]


Definition = tuple[OpRecord, ...]


@dataclass(frozen=True, slots=True)
class TensorView:
    """One value: a tensor, or a scalar (rank 0, passed to kernels by value)."""

    name: str
    dtype: DataType
    domain: TensorDomain
    is_scalar: bool = False
    is_cpu: bool = False

    @property
    def shape(self) -> tuple[Scalar, ...]:
        return tuple(axis.extent for axis in self.domain.no_reductions)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents of a specialised tensor."""
        return tuple(extent.value for extent in self.shape)

    @property
    def by_value(self) -> bool:
        """True if a kernel takes the element itself, not a pointer to it."""
        return self.is_scalar or (self.is_cpu and not self.shape)

    def __str__(self) -> str:
        axes = ", ".join(f"{axis.name}{{{axis.extent}}}" for axis in self.domain.logical)
        return f"{self.name}: {self.dtype.short}[{axes}]"


@dataclass(frozen=True, slots=True)
class Output:
    """A result of the fusion: its value, the layout asked for, the input it is written into."""

    name: str
    stride_order: tuple[int, ...] | None = None
    alias: str | None = None


@dataclass(frozen=True)
class Fusion:
    """A typed, flat program. Two are equal if their records are; everything else follows."""

    definition: Definition
    tensors: Mapping[str, TensorView] = field(compare=False, repr=False)
    shape_scalars: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @cached_property
    def exprs(self) -> tuple[OpRecord, ...]:
        """The computing records, in order."""
        skip = ("define_tensor", "define_scalar", "add_output")
        return tuple(record for record in self.definition if record.op not in skip)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        defines = ("define_tensor", "define_scalar")
        return tuple(r.outputs[0] for r in self.definition if r.op in defines)

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """The results, in order."""
        return tuple(_output(r) for r in self.definition if r.op == "add_output")

    @cached_property
    def producer(self) -> Mapping[str, OpRecord]:
        """The expression that makes each computed value."""
        return {name: expr for expr in self.exprs for name in expr.outputs}

    @cached_property
    def uses(self) -> Mapping[str, tuple[OpRecord, ...]]:
        """The expressions that read each value, in order."""
        found: dict[str, list[OpRecord]] = {name: [] for name in self.tensors}
        for expr in self.exprs:
            for name in dict.fromkeys(names_of(expr)):
                found[name].append(expr)
        return {name: tuple(exprs) for name, exprs in found.items()}


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


def _output(record: OpRecord) -> Output:
    (name,) = names_of(record)
    return Output(name, record.attr("stride_order"), record.attr("alias"))  # type: ignore[arg-type]
