# SPDX-License-Identifier: Apache-2.0
"""Kernel IR: loops, loads, math and stores, before they are source. Both printers walk it.

Positions and conditions are Scalars over loop variables; values are names of C variables, Lanes
(elements of arrays) or Literals. As text, each statement is the call that makes its node:

For(j_o_o, 4, ParallelType.SERIAL, unroll=0)
    Let(T0_v, DataType.BFloat16, Load(T0, 8*j_o_i, DataType.BFloat16, width=8), width=8)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Literal as TypingLiteral

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.record import Literal
from thunder_fuser.ir.scalar import Scalar, const

TRUE, FALSE = const(1), const(0)
Name = str  # of a variable, an array or a parameter; fields of type str are no names


@dataclass(frozen=True, slots=True)
class Lane:
    """array[at], or element `lane` of the Vec that array (without `at`) or array[at] is."""

    array: Name
    at: Scalar | None = None
    lane: Scalar | None = None


Operand = Name | Lane | Literal


# ---- values


@dataclass(frozen=True, slots=True)
class Math:
    """A row of the op table on operands, each in its type."""

    op: str
    operands: tuple[Operand, ...]
    types: tuple[DataType, ...]
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Load:
    """buffer[position] where the condition holds, else zero. width > 1: a vector.

    The buffer is a tensor or a shared array, here and in a Store.
    limit: if given, lanes from buffer[limit] on are zero, where the tensor ends.
    inside: where it is known without a test that none are.
    """

    buffer: Name
    position: Scalar
    dtype: DataType
    width: int = 1
    condition: Scalar = TRUE
    limit: int | None = None
    inside: Scalar = FALSE


@dataclass(frozen=True, slots=True)
class RingLoad:
    """A vector of buffer[first], ..., buffer[first + size - 1], buffer[first], ... from `at` on.

    A row of `size` that a flat vector crosses, at any address: (8*i + v) % 4095, v in [0, 8).
    """

    buffer: Name
    first: Scalar
    at: Scalar
    size: int
    dtype: DataType
    width: int
    condition: Scalar = TRUE


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index as a number of the given type."""

    index: Scalar
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Random:
    """Element `position` of a stream, by a RANDOM row of the op table.

    operands: the op's two numbers, seed and offset. words: an array of Words, where there is one.
    """

    op: str
    position: Scalar
    operands: tuple[Operand, ...]
    dtype: DataType
    words: Lane | None = None


@dataclass(frozen=True, slots=True)
class CheckedIndex:
    """An element of a tensor of indices as an index; the kernel fails if it is not in [0, size).

    number: which of the kernel's checks it is, from 1 on.
    """

    operand: Operand
    dtype: DataType
    size: int
    number: int


@dataclass(frozen=True, slots=True)
class Choose:
    """condition ? then : otherwise"""

    condition: Scalar
    then: Operand
    otherwise: Operand
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Address:
    """&variable: a function writes to it."""

    variable: Name


Argument = Operand | Scalar | Address


@dataclass(frozen=True, slots=True)
class Call:
    """function<template>(arguments): a device function of the prelude, as a value or a statement.

    template: numbers, and the names of reductions' ops. dtype: of the Literals among the arguments.
    """

    function: str
    arguments: tuple[Argument, ...] = ()
    template: tuple[str | int, ...] = ()
    dtype: DataType = DataType.Float


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The number of this block or thread. `below`: a bound that the compiler is told of."""

    parallel: ParallelType
    below: int | None = None


Value = (
    Math
    | Load
    | RingLoad
    | IndexValue
    | CheckedIndex
    | Random
    | Choose
    | Call
    | Coordinate
    | Scalar
    | Operand
)


# ---- statements


@dataclass(frozen=True, slots=True)
class Let:
    """A constant variable. dtype None is the kernel's index type; width > 1 is a Vec."""

    name: Name
    dtype: DataType | None
    value: Value
    width: int = 1
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Array:
    """A local array of `count` elements, or Vecs; count 0 is one Vec. Or one in shared memory."""

    name: Name
    dtype: DataType
    count: int
    width: int = 1
    shared_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """An array of what Philox makes for `count` elements of a type, from element `first` on.

    It begins with the whole group of four words that `first` is in.
    """

    name: Name
    stream: tuple[Operand, ...]
    first: Scalar
    count: int
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that changes, with its first value."""

    name: Name
    dtype: DataType
    init: Literal


@dataclass(frozen=True, slots=True)
class Set:
    """target = value; the target is a variable or a Lane."""

    target: Name | Lane
    value: Value
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Accumulate:
    """target = op(target, value), op a reduction's; the value of type dtype, the target wide."""

    target: Name | Lane
    op: str
    value: Operand
    dtype: DataType
    wide: DataType


@dataclass(frozen=True, slots=True)
class Stream:
    """On the CPU: values of a row that are added in an order of their own, by `total`.

    The loop that lists it appends one a turn, at its lane of the array `<name>_v`.
    """

    name: Name
    op: str
    dtype: DataType
    wide: DataType
    init: Literal


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[position] = value where the condition holds. width > 1: value names a Vec."""

    buffer: Name
    position: Scalar
    value: Operand
    dtype: DataType
    width: int = 1
    condition: Scalar = TRUE


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Asks for buffer[position] where the condition holds: it is read soon."""

    buffer: Name
    position: Scalar
    condition: Scalar


@dataclass(frozen=True, slots=True)
class For:
    """A loop; how it runs is its parallel type (BIDX: the CPU's threads, VECTORIZE: simd lanes).

    accumulators, streams: what a simd loop of the CPU reduces into, and by which op. unroll: of a
    GPU's loop, how many turns are written as one, or ALL.
    """

    variable: Name
    extent: Scalar
    parallel: ParallelType
    body: tuple[Statement, ...]
    accumulators: tuple[tuple[str, Variable], ...] = ()
    streams: tuple[Name, ...] = ()
    unroll: int = 1


@dataclass(frozen=True, slots=True)
class If:
    """The body, where the condition holds; else the other one."""

    condition: Scalar
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Statements whose names are their own."""

    comment: str
    body: tuple[Statement, ...]


Definition = Let | Array | Words | Variable | Stream
Statement = Definition | Set | Accumulate | Store | Prefetch | Call | For | If | Block

ALL = 0

# Functions that all threads of a block call together. Those that reduce join values of theirs.
REDUCES = frozenset({"reduce_x", "reduce_y", "reduce_cluster"})
WAITS = REDUCES | {"sync_threads", "scan_x", "reduce_rows", "gates_made", "gates_ready"}


def called(statement: Statement) -> str:
    """The device function whose result a statement is, or nothing."""
    value = statement.value if isinstance(statement, Let | Set) else statement
    return value.function if isinstance(value, Call) else ""


def statements_in(statements: Iterable[Statement]) -> Iterator[Statement]:
    """The statements, and those in their bodies."""
    for s in statements:
        yield s
        if isinstance(s, For | If | Block):
            yield from statements_in((*s.body, *s.otherwise) if isinstance(s, If) else s.body)


def rewritten(
    statements: Iterable[Statement], change: Callable[[Statement], Statement]
) -> tuple[Statement, ...]:
    """The statements, each changed, its body before it."""
    made: list[Statement] = []
    for s in statements:
        if isinstance(s, For | Block):
            s = replace(s, body=rewritten(s.body, change))
        elif isinstance(s, If):
            bodies = rewritten(s.body, change), rewritten(s.otherwise, change)
            s = replace(s, body=bodies[0], otherwise=bodies[1])
        made.append(change(s))
    return tuple(made)


_WITH_NAMES = ("Name", "Operand", "Argument", "Lane", "Scalar", "Value")


@cache
def name_fields(kind: type) -> tuple[str, ...]:
    """The fields of a node in which there may be names, besides the one that it defines."""
    found = (f for f in fields(kind) if f.name != "name")
    return tuple(f.name for f in found if any(word in str(f.type) for word in _WITH_NAMES))


def names_in(node: object) -> Iterator[str]:
    """The names that a node reads or writes, without those in its body."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Scalar):
        yield from node.symbols
    elif isinstance(node, tuple):
        for one in node:
            yield from names_in(one)
    elif not isinstance(node, Literal | None):
        for name in name_fields(type(node)):  # type: ignore[arg-type]
            yield from names_in(getattr(node, name))


Kind = TypingLiteral["input", "output", "scalar"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel argument: a tensor's address, or a number by value.

    shared: another one is the same address.
    """

    name: Name
    dtype: DataType
    kind: Kind
    shared: bool = False


@dataclass(frozen=True)
class Kernel:
    """One kernel: parameters, body, launch shape. `work` is elements touched, for thresholds.

    grid: blocks, those of a cluster along y. blocks: those that an SM is to hold at once, or 0.
    checks: the op and the size behind each CheckedIndex, for the message if it fails.
    """

    name: Name
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    grid: tuple[int, int]
    threads: tuple[int, int]
    smem_bytes: int
    wide_index: bool
    work: int
    comment: str = ""
    cluster: int = 1
    blocks: int = 0
    checks: tuple[tuple[str, int], ...] = ()


# ---- text

Marks = Mapping[int, str]  # by the id of a statement: what is wrong with it
_HIDDEN = ("body", "otherwise", "comment")


def statements_text(statements: Iterable[Statement], marks: Marks | None = None) -> str:
    """The statements; a marked one has --> in front, and what is wrong with it behind."""
    return "".join(line + "\n" for line in _lines(statements, marks or {}, ""))


def _lines(statements: Iterable[Statement], marks: Marks, pad: str) -> Iterator[str]:
    for s in statements:
        text, wrong = pad + _call(s), marks.get(id(s))
        yield text if wrong is None else f"--> {text}   # {wrong}"
        yield from _lines(getattr(s, "body", ()), marks, pad + "    ")
        if isinstance(s, If) and s.otherwise:
            yield pad + "Else"
            yield from _lines(s.otherwise, marks, pad + "    ")


def _call(node: object) -> str:
    """A node as the call that makes it, without bodies, comments and fields at their defaults."""
    if isinstance(node, tuple):
        return f"({', '.join(map(_call, node))})"
    if not is_dataclass(node) or isinstance(node, Scalar):
        return str(node)
    given = [(f, getattr(node, f.name)) for f in fields(node) if f.name not in _HIDDEN]
    shown = [
        _call(value) if field.default is MISSING else f"{field.name}={_call(value)}"
        for field, value in given
        if value != field.default
    ]
    return f"{type(node).__name__}({', '.join(shown)})"
