# SPDX-License-Identifier: Apache-2.0
"""Points -> values in a kernel: loads, math, and persistent buffers filled once and read again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from thunder_fuser.analysis.demand import Point
from thunder_fuser.analysis.index_map import accesses, index_element, linear
from thunder_fuser.analysis.part import offset
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import Literal, OpRecord, sizeless_text
from thunder_fuser.ir.scalar import Scalar, const, symbol
from thunder_fuser.lower.buffers import Buffers
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.divisors import Divisors
from thunder_fuser.lower.kernel import (
    Call,
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
    Set,
    SharedStore,
    Value,
    Words,
)
from thunder_fuser.lower.places import Places
from thunder_fuser.lower.scope import ROOT, Found, Names, Scope
from thunder_fuser.lower.shared import SharedMemory

NONE: frozenset[str] = frozenset()
MOST_WORDS = 16384  # random numbers made in advance: they are on a thread's stack
# Bytes of the elements whose next row a block asks for while it is at one. Norm backward of bf16:
# 69 to 79 % of clone without, 79 to 92 % with; of f32, with vectors twice as long, 88 and 93 %
# without, 76 and 86 % with (H200).
ASKED_AHEAD = 2


class Values:
    """Makes and finds the values of one kernel. `nest` is the number of the nest being built."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.nest = 0
        self.shared = SharedMemory()
        self.largest_index = 0  # of numbers made by index arithmetic
        self.name = Names()
        self.places = Places(ctx, self.name)
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
        for point in list(self.buffers.vectors_to_fill()):
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
            scanned = expr is not None and expr.row.kind is OpKind.SCAN
            found = self._scanned(point, scope) if scanned else self._reduced(point, scope)
            scope.home(found[1]).values[point] = found
            return found
        found = self._load(point, scope) if expr is None else self._compute(point, expr, scope)
        buffer = self.buffers.get(point)
        if buffer is not None and buffer.filled_in is None:
            found = self.buffers.fill(point, found, self.nest, scope)
        scope.home(found[1]).values[point] = found
        return found

    def _reduced(self, point: Point, scope: Scope) -> Found:
        """The result of a reduction whose nest is done."""
        ctx, name = self.ctx, point.name
        needs = frozenset([ctx.home]) | (ctx.lane_symbol.symbols if ctx.lane_is_kept else NONE)
        if not set(ctx.scheduled.rows).isdisjoint(ctx.part.axes(name)):
            needs |= ctx.group_step.symbols  # stays in the loop over a group's rows
            if name in self._rows_kept:
                return Lane(f"{name}_k", ctx.group_step), needs
        if name in ctx.carried:
            needs = frozenset([ROOT]) | ctx.step.symbols | ctx.lane_symbol.symbols
        return self._as_result(point, ctx.accumulator(name), needs, scope)

    def _scanned(self, point: Point, scope: Scope) -> Found:
        """The element of a scan that this step has made."""
        needs = point.symbols | self.ctx.lane_symbol.symbols | {ROOT}
        return self._as_result(point, self.ctx.scanned(point.name), needs, scope)

    def _as_result(
        self, point: Point, value: Operand, needs: frozenset[str], scope: Scope
    ) -> Found:
        """An accumulator's value in the type of the result."""
        wide, dtype = self.ctx.accumulator_type(point.name), self.ctx.part.tensors[point.name].dtype
        if wide is dtype:
            return value, needs
        return self._put(point, Math("cast", (value,), (wide,), dtype), needs, scope)

    # ---- positions

    def _place(self, at: Scalar, scope: Scope) -> tuple[Scalar, frozenset[str]]:
        """A position or condition with each element in a variable, and what it depends on."""
        needs, names = at.symbols, dict[Scalar, Scalar]()
        for one in sorted(at.elements, key=lambda element: element.sort_key):
            found = scope.find(one)
            if found is None:
                value = self._get(self.places.point(one), scope)
                found = self.places.put(one, value, scope)
            names[one] = symbol(str(found[0]), one.lo, one.hi)
            needs |= found[1]
        return at.with_elements(names), needs

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
            return self._load_ring(point, ring, scope)
        position, condition, needs = self._access(position, point.condition, scope)
        load = Load(view.name, position, view.dtype, 1, condition)
        name = self.name(f"{view.name}_e", point)
        scope.home(needs).put(Let(name, view.dtype, load))
        return name, needs

    def _by_value(self, point: Point, scope: Scope) -> Found:
        """A number passed to the kernel; narrow floats come as float, which C can pass."""
        view = self.ctx.part.tensors[point.name]
        if not view.dtype.is_narrow:
            return view.name, NONE
        name = self.name(f"{view.name}_e", point)
        value = Math("cast", (view.name,), (DataType.Float,), view.dtype)
        scope.home(NONE).put(Let(name, view.dtype, value))
        return name, NONE

    def _ring(self, point: Point, position: Scalar) -> RingLoad | None:
        """One load for all lanes, if they walk on in a row whose end they may pass.

        T1[(8*i + v) % 4095]  ->  8 elements from (8*i) % 4095 on
        """
        lane, view = self.ctx.lane_symbol, self.ctx.part.tensors[point.name]
        if self.ctx.width == 1 or lane.symbols & point.condition.symbols:
            return None
        if position.elements or point.condition.elements:
            return None
        moving = [(a, c) for a, c in position.terms[0] if a.symbols & lane.symbols]
        if len(moving) != 1 or moving[0][0].op != "mod" or moving[0][1] != 1:
            return None
        row, size = moving[0][0].parts
        start = row - lane
        if start.symbols & lane.symbols or not size.is_const or size.value < self.ctx.width:
            return None
        first, at = position - moving[0][0], start % size
        return RingLoad(
            view.name, first, at, size.value, view.dtype, self.ctx.width, point.condition
        )

    def _load_ring(self, point: Point, load: RingLoad, scope: Scope) -> Found:
        needs = load.first.symbols | load.at.symbols | load.condition.symbols
        name = self.name(f"{point.name}_v", (load.first, load.at, load.condition))
        scope.put_once(needs, Let(name, load.dtype, load, load.width))
        lane = self.ctx.lane_symbol
        return Lane(name, None, lane), needs | lane.symbols

    def _load_vector(self, point: Point, position: Scalar, scope: Scope) -> Found:
        ctx, view = self.ctx, self.ctx.part.tensors[point.name]
        base = position - ctx.lane_symbol
        base, condition, needs = self._access(base, point.condition, scope)
        # Past the end of a row is another row, which the lanes' work leaves out.
        limit = None if ctx.loops.edge is None else ctx.elements(view.name)
        load = Load(view.name, base, view.dtype, ctx.width, condition, limit, ctx.whole_steps[1])
        home, lanes = scope.home(needs), needs | ctx.lane_symbol.symbols
        if ctx.row_loops and self.nest == 0 and view.dtype.bytes <= ASKED_AHEAD:
            self._prefetch(view.name, base, home)
        buffer = self.buffers.get(point)
        if buffer is not None and buffer.filled_in == self.nest and not buffer.shared:
            return Lane(buffer.array, ctx.step, ctx.lane_symbol), lanes | {ctx.home}
        if buffer is not None and buffer.filled_in is None and not buffer.shared:
            needs |= ctx.step.symbols | {ctx.home}
            scope.home(needs).put(Set(Lane(buffer.array, ctx.step), load, view.dtype))
            buffer.filled_in = self.nest
            return Lane(buffer.array, ctx.step, ctx.lane_symbol), lanes | needs
        name = self.name(f"{view.name}_v", (base, condition))
        scope.put_once(needs, Let(name, view.dtype, load, ctx.width))
        if buffer is not None and buffer.filled_in is None:
            position = buffer.position - ctx.lane_symbol
            scope.home(needs | position.symbols).put(
                SharedStore(buffer.array, position, name, ctx.width, view.dtype)
            )
            buffer.filled_in = self.nest
        return Lane(name, None, ctx.lane_symbol), lanes

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
        view = self.ctx.part.tensors[point.name]
        name = self.name(self.ctx.local(view.name), point)
        comment = sizeless_text(expr or self.ctx.part.producer[view.name])
        scope.home(needs).put(Let(name, view.dtype, value, comment=comment))
        return name, needs

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
        dtype = self.ctx.part.tensors[point.name].dtype
        if self.divisors.is_count(expr, dtype):
            divided, by = self.divisors.by_count(point, expr, operands[0], dtype, scope)
            known = replace(expr, inputs=(expr.inputs[0], by))
            return self._put(point, divided, needs, scope, known)
        if self.divisors.is_of_row(point, expr, dtype):
            divisor = self.ctx.demand.reads[point][-1]
            by = self.divisors.of_row(divisor, self._get(divisor, scope), scope)
            return self._put(point, Call("quotient", (operands[0], by)), needs, scope)
        short = self.ctx.short_form(expr, dtype)
        if short:
            return self._put(point, Call(short, operands), needs, scope)
        value = Math(expr.op, operands, self.ctx.operand_types(expr, dtype), dtype)
        return self._put(point, value, needs, scope)

    def _factory(self, point: Point, expr: OpRecord, scope: Scope) -> Found:
        dtype = self.ctx.part.tensors[point.name].dtype
        if expr.op == "size":
            extent = self.ctx.part.tensors[str(expr.inputs[0])].shape[int(expr.attr("dim"))]  # type: ignore[arg-type]
            return self._put(point, IndexValue(extent, dtype), NONE, scope)
        operands, needs = self._operands(point, expr, scope)
        if expr.op == "full":
            given = self.ctx.dtype_of(expr.inputs[0])
            cast = Math("cast", operands[:1], (given,), dtype)
            return self._put(point, cast, needs, scope)
        index, more = self._place(point.index[0], scope)
        needs |= more
        start, step = operands
        if not isinstance(start, Literal) or not isinstance(step, Literal):
            return self._iota_of_values(point, index, operands, needs, scope)
        if dtype.is_int and isinstance(start.value, int) and isinstance(step.value, int):
            value: Value = IndexValue(index * step.value + start.value, dtype)
            self.largest_index = max(
                self.largest_index, abs(start.value) + abs(step.value) * int(index.hi)
            )
            return self._put(point, value, needs, scope)
        return self._iota_of_values(point, index, operands, needs, scope)

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
        name = self.ctx.part.tensors[point.name].name
        double = (DataType.Double, DataType.Double)
        home = scope.home(needs)
        at, scaled, moved = (self.name(f"{name}_{word}", point) for word in ("at", "by", "to"))
        home.put(Let(at, DataType.Double, IndexValue(index, DataType.Double)))
        home.put(Let(scaled, DataType.Double, Math("mul", (at, step), double, DataType.Double)))
        home.put(Let(moved, DataType.Double, Math("add", (scaled, start), double, DataType.Double)))
        dtype = self.ctx.part.tensors[point.name].dtype
        return self._put(point, Math("cast", (moved,), (DataType.Double,), dtype), needs, scope)

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
        scope.put_once(needs | first.symbols, Words(name, stream, first, count, view.dtype))
        return Lane(name, lane + first % view.dtype.random_share)

    def _move(self, point: Point, expr: OpRecord, scope: Scope) -> Found:
        """An element moved is the element itself; pad and cat choose by index."""
        reads = self.ctx.demand.reads[point]
        dtype = self.ctx.part.tensors[point.name].dtype
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
            scope.home(needs).put(Let(name, dtype, choose, comment=sizeless_text(expr)))
            result = name
        return result, needs
