# SPDX-License-Identifier: Apache-2.0
"""Kernel -> C++: what CUDA and the CPU share. Subclasses print the loops and the function's head.

Let("T2", f32, Math("add", ("T0_e", "T1_e")))   ->  const float T2 = (T0_e + T1_e);

STATEMENTS and VALUES have the function that prints each type of node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from thunder_fuser.codegen import prelude
from thunder_fuser.codegen.indices import Indices
from thunder_fuser.codegen.literals import C_TYPES, literal_text
from thunder_fuser.codegen.source import Dialect, KernelSource, Param
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import Literal
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.lower import kernel as nodes

REDUCERS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}


class CPrinter:
    """Prints one kernel. Subclasses give `head` and `loop_head`."""

    dialect: Dialect = "cuda"

    def __init__(self, kernel: nodes.Kernel) -> None:
        self.kernel = kernel
        self.index_type = "i64" if kernel.wide_index else "i32"
        self.indices = Indices(kernel.wide_index)
        self.sizes = self.indices.sizes
        arrays = (s for s in nodes.statements_in(kernel.body) if isinstance(s, nodes.Array))
        self.shared = {array.name for array in arrays if array.shared_offset is not None}
        self.index, self.condition = self.indices.index, self.indices.condition

    def source(self) -> KernelSource:
        """The whole text, with the prelude in front, and how to launch it."""
        statements = indented(self.block(self.kernel.body))
        body = "\n".join([*self.head(), *statements, "}", ""])
        before = f"{prelude.select(body, self.dialect)}\n"
        tensors = self.kernel.parameters
        params = [Param(p.name, C_TYPES[p.dtype], p.kind, p.bytes, p.ahead) for p in tensors]
        params += [Param(name, self.size_type(name), "size") for name in self.sizes.values]
        return KernelSource(
            self.kernel.name,
            self.dialect,
            before + body,
            tuple(params),
            (*self.kernel.grid, 1),
            (*self.kernel.threads, 1),
            self.kernel.smem_bytes,
            self.kernel.cluster,
            self.kernel.checks,
            tuple(self.sizes.values.values()),
            prelude=len(before),
            early=self.kernel.early,
            lets_next_start=self.kernel.lets_next_start,
        )

    def head(self) -> list[str]:
        """The lines up to the function's opening brace, which is included."""
        raise NotImplementedError(self.dialect)

    def loop_head(self, loop: nodes.For) -> list[str]:
        """Pragmas and the for line."""
        raise NotImplementedError(self.dialect)

    def parameters(self) -> list[str]:
        """The declarations of the kernel's parameters, and of the sizes that the body uses."""
        sizes = [f"const {self.size_type(name)} {name}" for name in self.sizes.values]
        return [*(_declaration(self, each) for each in self.kernel.parameters), *sizes]

    def size_type(self, name: str) -> str:
        """The type of a size's parameter. A divisor is two numbers of 32 bits in one i64."""
        return "i64" if name.startswith("divisor") else self.index_type

    def block(self, statements: Iterable[nodes.Statement]) -> list[str]:
        """The lines of statements. Bodies are indented."""
        return [line for s in statements for line in STATEMENTS[type(s)](self, s)]

    def value(self, value: nodes.Value | nodes.Address, dtype: DataType | None = None) -> str:
        """An expression. dtype: the type in which a Literal is printed."""
        if isinstance(value, Literal):
            assert dtype is not None
            return literal_text(value, dtype)
        return VALUES[type(value)](self, value)

    def loop(self, loop: nodes.For) -> list[str]:
        return [*self.loop_head(loop), *indented(self.block(loop.body)), "}"]

    def type_of(self, dtype: DataType | None, width: int = 1) -> str:
        """A type, or a Vec of it; None is the kernel's index type."""
        if dtype is None:
            return self.index_type
        return f"Vec<{C_TYPES[dtype]}, {width}>" if width > 1 else C_TYPES[dtype]

    def as_index(self, text: str) -> str:
        return f"static_cast<{self.index_type}>({text})"


def indented(lines: Iterable[str]) -> list[str]:
    return ["  " + line for line in lines]


def _declaration(p: CPrinter, parameter: nodes.Parameter) -> str:
    kind = C_TYPES[parameter.dtype]
    if parameter.kind == "scalar":
        return f"const {kind} {parameter.name}"
    const_word = "const " if parameter.kind == "input" else ""
    # Both words mean that nothing writes it while the kernel lives, so the compiler may move loads
    # before the wait for the kernel that writes it.
    alone = "" if parameter.shared or (const_word and p.kernel.early) else "__restrict__ "
    return f"{const_word}{kind}* {alone}{parameter.name}"


# ---- statement -> lines


def _if(p: CPrinter, s: nodes.If) -> list[str]:
    lines = [f"if ({p.condition(s.condition)}) {{", *indented(p.block(s.body))]
    if s.otherwise:
        lines += ["} else {", *indented(p.block(s.otherwise))]
    return [*lines, "}"]


def _let(p: CPrinter, s: nodes.Let) -> list[str]:
    comment = f"  // {s.comment}" if s.comment else ""
    line = f"const {p.type_of(s.dtype, s.width)} {s.name} = {p.value(s.value, s.dtype)};{comment}"
    if isinstance(s.value, nodes.Coordinate) and s.value.below:
        return [line, f"__builtin_assume({s.name} < {s.value.below});"]
    return [line]


def _stream(p: CPrinter, s: nodes.Stream) -> list[str]:
    types = f"{REDUCERS[s.op]}, {C_TYPES[s.dtype]}, {C_TYPES[s.wide]}"
    return [f"Stream<{types}> {s.name}({p.value(s.init, s.wide)});"]


def _array(p: CPrinter, s: nodes.Array) -> list[str]:
    if s.shared_offset is not None:
        return [f"const Shared<{C_TYPES[s.dtype]}> {s.name}({s.shared_offset}, {s.count});"]
    size = f"[{s.count}]" if s.count else ""
    return [f"{p.type_of(s.dtype, s.width)} {s.name}{size};"]


def _words(p: CPrinter, s: nodes.Words) -> list[str]:
    share, to = s.dtype.random_share, C_TYPES[s.dtype]
    whole = s.first % share is const(0)
    groups = -(-(s.count + (0 if whole else share - 1)) // share)
    stream = ", ".join(p.value(o, DataType.Int) for o in s.stream)
    fill = f"philox_fill({s.name}, {stream}, {p.index(s.first // share)}, {groups})"
    return [f"Bits<{to}>::type {s.name}[{groups * share}]; {fill};"]


def _accumulate(p: CPrinter, s: nodes.Accumulate) -> list[str]:
    target, value = p.value(s.target), p.value(s.value, s.dtype)
    value = f"convert<{C_TYPES[s.wide]}>({value})" if s.wide is not s.dtype else value
    return [f"{target} = {REDUCERS[s.op]}::apply({target}, {value});"]


def _store(p: CPrinter, s: nodes.Store) -> list[str]:
    value, position = p.value(s.value, s.dtype), p.index(s.position)
    vector = f"v<{s.width}>" if s.width > 1 else ""
    text = f"st{vector}({s.buffer}, {position}, {value});"
    if s.buffer in p.shared:
        put = f"template put{vector}" if vector else "put"
        text = f"{s.buffer}.{put}({position}, {value});"
    return [text if s.condition is nodes.TRUE else f"if ({p.condition(s.condition)}) {text}"]


def _prefetch(p: CPrinter, s: nodes.Prefetch) -> list[str]:
    ask = f"prefetch({s.buffer}, {p.index(s.position)});"
    return [f"if ({p.condition(s.condition)}) {ask}"]


STATEMENTS: Mapping[type, Callable[[CPrinter, Any], list[str]]] = {
    nodes.For: lambda p, s: p.loop(s),
    nodes.If: _if,
    nodes.Block: lambda p, s: [f"{{  // {s.comment}", *indented(p.block(s.body)), "}"],
    nodes.Let: _let,
    nodes.Variable: lambda p, s: [f"{C_TYPES[s.dtype]} {s.name} = {p.value(s.init, s.dtype)};"],
    nodes.Stream: _stream,
    nodes.Array: _array,
    nodes.Words: _words,
    nodes.Set: lambda p, s: [f"{p.value(s.target)} = {p.value(s.value, s.dtype)};"],
    nodes.Accumulate: _accumulate,
    nodes.Store: _store,
    nodes.Prefetch: _prefetch,
    nodes.Call: lambda p, s: [f"{p.value(s)};"],
}


# ---- value -> expression


def _math(p: CPrinter, value: nodes.Math) -> str:
    row, first, decided_by = OPS[value.op], value.types[0], value.types[-1]
    operands = [p.value(o, t) for o, t in zip(value.operands, value.types, strict=True)]
    form = row.c_complex if decided_by.is_complex else row.c_int
    form = row.c if decided_by.is_float or not form else form
    if value.op == "where" and decided_by.is_half and p.dialect == "cpu":
        return _chosen(p, decided_by, *operands)
    suffix = "" if decided_by is DataType.Double else "f"
    text = form.format(*operands, f=suffix, to=C_TYPES[value.dtype])
    if value.op != "cast" and first.bytes < 4 and value.dtype is first and not first.is_float:
        return f"static_cast<{C_TYPES[value.dtype]}>({text})"  # C computes in int
    return text


def _load(p: CPrinter, load: nodes.Load) -> str:
    position, width = p.index(load.position), load.width
    if load.buffer in p.shared:
        get = f"template getv<{width}>" if width > 1 else "get"
        return f"{load.buffer}.{get}({position})"
    if load.limit is None and width > 1:
        if load.condition is nodes.TRUE:
            return f"ldv<{width}>({load.buffer}, {position})"
        return f"ldv_if<{width}>({p.condition(load.condition)}, {load.buffer}, {position})"
    if load.limit is None:
        return _where(p, load, f"ld({load.buffer}, {position})")
    at, limit = p.as_index(position), p.as_index(p.sizes.number(load.limit))
    inside = "" if load.inside is nodes.FALSE else f", {p.condition(load.inside)}"
    return _where(p, load, f"lde<{width}>({load.buffer}, {at}, {limit}{inside})")


def _ring_load(p: CPrinter, load: nodes.RingLoad) -> str:
    size = p.sizes.number(load.size)  # first: sizes are numbered in the order of use
    typed = ", ".join(map(p.as_index, [p.index(load.first), p.index(load.at), size]))
    return _where(p, load, f"ldr<{load.width}>({load.buffer}, {typed})")


def _where(p: CPrinter, load: nodes.Load | nodes.RingLoad, text: str) -> str:
    """The loaded value where the condition holds, else zero."""
    if load.condition is nodes.TRUE:
        return text
    zero = f"{p.type_of(load.dtype, load.width)}{{}}"
    return _chosen(p, load.dtype, p.condition(load.condition), text, zero)


def _random(p: CPrinter, value: nodes.Random) -> str:
    numbers = [p.value(o, value.dtype.compute) for o in value.operands[:2]]
    stream = ", ".join(p.value(o, DataType.Int) for o in value.operands[2:])
    share, to = value.dtype.random_share, C_TYPES[value.dtype]
    lane = p.index(value.position % share)
    words = f"philox({stream}, {p.index(value.position // share)})"
    word = f"word<{to}>({words}, {lane})" if value.words is None else p.value(value.words)
    return OPS[value.op].c.format(*numbers, to=to, words=words, lane=lane, word=word)


def _checked_index(p: CPrinter, value: nodes.CheckedIndex) -> str:
    """CUDA stops the kernel. The CPU goes on with index 0, and records the failure for the host."""
    operand = p.value(value.operand, value.dtype)
    note = f", {value.number}, failed" if p.dialect == "cpu" else ""
    return f"checked_index<{p.index_type}>({operand}, {value.size}{note})"


def _choose(p: CPrinter, value: nodes.Choose) -> str:
    then, otherwise = p.value(value.then, value.dtype), p.value(value.otherwise, value.dtype)
    return _chosen(p, value.dtype, p.condition(value.condition), then, otherwise)


def _chosen(p: CPrinter, dtype: DataType, condition: str, then: str, otherwise: str) -> str:
    """A choice, on a CPU between numbers: gcc vectorizes none between structs (4 times as slow)."""
    if p.dialect == "cuda" or not dtype.is_half:
        return f"({condition}) ? {then} : {otherwise}"
    return f"{C_TYPES[dtype]}{{u16(({condition}) ? ({then}).bits : ({otherwise}).bits)}}"


def _call(p: CPrinter, value: nodes.Call) -> str:
    template = ", ".join(REDUCERS.get(str(argument), str(argument)) for argument in value.template)
    arguments = ", ".join(p.value(argument, value.dtype) for argument in value.arguments)
    return f"{value.function}{f'<{template}>' if template else ''}({arguments})"


def _coordinate(p: CPrinter, value: nodes.Coordinate) -> str:
    is_cluster = value.parallel is ParallelType.CLUSTER
    return p.as_index("blockIdx.y" if is_cluster else value.parallel.value)


def _lane(p: CPrinter, value: nodes.Lane) -> str:
    at = "" if value.at is None else f"[{p.index(value.at)}]"
    lane = "" if value.lane is None else f".v[{p.index(value.lane)}]"
    return f"{value.array}{at}{lane}"


VALUES: Mapping[type, Callable[[CPrinter, Any], str]] = {
    str: lambda p, name: name,
    nodes.Lane: _lane,
    nodes.Address: lambda p, value: f"&{value.variable}",
    Scalar: lambda p, index: p.index(index),
    nodes.IndexValue: lambda p, v: f"static_cast<{C_TYPES[v.dtype]}>({p.index(v.index)})",
    nodes.Math: _math,
    nodes.Load: _load,
    nodes.RingLoad: _ring_load,
    nodes.Random: _random,
    nodes.CheckedIndex: _checked_index,
    nodes.Choose: _choose,
    nodes.Call: _call,
    nodes.Coordinate: _coordinate,
}
