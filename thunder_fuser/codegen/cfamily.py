# SPDX-License-Identifier: Apache-2.0
"""Kernel -> C++: what CUDA and the CPU share. A dialect subclass spells loops and the head.

Let("T2", f32, Math("add", ("T0_e", "T1_e")))   ->  const float T2 = (T0_e + T1_e);
"""

from __future__ import annotations

import math
import struct

from thunder_fuser.codegen import prelude
from thunder_fuser.codegen.size_parameters import Sizes
from thunder_fuser.codegen.source import Dialect, KernelSource, Param
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import Literal
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.ir.size_symbols import Sized
from thunder_fuser.lower.kernel import (
    Accumulate,
    Array,
    Barrier,
    Block,
    BlockReduce,
    BlockScan,
    Call,
    CheckedIndex,
    Choose,
    ClusterReduce,
    Coordinate,
    For,
    GatesMade,
    GatesReady,
    If,
    IndexValue,
    Kernel,
    Lane,
    Let,
    Load,
    Math,
    OpenGates,
    OpenRows,
    Operand,
    Parameter,
    Prefetch,
    Random,
    RingLoad,
    RowsPut,
    RowsReduce,
    Set,
    SharedLoad,
    SharedStore,
    Statement,
    Store,
    Value,
    Variable,
    Words,
)

C_TYPES = {
    DataType.Bool: "bool",
    DataType.UInt8: "u8",
    DataType.Int8: "i8",
    DataType.Int16: "i16",
    DataType.Int32: "i32",
    DataType.Int: "i64",
    DataType.Float8_e4m3fn: "e4m3",
    DataType.Float8_e5m2: "e5m2",
    DataType.Half: "f16",
    DataType.BFloat16: "bf16",
    DataType.Float: "float",
    DataType.Double: "double",
    DataType.ComplexFloat: "c64",
    DataType.ComplexDouble: "c128",
}
REDUCERS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}
TRUE = const(1)
FALSE = const(0)


class CPrinter:
    """Prints one kernel. Subclasses give `head`, `tail` and `loop_head`."""

    dialect: Dialect = "cuda"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.index_type = "i64" if kernel.wide_index else "i32"
        self.sizes = Sizes()

    def source(self) -> KernelSource:
        """The whole text, prelude in front, and how to launch it."""
        statements = self.block(self.kernel.body, 1)
        lines = [*self.head(), *statements, "}", ""]
        body = "\n".join(lines)
        text = prelude.select(body, self.dialect) + "\n" + body
        params = [_param(p) for p in self.kernel.parameters]
        params += [Param(name, self.size_type(name), "size") for name in self.sizes.values]
        x, y = self.kernel.threads
        return KernelSource(
            self.kernel.name,
            self.dialect,
            text,
            tuple(params),
            (*self.kernel.grid, 1),
            (x, y, 1),
            self.kernel.smem_bytes,
            self.kernel.cluster,
            self.kernel.checks,
            tuple(self.sizes.values.values()),
        )

    def head(self) -> list[str]:
        """The lines up to and with the function's opening brace."""
        raise NotImplementedError(self.dialect)

    def loop_head(self, loop: For) -> list[str]:
        """Pragmas and the for line."""
        raise NotImplementedError(self.dialect)

    def parameters(self) -> list[str]:
        """The declarations of the kernel's parameters. Sizes are those that the body has named."""
        sizes = [f"const {self.size_type(name)} {name}" for name in self.sizes.values]
        return [*(_declaration(p) for p in self.kernel.parameters), *sizes]

    def size_type(self, name: str) -> str:
        """A divisor is two numbers of 32 bits."""
        return "i64" if name.startswith("divisor") else self.index_type

    # ---- statements

    def block(self, statements: tuple[Statement, ...], depth: int) -> list[str]:
        return [line for s in statements for line in self.statement(s, depth)]

    def statement(self, statement: Statement, depth: int) -> list[str]:
        pad = "  " * depth
        if isinstance(statement, For):
            head = [pad + line for line in self.loop_head(statement)]
            return [*head, *self.block(statement.body, depth + 1), pad + "}"]
        if isinstance(statement, If):
            lines = [f"{pad}if ({self.condition(statement.condition)}) {{"]
            lines += self.block(statement.body, depth + 1)
            if statement.otherwise:
                lines += [f"{pad}}} else {{", *self.block(statement.otherwise, depth + 1)]
            return [*lines, pad + "}"]
        if isinstance(statement, Block):
            head = [f"{pad}{{  // {statement.comment}"]
            return [*head, *self.block(statement.body, depth + 1), pad + "}"]
        return [pad + self.line(statement)]

    def line(self, s: Statement) -> str:
        """One statement without a body."""
        if isinstance(s, Let):
            comment = f"  // {s.comment}" if s.comment else ""
            left = f"const {self.type_of(s.dtype, s.width)} {s.name}"
            return f"{left} = {self.value(s.value, s.dtype)};{comment}"
        if isinstance(s, Variable):
            return f"{C_TYPES[s.dtype]} {s.name} = {self.literal(s.init, s.dtype)};"
        if isinstance(s, Array):
            return self.array(s)
        if isinstance(s, Words):
            return self.words(s)
        if isinstance(s, Set):
            return f"{self.target(s.target)} = {self.value(s.value, s.dtype)};"
        if isinstance(s, Accumulate):
            target, value = self.target(s.target), self.operand(s.value, s.dtype)
            if s.wide is not s.dtype:
                value = f"convert<{C_TYPES[s.wide]}>({value})"
            return f"{target} = {REDUCERS[s.op]}::apply({target}, {value});"
        if isinstance(s, Store):
            return self.store(s)
        if isinstance(s, Prefetch):
            ask = f"prefetch({s.buffer}, {self.index(s.position)});"
            return f"if ({self.condition(s.condition)}) {ask}"
        if isinstance(s, SharedStore):
            put = f"template putv<{s.width}>" if s.width > 1 else "put"
            value = self.operand(s.value, s.dtype)
            return f"{s.array}.{put}({self.index(s.position)}, {value});"
        if isinstance(s, BlockReduce):
            target, (x, y) = self.target(s.target), s.threads
            if s.axis == "y":
                values = target if s.count else f"&{target}"
                made = f"{REDUCERS[s.op]}, {x}, {y}, {max(s.count, 1)}"
                return f"reduce_y<{made}>({values}, {s.scratch});"
            return f"{target} = reduce_x<{REDUCERS[s.op]}, {x}, {y}>({target}, {s.scratch});"
        if isinstance(s, RowsReduce):
            return self.reduced_rows(s)
        if isinstance(s, RowsPut):
            places = f"{s.array}, {self.index(s.position)}, {self.operand(s.value, s.dtype)}"
            return f"put_rows<{s.cluster}>({places}, {s.gates}, {s.gate});"
        if isinstance(s, OpenRows):
            return f"open_rows<{s.count}>({s.array}, {s.gates}, {s.gate});"
        if isinstance(s, ClusterReduce):
            target, sizes = self.target(s.target), f"{REDUCERS[s.op]}, {s.threads}, {s.cluster}"
            arguments = f"{target}, {s.scratch}, {s.gates}, {s.gate}, {self.index(s.turn)}"
            return f"{target} = reduce_cluster<{sizes}>({arguments});"
        if isinstance(s, OpenGates):
            return f"open_gates<{s.threads}, {s.cluster}>({s.scratch}, {s.gates}, {s.gate});"
        if isinstance(s, GatesMade):
            return "gates_made();"
        if isinstance(s, GatesReady):
            return "gates_ready();"
        if isinstance(s, Barrier):
            return "sync_threads();"
        if isinstance(s, BlockScan):
            return self.scan(s)
        raise TypeError(f"no statement: {s!r}")

    def reduced_rows(self, s: RowsReduce) -> str:
        """The variable with what is reduced over the rows of a group."""
        sizes = f"{REDUCERS[s.op]}, {s.count}, {s.width}, {s.lanes}"
        given = [s.array, self.literal(s.init, s.wide)]
        given += [s.gates, str(s.gate)] if s.gates else []
        return f"const {C_TYPES[s.wide]} {s.target} = reduce_rows<{sizes}>({', '.join(given)});"

    def scan(self, s: BlockScan) -> str:
        """The call that scans over the threads of a row."""
        x, y = s.threads
        return f"scan_x<{REDUCERS[s.op]}, {x}, {y}>({s.values}, {s.carry}, {s.scratch});"

    def array(self, s: Array) -> str:
        kind = C_TYPES[s.dtype]
        if s.shared_offset is not None:
            return f"const Shared<{kind}> {s.name}({s.shared_offset}, {s.count});"
        size = f"[{s.count}]" if s.count else ""
        return f"{self.type_of(s.dtype, s.width)} {s.name}{size};"

    def store(self, s: Store) -> str:
        value = self.operand(s.value, s.dtype)
        call = f"stv<{s.width}>" if s.width > 1 else "st"
        text = f"{call}({s.buffer}, {self.index(s.position)}, {value});"
        return text if s.condition is TRUE else f"if ({self.condition(s.condition)}) {text}"

    # ---- values

    def type_of(self, dtype: DataType | None, width: int = 1) -> str:
        if dtype is None:
            return self.index_type
        return f"Vec<{C_TYPES[dtype]}, {width}>" if width > 1 else C_TYPES[dtype]

    def value(self, value: Value, dtype: DataType | None) -> str:
        if isinstance(value, Scalar):
            return self.index(value)
        if isinstance(value, Math):
            return self.math(value)
        if isinstance(value, Load | RingLoad):
            return self.load(value)
        if isinstance(value, SharedLoad):
            get = f"template getv<{value.width}>" if value.width > 1 else "get"
            return f"{value.array}.{get}({self.index(value.position)})"
        if isinstance(value, IndexValue):
            return f"static_cast<{C_TYPES[value.dtype]}>({self.index(value.index)})"
        if isinstance(value, Random):
            return self.random(value)
        if isinstance(value, CheckedIndex):
            return self.checked_index(value)
        if isinstance(value, Choose):
            then = self.operand(value.then, value.dtype)
            other = self.operand(value.otherwise, value.dtype)
            return f"({self.condition(value.condition)}) ? {then} : {other}"
        if isinstance(value, Call):
            operands = (self.operand(o, DataType.Float) for o in value.operands)
            return f"{value.function}({', '.join(operands)})"
        if isinstance(value, Coordinate):
            cluster = value.parallel is ParallelType.CLUSTER
            place = "blockIdx.y" if cluster else value.parallel.value
            return f"static_cast<{self.index_type}>({place})"
        assert dtype is not None
        return self.operand(value, dtype)

    def checked_index(self, value: CheckedIndex) -> str:
        """CUDA stops the kernel; the CPU goes on at 0 and notes the failure for the host."""
        operand = self.operand(value.operand, value.dtype)
        note = f", {value.number}, failed" if self.dialect == "cpu" else ""
        return f"checked_index<{self.index_type}>({operand}, {value.size}{note})"

    def load(self, load: Load | RingLoad) -> str:
        if isinstance(load, RingLoad):
            size = self.sizes.number(load.size)
            places = [self.index(load.first), self.index(load.at), size]
            typed = (f"static_cast<{self.index_type}>({place})" for place in places)
            text = f"ldr<{load.width}>({load.buffer}, {', '.join(typed)})"
        elif load.limit is not None:
            at, limit = self.index(load.position), self.sizes.number(load.limit)
            typed = (f"static_cast<{self.index_type}>({place})" for place in (at, limit))
            inside = "" if load.inside is FALSE else f", {self.condition(load.inside)}"
            text = f"lde<{load.width}>({load.buffer}, {', '.join(typed)}{inside})"
        else:
            call = f"ldv<{load.width}>" if load.width > 1 else "ld"
            text = f"{call}({load.buffer}, {self.index(load.position)})"
        if load.condition is TRUE:
            return text
        zero = f"{self.type_of(load.dtype, load.width)}{{}}"
        return f"({self.condition(load.condition)}) ? {text} : {zero}"

    def math(self, value: Math) -> str:
        row, first = OPS[value.op], value.types[0]
        operands = [self.operand(o, t) for o, t in zip(value.operands, value.types, strict=True)]
        decided_by = value.types[-1]
        form = row.c if decided_by.is_float or not row.c_int else row.c_int
        if decided_by.is_complex:
            form = row.c_complex or row.c
        suffix = "" if decided_by is DataType.Double else "f"
        text = form.format(*operands, f=suffix, to=C_TYPES[value.dtype])
        if value.op != "cast" and first.bytes < 4 and value.dtype is first and not first.is_float:
            return f"static_cast<{C_TYPES[value.dtype]}>({text})"  # C computes in int
        return text

    def random(self, value: Random) -> str:
        numbers = [self.operand(o, value.dtype.compute) for o in value.operands[:2]]
        stream = ", ".join(self.operand(o, DataType.Int) for o in value.operands[2:])
        share, to = value.dtype.random_share, C_TYPES[value.dtype]
        lane = self.index(value.position % share)
        words = f"philox({stream}, {self.index(value.position // share)})"
        word = f"word<{to}>({words}, {lane})"
        if value.words is not None:
            word = self.target(value.words)
        form = OPS[value.op].c
        return form.format(*numbers, to=to, words=words, lane=lane, word=word)

    def words(self, s: Words) -> str:
        share, to = s.dtype.random_share, C_TYPES[s.dtype]
        whole = s.first % share is const(0)
        groups = -(-(s.count + (0 if whole else share - 1)) // share)
        stream = ", ".join(self.operand(o, DataType.Int) for o in s.stream)
        fill = f"philox_fill({s.name}, {stream}, {self.index(s.first // share)}, {groups})"
        return f"Bits<{to}>::type {s.name}[{groups * share}]; {fill};"

    def target(self, target: str | Lane) -> str:
        if isinstance(target, str):
            return target
        at = "" if target.at is None else f"[{self.index(target.at)}]"
        lane = "" if target.lane is None else f".v[{self.index(target.lane)}]"
        return f"{target.array}{at}{lane}"

    def operand(self, operand: Operand, dtype: DataType) -> str:
        if isinstance(operand, Literal):
            return self.literal(operand, dtype)
        return self.target(operand)

    def literal(self, literal: Literal, dtype: DataType) -> str:
        """A number in a type, to the last bit."""
        value = literal.value
        if dtype is DataType.Bool:
            return "true" if value else "false"
        if dtype.is_complex:
            return f"{C_TYPES[dtype]}{{{self.literal(literal, dtype.real)}, 0}}"
        if not dtype.is_float:
            return _integer_text(int(value), dtype)
        text = _float_text(float(value), dtype.compute)
        return f"convert<{C_TYPES[dtype]}>({text})" if dtype.is_narrow else text

    # ---- indices

    def index(self, scalar: Scalar) -> str:
        """An index expression in C. Values are never negative where they are used."""
        if scalar.op == "const":
            return self.sizes.number(scalar.value)
        if scalar.op == "sym":
            return scalar.text
        if scalar.op == "sum":
            return self._sum(scalar)
        if scalar.op in ("div", "mod") and scalar.parts[1].is_const:
            return self._division(scalar.op, self._factor(scalar.parts[0]), scalar.parts[1].value)
        a, b = (self._factor(part) for part in scalar.parts)
        if scalar.op in ("min", "max"):
            sign = "<" if scalar.op == "min" else ">"
            return f"({a} {sign} {b} ? {a} : {b})"
        sign = {"mul": "*", "div": "/", "mod": "%"}[scalar.op]
        return f"{a} {sign} {b}"

    def _division(self, op: str, x: str, d: int) -> str:
        """By a size with a multiplication; of wide indices by the number itself, in the text."""
        if type(d) is not Sized or self.kernel.wide_index:
            return f"{x} {'/' if op == 'div' else '%'} {int(d)}"
        if op == "div":
            return f"index_div({x}, {self.sizes.divisor(d)})"
        return f"index_mod({x}, {self.sizes.number(d)}, {self.sizes.divisor(d)})"

    def _sum(self, scalar: Scalar) -> str:
        terms, constant = scalar.terms
        words = [self._term(a, c) for a, c in terms]
        if constant:
            words.append(self._signed(constant))
        return " + ".join(words).replace("+ -", "- ")

    def _term(self, atom: Scalar, factor: int) -> str:
        text = self._factor(atom)
        return text if factor == 1 else f"{text} * {self._signed(factor)}"

    def _signed(self, number: int) -> str:
        return f"-{self.sizes.number(-number)}" if number < 0 else self.sizes.number(number)

    def _factor(self, part: Scalar) -> str:
        text = self.index(part)
        return text if part.op in ("const", "sym", "min", "max") or _is_call(text) else f"({text})"

    def condition(self, scalar: Scalar) -> str:
        """A predicate in C, sums moved so that both sides read naturally."""
        if scalar.op == "and":
            return " && ".join(self._conjunct(part) for part in scalar.parts)
        if scalar.op == "const":
            return "true" if scalar.value else "false"
        below = scalar.parts[0]
        if below.op == "min":  # min(a, b) < 0
            return " || ".join(self.condition(part.lt(0)) for part in below.parts)
        terms, constant = below.terms
        left = [(a, c) for a, c in terms if c > 0]
        right = [(a, -c) for a, c in terms if c < 0]
        return f"{self._side(left, max(constant, 0))} < {self._side(right, max(-constant, 0))}"

    def _conjunct(self, scalar: Scalar) -> str:
        text = self.condition(scalar)
        return f"({text})" if "||" in text else text

    def _side(self, terms: list[tuple[Scalar, int]], constant: int) -> str:
        total = const(constant)
        for atom, factor in terms:
            total = total + atom * factor
        return self.index(total)


def _is_call(text: str) -> bool:
    """True for f(...) and nothing behind it.

    >>> _is_call("index_div(a, b)"), _is_call("index_div(a, b) * 4"), _is_call("(a) + (b)")
    (True, False, False)
    """
    if not text.startswith("index_"):
        return False
    depth = [0]
    for c in text:
        depth.append(depth[-1] + (c == "(") - (c == ")"))
    return text.endswith(")") and depth[1:].index(0, text.index("(")) == len(text) - 1


def _param(parameter: Parameter) -> Param:
    return Param(parameter.name, C_TYPES[parameter.dtype], parameter.kind)


def _declaration(parameter: Parameter) -> str:
    kind = C_TYPES[parameter.dtype]
    if parameter.kind == "scalar":
        return f"const {kind} {parameter.name}"
    const_word = "const " if parameter.kind == "input" else ""
    alone = "" if parameter.shared else "__restrict__ "
    return f"{const_word}{kind}* {alone}{parameter.name}"


def _integer_text(value: int, dtype: DataType) -> str:
    bits = 8 * dtype.bytes
    wrapped = value & ((1 << bits) - 1)
    if dtype is not DataType.UInt8 and wrapped >= 1 << (bits - 1):
        wrapped -= 1 << bits
    if wrapped == -(1 << 63):
        return "(-9223372036854775807LL - 1)"
    suffix = "LL" if dtype is DataType.Int else ""
    return f"static_cast<{C_TYPES[dtype]}>({wrapped}{suffix})"


def _float_text(value: float, dtype: DataType) -> str:
    kind = C_TYPES[dtype]
    if dtype is DataType.Float and math.isfinite(value):
        value = _as_float32(value)
    if math.isnan(value):
        return f"not_a_number<{kind}>()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}infinity<{kind}>()"
    text = repr(value)
    if dtype is DataType.Float:
        text = next(t for d in range(6, 10) if _as_float32(float(t := f"{value:.{d}g}")) == value)
        text += "" if any(c in text for c in ".e") else ".0"
        text += "f"
    return f"({text})" if value < 0 else text


def _as_float32(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
