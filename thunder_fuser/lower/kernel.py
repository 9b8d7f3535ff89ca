# SPDX-License-Identifier: Apache-2.0
"""Kernel IR: loops, loads, math and stores, from which both printers make source.

Positions and conditions are Scalars over loop variables; values are names of C variables, Lanes
(elements of arrays) or Literals. As text, each statement is the call that makes its node:

For(j_o_o, 4, ParallelType.SERIAL, unroll=0)
    Let(T0_v, DataType.BFloat16, Load(T0, 8*j_o_i, DataType.BFloat16, width=8), width=8)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any
from typing import Literal as TypingLiteral

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.record import Literal
from thunder_fuser.ir.scalar import Scalar, const

TRUE, FALSE = const(1), const(0)
Name = str  # of a variable, an array or a parameter; other fields have the plain type str


@dataclass(frozen=True, slots=True)
class Lane:
    """array[at]. With `lane`: element `lane` of the Vec array[at], or of the Vec `array`."""

    array: Name
    at: Scalar | None = None
    lane: Scalar | None = None


Operand = Name | Lane | Literal


# ---- values


@dataclass(frozen=True, slots=True)
class Math:
    """An op of the op table, applied to operands. types: of the operands."""

    op: str
    operands: tuple[Operand, ...]
    types: tuple[DataType, ...]
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Load:
    """buffer[position] where the condition holds, else zero. width > 1: a vector.

    The buffer is a tensor or a shared array, here and in a Store.
    limit: where the tensor ends: lanes from buffer[limit] on are zero.
    inside: a condition under which all lanes are before the limit, so no test is needed.
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
    """A vector that begins at element `at` of the row buffer[first : first + size], and goes on at
    the row's beginning after its end. It may have any address: (8*i + v) % 4095, v in [0, 8).
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
    """Element `position` of a stream of random numbers, by a RANDOM op of the op table.

    operands: the op's two numbers, seed and offset. words: an element of an array of Words, if the
    words were made in advance.
    """

    op: str
    position: Scalar
    operands: tuple[Operand, ...]
    dtype: DataType
    words: Lane | None = None


@dataclass(frozen=True, slots=True)
class CheckedIndex:
    """An element of an index tensor; the kernel fails if it is not in [0, size).

    number: the number of the check in the kernel, from 1.
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
    """&variable, for a function that writes to it."""

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
    """The number of this block or thread. below: a bound that the compiler may assume."""

    parallel: ParallelType
    below: int | None = None


Value = (
    Math | Load | RingLoad | IndexValue | CheckedIndex | Random | Choose | Call | Coordinate
    | Scalar | Operand
)  # fmt: skip


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
    """An array of `count` elements or Vecs; count 0 is one Vec. It is local unless it has a
    shared_offset, in bytes, in shared memory."""

    name: Name
    dtype: DataType
    count: int
    width: int = 1
    shared_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """An array of Philox's random words for `count` elements of a type, from element `first` on.

    It begins with the whole group of four words that contains `first`.
    """

    name: Name
    stream: tuple[Operand, ...]
    first: Scalar
    count: int
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that may change, with its first value."""

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
    """target = op(target, value), for a reduction's op. The value has type dtype, the target the
    type `wide`."""

    target: Name | Lane
    op: str
    value: Operand
    dtype: DataType
    wide: DataType


@dataclass(frozen=True, slots=True)
class Stream:
    """On the CPU: a row's values, which `total` adds in an order that does not depend on the loops.

    The loop that lists the stream appends a value in each iteration, at its lane of `<name>_v`.
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
    """Prefetches buffer[position] where the condition holds."""

    buffer: Name
    position: Scalar
    condition: Scalar


@dataclass(frozen=True, slots=True)
class For:
    """A loop. Its parallel type says how it runs (BIDX: a CPU's threads, VECTORIZE: simd lanes).

    accumulators, streams: what a CPU's simd loop reduces into, and by which op. unroll: the unroll
    factor of a GPU's loop, or ALL.
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
    """The body if the condition holds, else `otherwise`."""

    condition: Scalar
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A scope: names defined by its statements end with it."""

    comment: str
    body: tuple[Statement, ...]


Definition = Let | Array | Words | Variable | Stream
Statement = Definition | Set | Accumulate | Store | Prefetch | Call | For | If | Block

ALL = 0
BODIES = ("body", "otherwise")  # the fields that hold statements

# Device functions with a barrier, which all threads of a block must call. REDUCES combine values.
PRODUCTS = "sum_of_products"  # it also waits for earlier kernels
REDUCES = frozenset({"reduce_x", "reduce_y", "reduce_cluster", PRODUCTS})
WAITS = REDUCES | {"sync_threads", "scan_x", "reduce_rows", "gates_made", "gates_ready"}


def called(statement: Statement) -> str:
    """The device function that a statement calls, or nothing."""
    value = statement.value if isinstance(statement, Let | Set) else statement
    return value.function if isinstance(value, Call) else ""


def statements_in(statements: Iterable[Statement]) -> Iterator[Statement]:
    """The statements, and those in their bodies."""
    for s in statements:
        yield s
        if isinstance(s, For | If | Block):
            yield from statements_in((*s.body, *s.otherwise) if isinstance(s, If) else s.body)


def with_bodies(s: Statement, change: Callable[[tuple[Statement, ...]], object]) -> Statement:
    """The statement with its bodies changed, if it has any."""
    changed: Any = {name: change(getattr(s, name)) for name in BODIES if hasattr(s, name)}
    return replace(s, **changed) if changed else s


def rewritten(
    statements: Iterable[Statement], change: Callable[[Statement], Statement]
) -> tuple[Statement, ...]:
    """The statements, each changed after the statements in its body."""
    return tuple(change(with_bodies(s, lambda body: rewritten(body, change))) for s in statements)


_WITH_NAMES = ("Name", "Operand", "Argument", "Lane", "Scalar", "Value")


@cache
def name_fields(kind: type) -> tuple[str, ...]:
    """The fields of a node that may contain names, without the name that it defines."""
    candidates = (f for f in fields(kind) if f.name != "name")
    return tuple(f.name for f in candidates if any(word in str(f.type) for word in _WITH_NAMES))


def names_in(node: object) -> Iterator[str]:
    """The names that a node reads or writes; its body does not count."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Scalar):
        yield from node.symbols
    elif isinstance(node, tuple):
        for item in node:
            yield from names_in(item)
    elif not isinstance(node, Literal | None):
        for name in name_fields(type(node)):  # type: ignore[arg-type]
            yield from names_in(getattr(node, name))


Kind = TypingLiteral["input", "output", "scalar"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel argument: a tensor's address, or a number by value.

    shared: whether another parameter has the same address. streamed: its loads have a hint for the
    second-level cache. bytes: of memory, from its first element to its last one. ahead: whether it
    is read before the kernel waits for earlier ones.
    """

    name: Name
    dtype: DataType
    kind: Kind
    shared: bool = False
    streamed: bool = False
    bytes: int = 0
    ahead: bool = False


@dataclass(frozen=True)
class Kernel:
    """One kernel: parameters, body, launch shape. work: the number of elements, for thresholds.

    grid: numbers of blocks; the blocks of a cluster are along y. blocks: how many blocks an SM must
    hold at once, or 0. checks: the op and the size of each CheckedIndex, for its error message.
    early: in a CUDA graph it may start before the kernel before it has ended, and waits for it.
    lets_next_start: the kernel after it may start at once, not only when this one has ended.
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
    early: bool = False
    lets_next_start: bool = False


# ---- text

Marks = Mapping[int, str]  # {id of a statement: what is wrong with it}
_HIDDEN = (*BODIES, "comment")


def statements_text(statements: Iterable[Statement], marks: Marks | None = None) -> str:
    """The statements as text. A marked one has --> before it, and behind it what is wrong."""
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
    """A node as the call that makes it, without bodies, comments and default fields."""
    if isinstance(node, tuple):
        return f"({', '.join(map(_call, node))})"
    if not is_dataclass(node) or isinstance(node, Scalar):
        return str(node)
    values = [(f, getattr(node, f.name)) for f in fields(node) if f.name not in _HIDDEN]
    shown = [
        _call(value) if field.default is MISSING else f"{field.name}={_call(value)}"
        for field, value in values
        if value != field.default
    ]
    return f"{type(node).__name__}({', '.join(shown)})"
