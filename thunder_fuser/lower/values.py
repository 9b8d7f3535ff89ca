# SPDX-License-Identifier: Apache-2.0
"""Points -> values in a kernel: loads, math, and persistent buffers filled once and read again.

A place that a tensor of indices holds is checked, and then a variable:

64*T1[i] + j   ->   const i32 T1_x = checked_index(T1_e, 50);   64*T1_x + j
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from thunder_fuser.analysis.demand import Point
from thunder_fuser.analysis.index_map import accesses, index_element, linear
from thunder_fuser.analysis.part import offset
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.indexed import indexed_axis
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import Literal, OpRecord, record_text, sizeless_text
from thunder_fuser.ir.scalar import Scalar, const, symbol
from thunder_fuser.lower.buffers import Buffers
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.divisors import Divisors
from thunder_fuser.lower.guards import whole_steps
from thunder_fuser.lower.kernel import (
    Call,
    CheckedIndex,
    Choose,
    IndexValue,
    Lane,
    Let,
    Load,
    Math,
    Operand,
    Prefetch,
    Random,
    RingLoad,
    Value,
    Words,
)
from thunder_fuser.lower.scope import NONE, ROOT, Found, Names, Scope, SharedMemory

DOUBLE = DataType.Double
MOST_WORDS = 16384  # random numbers made in advance: they are on a thread's stack
# Bytes of the elements whose next row a block asks for while it is at one. Norm backward of bf16:
# 69 to 79 % of clone without, 79 to 92 % with; of f32, with vectors twice as long, 88 and 93 %
# without, 76 and 86 % with (H200).
ASKED_AHEAD = 2


class Values:
    """Makes and finds the values of one kernel.

    nest: the number of the nest being built. checks: what an index is of, and its size -> its
    number. largest_index: of numbers made by index arithmetic.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.nest = 0
        self.shared = SharedMemory()
        self.largest_index = 0
        self.checks: dict[tuple[str, int], int] = {}
        self.name = Names()
        self.divisors = Divisors(ctx, self.name)
        self.buffers = Buffers(ctx, self.shared, self.name)
        self._rows_kept = set[str]()

    # ---- asking

    def get(self, point: Point, scope: Scope) -> Operand:
        """The value of a point, made where it is first needed."""
        # One by one: a chain of hundreds of operations would be too deep for Python's stack.
        for missing in self._missing(point, scope):
            self._get(missing, scope)
        return self._get(point, scope)[0]

    def put_all(self, points: Iterable[Point], scope: Scope) -> None:
        """Makes the values of points, to be found where they are used."""
        for point in points:
            self.get(point, scope)

    def keep_rows(self, names: Iterable[str]) -> None:
        """From here on these reductions of a group's rows are in arrays, an element each."""
        self._rows_kept.update(names)

    def fill_vectors(self, scope: Scope) -> None:
        """Loads a step of the inputs that are kept in whole vectors."""
        for point in self.buffers.unfilled(vector=True):
            self._load(point, scope)

    def _missing(self, point: Point, scope: Scope) -> list[Point]:
        """The points to be made for one point, each after those that it reads."""
        demand, order = self.ctx.demand, dict[Point, None]()
        stack = [(point, False)]
        while stack:
            at, is_ready = stack.pop()
            if is_ready:
                order[at] = None
            elif at not in order and scope.find(at) is None and not self._is_kept(at):
                stack.append((at, True))
                if at.name not in demand.operands:
                    stack.extend((read, False) for read in reversed(demand.reads.get(at, ())))
        return list(order)

    def _is_kept(self, point: Point) -> bool:
        return self.buffers.has(point, self.nest)

    def _get(self, point: Point, scope: Scope) -> Found:
        found = scope.find(point)
        if found is not None:
            return found
        if self._is_kept(point):
            return self.buffers.read(point, scope)
        expr = self.ctx.part.producer.get(point.name)
        if point.name in self.ctx.demand.operands:
            return scope.keep(point, self._joined(point, scope))
        found = self._load(point, scope) if expr is None else self._compute(point, expr, scope)
        kept = found[0], found[1] | {self.ctx.home}
        self.buffers.fill(point, kept, self.nest, scope)
        return scope.keep(point, found)

    def _joined(self, point: Point, scope: Scope) -> Found:
        """The result of a reduction whose nest is done, or a scan's element of this step."""
        ctx, name = self.ctx, point.name
        if ctx.part.producer[name].row.kind is OpKind.SCAN:
            value, needs = ctx.scanned(name), point.symbols | ctx.lane_symbol.symbols | {ROOT}
        else:
            value, needs = ctx.accumulator(name), self._needs(name)
            if name in self._rows_kept:
                return Lane(f"{name}_k", ctx.group_step), needs
        wide, dtype = ctx.accumulator_type(name), ctx.dtype_of(name)
        if wide is dtype:
            return value, needs
        return self._put(point, Math("cast", (value,), (wide,), dtype), needs, scope)

    def _needs(self, name: str) -> frozenset[str]:
        """What the result of a reduction depends on."""
        ctx = self.ctx
        if name in ctx.carried:
            return ctx.slot.symbols | {ROOT}
        needs = frozenset([ctx.home]) | (ctx.lane_symbol.symbols if ctx.lane_is_kept else NONE)
        if set(ctx.scheduled.rows).isdisjoint(ctx.part.axes(name)):
            return needs
        return needs | ctx.group_step.symbols  # stays in the loop over a group's rows

    # ---- positions

    def _place(self, at: Scalar, scope: Scope) -> tuple[Scalar, frozenset[str]]:
        """A position or condition with each element in a variable, and what it depends on."""
        needs, names = at.symbols, dict[Scalar, Scalar]()
        for one in sorted(at.elements, key=lambda element: element.sort_key):
            found = scope.find(one) or scope.keep(one, self._checked(one, scope))
            names[one] = symbol(str(found[0]), one.lo, one.hi)
            needs |= found[1]
        return at.with_elements(names), needs

    def _checked(self, element: Scalar, scope: Scope) -> Found:
        """The variable with an element, checked where it is made."""
        tensor, (condition, *index) = str(element.args[0]), element.parts
        operand, needs = self._get(Point(tensor, tuple(index), condition), scope)
        text, size = record_text(self._reader(element)), int(element.hi) + 1
        number = self.checks.setdefault((text, size), len(self.checks) + 1)
        value = CheckedIndex(operand, self.ctx.dtype_of(tensor), size, number)
        name = self.name(f"{tensor}_x", element)
        return scope.define(Let(name, None, value, comment=text), needs)

    def _reader(self, element: Scalar) -> OpRecord:
        """The op that reads through an element; of several alike, the first."""
        part = self.ctx.part
        for expr in part.exprs:
            if expr.row.kind is OpKind.INDEX and element.args[0] in expr.inputs:
                sizes = part.tensors[str(expr.inputs[expr.row.source])].sizes
                if sizes[indexed_axis(expr, len(sizes))] == element.args[1]:
                    return expr
        raise ValueError(f"{element}: no op of the part reads through it")

    def _access(
        self, position: Scalar, condition: Scalar, scope: Scope
    ) -> tuple[Scalar, Scalar, frozenset[str]]:
        """`_place` for both parts of an access, and what they depend on together."""
        position, needs = self._place(position, scope)
        condition, more = self._place(condition, scope)
        return position, condition, needs | more

    # ---- loads

    def _load(self, point: Point, scope: Scope) -> Found:
        view = self.ctx.part.tensors[point.name]
        if view.by_value:
            return self._by_value(point, scope)
        position = offset(point.index, self.ctx.part.strides[view.name])
        if self.ctx.loads_vector(point, position):
            return self._load_vector(point, position, scope)
        ring = self._ring(point, position)
        if ring is not None:
            needs = ring.first.symbols | ring.at.symbols | ring.condition.symbols
            name = self.name(f"{point.name}_v", (ring.first, ring.at, ring.condition))
            return self._lane_of(scope.define(Let(name, ring.dtype, ring, ring.width), needs))
        position, condition, needs = self._access(position, point.condition, scope)
        load = Load(view.name, position, view.dtype, 1, condition)
        return scope.define(Let(self.name(f"{view.name}_e", point), view.dtype, load), needs)

    def _by_value(self, point: Point, scope: Scope) -> Found:
        """A number passed to the kernel; narrow floats come as float, which C can pass."""
        view = self.ctx.part.tensors[point.name]
        if not view.dtype.is_narrow:
            return view.name, NONE
        value = Math("cast", (view.name,), (DataType.Float,), view.dtype)
        return scope.define(Let(self.name(f"{view.name}_e", point), view.dtype, value), NONE)

    def _lane_of(self, vector: Found) -> Found:
        """This lane's element of a vector."""
        lane = self.ctx.lane_symbol
        return Lane(str(vector[0]), None, lane), vector[1] | lane.symbols

    def _ring(self, point: Point, position: Scalar) -> RingLoad | None:
        """One load for all lanes, if they walk on in a row whose end they may pass.

        T1[(8*i + v) % 4095]  ->  8 elements from (8*i) % 4095 on
        """
        lane, width, condition = self.ctx.lane_symbol, self.ctx.width, point.condition
        if width == 1 or lane.symbols & condition.symbols:
            return None
        if position.elements or condition.elements:
            return None
        moving = [(a, c) for a, c in position.terms[0] if a.symbols & lane.symbols]
        if len(moving) != 1 or moving[0][0].op != "mod" or moving[0][1] != 1:
            return None
        row, size = moving[0][0].parts
        start = row - lane
        if start.symbols & lane.symbols or not size.is_const or size.value < width:
            return None
        first, dtype = position - moving[0][0], self.ctx.dtype_of(point.name)
        return RingLoad(point.name, first, start % size, size.value, dtype, width, condition)

    def _load_vector(self, point: Point, position: Scalar, scope: Scope) -> Found:
        ctx, view = self.ctx, self.ctx.part.tensors[point.name]
        base, condition, needs = self._access(position - ctx.lane_symbol, point.condition, scope)
        # Past the end of a row is another row, which the lanes' work leaves out.
        limit = None if ctx.loops.edge is None else ctx.elements(view.name)
        load = Load(view.name, base, view.dtype, ctx.width, condition, limit, whole_steps(ctx)[1])
        if ctx.row_loops and self.nest == 0 and view.dtype.bytes <= ASKED_AHEAD:
            self._prefetch(view.name, base, scope.home(needs))
        kept = self.buffers.load_into(point, load, needs, self.nest, scope)
        if kept is not None:
            return kept
        name = self.name(f"{view.name}_v", (base, condition))
        vector = scope.define(Let(name, view.dtype, load, ctx.width), needs)
        self.buffers.fill(point, vector, self.nest, scope, ctx.width)
        return self._lane_of(vector)

    def _prefetch(self, name: str, position: Scalar, scope: Scope) -> None:
        """Asks for the same vector of the next row that the block walks."""
        following, condition = self.ctx.next_row(position)
        key = ("prefetch", name, following)
        if following is not position and scope.find(key) is None:
            scope.put(Prefetch(name, following, condition))
            scope.values[key] = (name, position.symbols)

    # ---- math

    def _compute(self, point: Point, expr: OpRecord, scope: Scope) -> Found:
        kind = expr.row.kind
        if kind is OpKind.INDEX:
            # Also where the place does not matter, as in an expanded source, the index is checked.
            at = index_element(expr, point.index, point.condition, self.ctx.part.tensors)
            self._place(at, scope)
            return self._get(self.ctx.demand.reads[point][-1], scope)
        if kind is OpKind.POINTWISE:
            return self._math(point, expr, scope)
        if kind is OpKind.FACTORY or kind is OpKind.SCALAR:
            return self._factory(point, expr, scope)
        if kind is OpKind.RANDOM:
            return self._random(point, expr, scope)
        return self._move(point, expr, scope)

    def _put(
        self,
        point: Point,
        value: Value,
        needs: frozenset[str],
        scope: Scope,
        expr: OpRecord | None = None,
    ) -> Found:
        """A variable for the value of a point; expr: what the comment says that it is."""
        name = self.name(self.ctx.local(point.name), point)
        comment = sizeless_text(expr or self.ctx.part.producer[point.name])
        made = Let(name, self.ctx.dtype_of(point.name), value, comment=comment)
        return scope.define(made, needs)

    def _operands(
        self, point: Point, expr: OpRecord, scope: Scope
    ) -> tuple[tuple[Operand, ...], frozenset[str]]:
        reads = iter(self.ctx.demand.reads[point])
        found = [
            (o, NONE) if isinstance(o, Literal) else self._get(next(reads), scope)
            for o in expr.inputs
        ]
        return tuple(f[0] for f in found), NONE.union(*(f[1] for f in found))

    def _math(self, point: Point, expr: OpRecord, scope: Scope) -> Found:
        operands, needs = self._operands(point, expr, scope)
        dtype = self.ctx.dtype_of(point.name)
        value: Value = Math(expr.op, operands, self.ctx.operand_types(expr, dtype), dtype)
        if self.divisors.is_count(expr, dtype):
            value, by = self.divisors.by_count(point, expr, operands[0], dtype, scope)
            expr = replace(expr, inputs=(expr.inputs[0], by))
        elif self.divisors.is_of_row(point, expr, dtype):
            divisor = self.ctx.demand.reads[point][-1]
            by = self.divisors.of_row(divisor, self._get(divisor, scope), scope)
            value = Call("quotient", (operands[0], by))
        elif short := self.ctx.short_form(expr, dtype):
            value = Call(short, operands)
        return self._put(point, value, needs, scope, expr)

    def _factory(self, point: Point, expr: OpRecord, scope: Scope) -> Found:
        dtype = self.ctx.dtype_of(point.name)
        if expr.op == "size":
            extent = self.ctx.part.tensors[str(expr.inputs[0])].shape[int(expr.attr("dim"))]  # type: ignore[arg-type]
            return self._put(point, IndexValue(extent, dtype), NONE, scope)
        operands, needs = self._operands(point, expr, scope)
        if expr.op == "full":
            given = self.ctx.dtype_of(expr.inputs[0])
            cast = Math("cast", operands[:1], (given,), dtype)
            return self._put(point, cast, needs, scope)
        index, more = self._place(point.index[0], scope)
        start, step = (o.value if isinstance(o, Literal) else None for o in operands)
        if dtype.is_int and isinstance(start, int) and isinstance(step, int):
            last = abs(start) + abs(step) * int(index.hi)
            self.largest_index = max(self.largest_index, last)
            value = IndexValue(index * step + start, dtype)
            return self._put(point, value, needs | more, scope)
        return self._iota_of_values(point, index, operands, needs | more, scope)

    def _iota_of_values(
        self,
        point: Point,
        index: Scalar,
        operands: tuple[Operand, ...],
        needs: frozenset[str],
        scope: Scope,
    ) -> Found:
        """start + step * index, in double, as torch.arange does."""
        start, step = operands
        at, scaled, moved = (
            self.name(f"{point.name}_{word}", point) for word in ("at", "by", "to")
        )
        types = (DOUBLE, DOUBLE)
        for name, value in (
            (at, IndexValue(index, DOUBLE)),
            (scaled, Math("mul", (at, step), types, DOUBLE)),
            (moved, Math("add", (scaled, start), types, DOUBLE)),
        ):
            scope.define(Let(name, DOUBLE, value), needs)
        cast = Math("cast", (moved,), (DOUBLE,), self.ctx.dtype_of(point.name))
        return self._put(point, cast, needs, scope)

    def _random(self, point: Point, expr: OpRecord, scope: Scope) -> Found:
        view = self.ctx.part.tensors[point.name]
        operands, needs = self._operands(point, expr, scope)
        position = linear(point.index, view.shape)
        words = None
        if self.ctx.is_cpu and expr.op == "uniform" and not position.elements:
            words = self._words(point, position, (operands[2], operands[3]), needs, scope)
        position, more = self._place(position, scope)
        value = Random(expr.op, position, operands, view.dtype, words)
        return self._put(point, value, needs | more, scope)

    def _words(
        self,
        point: Point,
        position: Scalar,
        stream: tuple[Operand, Operand],
        needs: frozenset[str],
        scope: Scope,
    ) -> Lane | None:
        """This lane's place in an array made before the lanes, if they are side by side.

        A simd loop would compute all four words of a group for each of its lanes; an unrolled loop
        of CUDA's does not, as the calls of one group are equal.
        """
        view, lane = self.ctx.part.tensors[point.name], self.ctx.lane_symbol
        guarded = [g for g in self.ctx.loops.guards if lane.symbols & g.value.symbols]
        first = position.substitute({str(g.variable): g.value for g in guarded}) - lane
        count = min(self.ctx.lanes, int(prod(view.sizes)))
        aside = lane.symbols and not lane.symbols & (first.symbols | needs)
        # Under a condition, as in a pad, the position may lie outside the tensor.
        if not aside or count > MOST_WORDS or not point.condition.is_const:
            return None
        name = self.name(f"{point.name}_w", point)
        scope.define(Words(name, stream, first, count, view.dtype), needs | first.symbols)
        return Lane(name, lane + first % view.dtype.random_share)

    def _move(self, point: Point, expr: OpRecord, scope: Scope) -> Found:
        """An element moved is the element itself; pad and cat choose by index."""
        reads = self.ctx.demand.reads[point]
        dtype = self.ctx.dtype_of(point.name)
        if expr.op not in ("pad", "cat"):
            return self._get(reads[0], scope)
        found = [self._get(read, scope) for read in reads]
        where = [a.condition for a in accesses(expr, point.index, self.ctx.part.tensors)]
        if expr.op == "pad":
            value = Literal.of(expr.attr("value") or 0)  # type: ignore[arg-type]
            found.append((value, NONE))
            where.append(const(1))
        result, needs = found[-1]
        for (operand, symbols), when in zip(found[-2::-1], where[-2::-1], strict=True):
            condition, more = self._place(when, scope)
            needs |= symbols | more
            name = self.name(self.ctx.local(point.name), (point, condition))
            choose = Choose(condition, operand, result, dtype)
            scope.define(Let(name, dtype, choose, comment=sizeless_text(expr)), needs)
            result = name
        return result, needs
