# SPDX-License-Identifier: Apache-2.0
"""Kernel IR: loops, loads, math and stores, before they are text. Both printers walk it.

Positions and conditions are Scalars over loop variables; values are names of C variables, Lanes
(elements of arrays) or Literals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as TypingLiteral

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.record import Literal
from thunder_fuser.ir.scalar import Scalar, const


@dataclass(frozen=True, slots=True)
class Lane:
    """array[at], or element `lane` of the Vec that array (without `at`) or array[at] is."""

    array: str
    at: Scalar | None = None
    lane: Scalar | None = None


Operand = str | Lane | Literal


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

    limit: if given, lanes from buffer[limit] on are zero, where the tensor ends.
    inside: where it is known without a test that none are.
    """

    buffer: str
    position: Scalar
    dtype: DataType
    width: int = 1
    condition: Scalar = field(default_factory=lambda: const(1))
    limit: int | None = None
    inside: Scalar = field(default_factory=lambda: const(0))


@dataclass(frozen=True, slots=True)
class RingLoad:
    """A vector of buffer[first], ..., buffer[first + size - 1], buffer[first], ... from `at` on.

    A row of `size` that a flat vector crosses, at any address: (8*i + v) % 4095, v in [0, 8).
    """

    buffer: str
    first: Scalar
    at: Scalar
    size: int
    dtype: DataType
    width: int
    condition: Scalar = field(default_factory=lambda: const(1))


@dataclass(frozen=True, slots=True)
class SharedLoad:
    """`width` elements of a shared array."""

    array: str
    position: Scalar
    dtype: DataType
    width: int


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
class Call:
    """A device function of the prelude on Floats."""

    function: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The number of this block or thread. `below`: a bound that the compiler is told of."""

    parallel: ParallelType
    below: int | None = None


Value = (
    Math
    | Load
    | RingLoad
    | SharedLoad
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

    name: str
    dtype: DataType | None
    value: Value
    width: int = 1
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Array:
    """A local array of `count` elements, or Vecs; count 0 is one Vec. Or one in shared memory."""

    name: str
    dtype: DataType
    count: int
    width: int = 1
    shared_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """An array of what Philox makes for `count` elements of a type, from element `first` on.

    It begins with the whole group of four words that `first` is in.
    """

    name: str
    stream: tuple[Operand, Operand]
    first: Scalar
    count: int
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that changes, with its first value."""

    name: str
    dtype: DataType
    init: Literal


@dataclass(frozen=True, slots=True)
class Set:
    """target = value; the target is a variable or a Lane."""

    target: str | Lane
    value: Value
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Accumulate:
    """target = op(target, value), op a reduction's; the value of type dtype, the target wide."""

    target: str | Lane
    op: str
    value: Operand
    dtype: DataType
    wide: DataType


@dataclass(frozen=True, slots=True)
class Stream:
    """On the CPU: values of a row that are added in an order of their own, by `total`."""

    name: str
    op: str
    dtype: DataType
    wide: DataType
    init: Literal


@dataclass(frozen=True, slots=True)
class Append:
    """The next value of a stream, one for each turn of the loop over `lane`."""

    stream: str
    lane: str
    value: Operand
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[position] = value where the condition holds. width > 1: value names a Vec."""

    buffer: str
    position: Scalar
    value: Operand
    dtype: DataType
    width: int = 1
    condition: Scalar = field(default_factory=lambda: const(1))


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Asks for buffer[position] where the condition holds: it is read soon."""

    buffer: str
    position: Scalar
    condition: Scalar


@dataclass(frozen=True, slots=True)
class SharedStore:
    """Puts a Vec (by name), or one element, into a shared array."""

    array: str
    position: Scalar
    value: Operand
    width: int
    dtype: DataType


@dataclass(frozen=True, slots=True)
class BlockReduce:
    """target = op over the threads of the block along an axis ("x" or "y"); all get the result.

    count > 0: the target names an array of so many, each reduced.
    """

    target: str | Lane
    op: str
    axis: str
    threads: tuple[int, int]
    scratch: str
    dtype: DataType
    count: int = 0


@dataclass(frozen=True, slots=True)
class RowsReduce:
    """target = op over the `count` elements of an array, one of each row of a group.

    As a row of so many elements is reduced by itself: vectors of `width` are dealt in turn to
    `lanes` threads, and all groups of so many threads do the same. gates: where blocks of a
    cluster have sent the elements, past whose gate they are there.
    """

    target: str
    op: str
    array: str
    count: int
    width: int
    lanes: int
    dtype: DataType
    wide: DataType
    init: Literal
    gates: str = ""
    gate: int = 0


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Makes the gate of an array that gets `count` elements from the blocks of a cluster."""

    array: str
    count: int
    gates: str
    gate: int


@dataclass(frozen=True, slots=True)
class RowsPut:
    """Puts a row's value into the array of every block of the cluster."""

    array: str
    position: Scalar
    value: Operand
    dtype: DataType
    cluster: int
    gates: str
    gate: int


@dataclass(frozen=True, slots=True)
class ClusterReduce:
    """target = op over threads x of all blocks of the cluster; all get the same bits.

    scratch: two elements for each warp of the cluster; gate: the number of its pair of gates;
    turn: how often the statement has run before.
    """

    target: str | Lane
    op: str
    threads: int
    cluster: int
    scratch: str
    gates: str
    gate: int
    turn: Scalar


@dataclass(frozen=True, slots=True)
class OpenGates:
    """Makes the gates of one ClusterReduce."""

    threads: int
    cluster: int
    scratch: str
    gates: str
    gate: int


@dataclass(frozen=True, slots=True)
class GatesMade:
    """Tells the other blocks of the cluster that this one's gates are made."""


@dataclass(frozen=True, slots=True)
class GatesReady:
    """Waits until the gates of all blocks of the cluster are made."""


@dataclass(frozen=True, slots=True)
class BlockScan:
    """values = all elements up to each joined by op, from `carry` on, which ends as the last.

    On CUDA the threads of a row, along x, have the whole array each; on the CPU `count` elements.
    """

    values: str
    count: Scalar
    carry: str
    op: str
    threads: tuple[int, int]
    scratch: str
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A variable that a loop reduces into: its op, its type and what the op starts from."""

    variable: str
    op: str
    dtype: DataType
    init: Literal


@dataclass(frozen=True, slots=True)
class For:
    """A loop; how it runs is its parallel type (BIDX: the CPU's threads, VECTORIZE: simd lanes)."""

    variable: str
    extent: Scalar
    parallel: ParallelType
    body: tuple[Statement, ...]
    accumulators: tuple[Accumulator, ...] = ()
    streams: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class If:
    """The body, where the condition holds; else the other one."""

    condition: Scalar
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Barrier:
    """Every thread of the block waits for the others."""


@dataclass(frozen=True, slots=True)
class Block:
    """Statements whose names are their own."""

    comment: str
    body: tuple[Statement, ...]


Change = Set | Accumulate | Append | Store | Prefetch | SharedStore | RowsPut
Joint = BlockReduce | RowsReduce | ClusterReduce | BlockScan
Wait = OpenGates | OpenRows | GatesMade | GatesReady | Barrier
Statement = Let | Array | Words | Variable | Stream | Change | Joint | Wait | For | If | Block


Kind = TypingLiteral["input", "output", "scalar"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel argument: a tensor's address, or a number by value.

    shared: another one is the same address.
    """

    name: str
    dtype: DataType
    kind: Kind
    shared: bool = False


@dataclass(frozen=True)
class Kernel:
    """One kernel: parameters, body, launch shape. `work` is elements touched, for thresholds.

    grid: blocks, those of a cluster along y. blocks: those that an SM is to hold at once, or 0.
    checks: the op and the size behind each CheckedIndex, for the message if it fails.
    """

    name: str
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
