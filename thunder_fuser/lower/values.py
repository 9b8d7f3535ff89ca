# SPDX-License-Identifier: Apache-2.0
"""Points -> values in a kernel: loads, math, and persistent buffers that are filled and read.

An index that a tensor holds is checked, and put into a variable:

64*T1[i] + j   ->   const i32 T1_x = checked_index(T1_e, 50);   64*T1_x + j
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import inf, prod

from thunder_fuser.analysis.index_map import Point, accesses, index_element, linear
from thunder_fuser.analysis.part import offset
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import Literal, OpRecord, record_text, sizeless_text
from thunder_fuser.ir.rules.indexed import indexed_axis
from thunder_fuser.ir.scalar import Scalar, const, symbol
from thunder_fuser.ir.size_symbols import sized
from thunder_fuser.lower import kernel as nodes
from thunder_fuser.lower.buffers import Buffers
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.guards import whole_steps
from thunder_fuser.lower.scope import NONE, ROOT, Computed, Names, Needs, Scope, SharedMemory
from thunder_fuser.schedule.axes import is_vector

DOUBLE = DataType.Double
MOST_WORDS = 16384  # random words made in advance: they are on a thread's stack
# A block prefetches its next row if elements have at most so many bytes. Norm backward of bf16
# reaches 69 to 79 % of clone without and 79 to 92 % with it; that of f32, with vectors twice as
# long, 88 and 93 % without, 76 and 86 % with it (H200).
PREFETCHED_BYTES = 2

NORMAL = 2.0**-126, 2.0**128  # the sizes of floats that have all digits
DIVISIONS = ("truediv", "div")  # the same for floats
LARGEST_COUNT = 2**31 - 1

Operands = tuple[nodes.Operand, ...]
Types = tuple[DataType, ...]


class Values:
    """Makes and finds the values of one kernel.

    checks: {(text of the op that reads by an index, size of the axis): number of the check}.
    largest_index: of numbers made by index arithmetic. rows_kept: the reductions of a group's rows
    that are in arrays, an element for each row.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.shared = SharedMemory()
        self.largest_index = 0
        self.checks: dict[tuple[str, int], int] = {}
        self.name = Names()
        self.buffers = Buffers(ctx, self.shared, self.name)
        self.rows_kept = set[str]()

    # ---- asking

    def get(self, point: Point, scope: Scope) -> nodes.Operand:
        """The value of a point, made where it is first needed."""
        # Not by recursion: a chain of hundreds of operations is too deep for Python's stack.
        for missing in self._missing(point, scope):
            self._get(missing, scope)
        return self._get(point, scope)[0]

    def put_all(self, points: Iterable[Point], scope: Scope) -> None:
        """Makes the values of points, which later work finds."""
        for point in points:
            self.get(point, scope)

    def fill_vectors(self, scope: Scope) -> None:
        """Loads the current step of the inputs that are kept in whole vectors."""
        for point in self.buffers.unfilled(vector=True):
            self._load(point, scope)

    def _missing(self, point: Point, scope: Scope) -> list[Point]:
        """The points that must be made for one point, each after those that it reads."""
        demand, order = self.ctx.demand, dict[Point, None]()
        stack = [(point, False)]
        while stack:
            at, is_ready = stack.pop()
            if is_ready:
                order[at] = None
            elif at not in order and scope.find(at) is None and not self.buffers.has(at):
                stack.append((at, True))
                if at.name not in demand.operands:
                    stack.extend((read, False) for read in reversed(demand.reads.get(at, ())))
        return list(order)

    def _get(self, point: Point, scope: Scope) -> Computed:
        value = scope.find(point)
        if value is not None:
            return value
        if self.buffers.has(point):
            return self.buffers.read(point, scope)
        expr = self.ctx.part.producer.get(point.name)
        if point.name in self.ctx.demand.operands:
            return scope.keep(point, self._joined(point, scope))
        value = self._load(point, scope) if expr is None else self._compute(point, expr, scope)
        self.buffers.fill(point, (value[0], value[1] | {self.ctx.home}), scope)
        return scope.keep(point, value)

    def _joined(self, point: Point, scope: Scope) -> Computed:
        """The result of a reduction whose nest is done, or a scan's element in this step."""
        ctx, name = self.ctx, point.name
        if ctx.part.producer[name].row.kind is OpKind.SCAN:
            value, needs = ctx.scanned(name), point.symbols | ctx.lane_symbol.symbols | {ROOT}
        else:
            value, needs = ctx.accumulator(name), self._needs(name)
            if name in self.rows_kept:
                return nodes.Lane(f"{name}_k", ctx.group_step), needs
        wide, dtype = ctx.accumulator_type(name), ctx.dtype_of(name)
        if wide is dtype:
            return value, needs
        cast = nodes.Math("cast", (value,), (wide,), dtype)
        return self._put(point, ctx.part.producer[name], cast, needs, scope)

    def _needs(self, name: str) -> Needs:
        """The symbols on which the result of a reduction depends."""
        ctx = self.ctx
        if name in ctx.carried:
            return ctx.slot.symbols | {ROOT}
        needs = frozenset([ctx.home]) | (ctx.lane_symbol.symbols if ctx.lane_is_kept else NONE)
        if set(ctx.scheduled.rows).isdisjoint(ctx.part.axes(name)):
            return needs
        return needs | ctx.group_step.symbols  # it stays in the loop over a group's rows

    # ---- positions

    def _place(self, at: Scalar, scope: Scope) -> tuple[Scalar, Needs]:
        """(A position or condition with looked-up elements as variables, its needs)."""
        needs, names = at.symbols, dict[Scalar, Scalar]()
        for element in sorted(at.elements, key=lambda element: element.sort_key):
            held = scope.find(element) or scope.keep(element, self._checked(element, scope))
            names[element] = symbol(str(held[0]), element.lo, element.hi)
            needs |= held[1]
        return at.with_elements(names), needs

    def _checked(self, element: Scalar, scope: Scope) -> Computed:
        """The variable with a looked-up element, which is checked where the variable is defined."""
        tensor, (condition, *index) = str(element.args[0]), element.parts
        operand, needs = self._get(Point(tensor, tuple(index), condition), scope)
        text, size = record_text(self._reader(element)), int(element.hi) + 1
        number = self.checks.setdefault((text, size), len(self.checks) + 1)
        value = nodes.CheckedIndex(operand, self.ctx.dtype_of(tensor), size, number)
        name = self.name(f"{tensor}_x", element)
        return scope.define(nodes.Let(name, None, value, comment=text), needs)

    def _reader(self, element: Scalar) -> OpRecord:
        """The op that reads at an element as the index; the first, if there are several."""
        part = self.ctx.part
        for expr in part.exprs:
            if expr.row.kind is OpKind.INDEX and element.args[0] in expr.inputs:
                sizes = part.tensors[str(expr.inputs[expr.row.source])].sizes
                if sizes[indexed_axis(expr, len(sizes))] == element.args[1]:
                    return expr
        raise ValueError(f"{element}: no op of the part reads at it")

    def _access(
        self, position: Scalar, condition: Scalar, scope: Scope
    ) -> tuple[tuple[Scalar, Scalar], Needs]:
        """`_place` for the position and the condition of an access, and the needs of both."""
        position, needs = self._place(position, scope)
        condition, more = self._place(condition, scope)
        return (position, condition), needs | more

    # ---- loads

    def _load(self, point: Point, scope: Scope) -> Computed:
        view = self.ctx.part.tensors[point.name]
        if view.by_value:
            return self._by_value(point, scope)
        position = offset(point.index, self.ctx.part.strides[view.name])
        if self.ctx.loads_vector(point, position):
            return self._load_vector(point, position, scope)
        pair = self._every_second(point, position, scope)
        if pair is not None:
            return pair
        ring = self._ring(point, position)
        if ring is not None:
            needs = ring.first.symbols | ring.at.symbols | ring.condition.symbols
            name = self.name(f"{point.name}_v", (ring.first, ring.at, ring.condition))
            return self._lane_of(scope.define(nodes.Let(name, ring.dtype, ring, ring.width), needs))
        (position, condition), needs = self._access(position, point.condition, scope)
        load = nodes.Load(view.name, position, view.dtype, 1, condition)
        return scope.define(nodes.Let(self.name(f"{view.name}_e", point), view.dtype, load), needs)

    def _by_value(self, point: Point, scope: Scope) -> Computed:
        """A number that is a kernel's argument. Narrow floats are passed as float."""
        view = self.ctx.part.tensors[point.name]
        if not view.dtype.is_narrow:
            return view.name, NONE
        value = nodes.Math("cast", (view.name,), (DataType.Float,), view.dtype)
        return scope.define(nodes.Let(self.name(f"{view.name}_e", point), view.dtype, value), NONE)

    def _lane_of(self, vector: Computed) -> Computed:
        """This lane's element of a vector."""
        lane = self.ctx.lane_symbol
        return nodes.Lane(str(vector[0]), None, lane), vector[1] | lane.symbols

    def _every_second(self, point: Point, position: Scalar, scope: Scope) -> Computed | None:
        """Every second element as one lane of a vector twice as long. The lanes of even and of odd
        elements share that vector's load.

        T0[16*i + 2*v + 1], v in [0, 8)  ->  lane 2*v + 1 of the 16 elements from 16*i on
        """
        ctx, lane, width = self.ctx, self.ctx.lane_symbol, 2 * self.ctx.width
        fits = partial(
            is_vector, condition=point.condition, lane=lane, width=width,
            itemsize=ctx.dtype_of(point.name).bytes, alignment=ctx.alignment(point.name),
        )
        starts = {place: position - lane * 2 - place for place in (0, 1)}
        place = next((at for at, start in starts.items() if fits(start + lane)), None)
        whole = ctx.width > 1 and ctx.loops.edge is None and ctx.elements(point.name) % width == 0
        if place is None or not whole:
            return None
        (base, condition), needs = self._access(starts[place], point.condition, scope)
        load = nodes.Load(point.name, base, ctx.dtype_of(point.name), width, condition)
        name = self.name(f"{point.name}_w", (base, condition))
        scope.define(nodes.Let(name, load.dtype, load, width), needs)
        return nodes.Lane(name, None, lane * 2 + place), needs | lane.symbols

    def _ring(self, point: Point, position: Scalar) -> nodes.RingLoad | None:
        """One load for all lanes, if they walk a row and may go on at its beginning.

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
        return nodes.RingLoad(point.name, first, start % size, size.value, dtype, width, condition)

    def _load_vector(self, point: Point, position: Scalar, scope: Scope) -> Computed:
        ctx, view = self.ctx, self.ctx.part.tensors[point.name]
        (base, condition), needs = self._access(position - ctx.lane_symbol, point.condition, scope)
        # Past the end of a row comes another row, which the lanes' work ignores.
        limit = None if ctx.loops.edge is None else ctx.elements(view.name)
        load = nodes.Load(
            view.name, base, view.dtype, ctx.width, condition, limit, whole_steps(ctx)[1]
        )
        if ctx.row_loops and self.buffers.nest == 0 and view.dtype.bytes <= PREFETCHED_BYTES:
            self._prefetch(view.name, base, scope.home(needs))
        kept = self.buffers.load_into(point, load, needs, scope)
        if kept is not None:
            return kept
        name = self.name(f"{view.name}_v", (base, condition))
        vector = scope.define(nodes.Let(name, view.dtype, load, ctx.width), needs)
        self.buffers.fill(point, vector, scope, ctx.width)
        return self._lane_of(vector)

    def _prefetch(self, name: str, position: Scalar, scope: Scope) -> None:
        """Prefetches the same vector of the block's next row."""
        following, condition = self.ctx.next_row(position)
        key = ("prefetch", name, following)
        if following is not position and scope.find(key) is None:
            scope.put(nodes.Prefetch(name, following, condition))
            scope.values[key] = (name, position.symbols)

    # ---- math

    def _compute(self, point: Point, expr: OpRecord, scope: Scope) -> Computed:
        kind = expr.row.kind
        if kind is OpKind.INDEX:
            # The index is checked even if the place does not matter, as in an expanded source.
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
        self, point: Point, expr: OpRecord, value: nodes.Value, needs: Needs, scope: Scope
    ) -> Computed:
        """Defines a variable for the value of a point. expr: for the comment."""
        name, dtype = self.name(self.ctx.local(point.name), point), self.ctx.dtype_of(point.name)
        return scope.define(nodes.Let(name, dtype, value, comment=sizeless_text(expr)), needs)

    def _operands(self, point: Point, expr: OpRecord, scope: Scope) -> tuple[Operands, Needs]:
        reads = iter(self.ctx.demand.reads[point])
        values = [
            (o, NONE) if isinstance(o, Literal) else self._get(next(reads), scope)
            for o in expr.inputs
        ]
        return tuple(f[0] for f in values), NONE.union(*(f[1] for f in values))

    def _math(self, point: Point, expr: OpRecord, scope: Scope) -> Computed:
        operands, needs = self._operands(point, expr, scope)
        dtype = self.ctx.dtype_of(point.name)
        types = self.ctx.operand_types(expr, dtype)
        exact = nodes.Math(expr.op, operands, types, dtype)
        value: nodes.Value = exact
        if expr.op in DIVISIONS and is_count(expr, types):
            value, by = self._by_count(point, expr, operands[0], scope)
            expr = replace(expr, inputs=(expr.inputs[0], by))
        elif short := self.ctx.short_form(expr, dtype):
            value = _short(short, exact)
        elif expr.op in DIVISIONS and self._shares_divisor(point, expr, (*types, dtype)):
            value = nodes.Call("quotient", (operands[0], self._shared_divisor(point, scope)))
        return self._put(point, expr, value, needs, scope)

    def _shares_divisor(self, point: Point, expr: OpRecord, types: Types) -> bool:
        """True on a GPU for element / row value in Float, as in softmax; with the option repeatable
        for every a / b. A GPU's division has some ten instructions and a branch.
        """
        ctx, (dividend, divisor) = self.ctx, expr.inputs
        if ctx.is_cpu or isinstance(divisor, Literal) or set(types) != {DataType.Float}:
            return False
        if ctx.repeatable:  # so the bits do not depend on where the divisor is computed
            return not isinstance(dividend, Literal)
        return ctx.is_full(point) and not ctx.is_full(ctx.demand.reads[point][-1])

    def _shared_divisor(self, point: Point, scope: Scope) -> str:
        """The variable with a row value's reciprocal and scale, computed once a row.

        T8 = T6 / T7, T7 a row value  ->  T7_d = divisor(T7);  T8 = quotient(T6, T7_d)
        """
        divisor = self.ctx.demand.reads[point][-1]
        operand, needs = self._get(divisor, scope)
        name = self.name(f"{self.ctx.local(divisor.name)}_d", divisor)
        value = nodes.Call("divisor", (operand,))
        scope.define(nodes.Let(name, DataType.Float, value, 2), needs)
        return name

    def _by_count(
        self, point: Point, expr: OpRecord, x: nodes.Operand, scope: Scope
    ) -> tuple[nodes.Math | nodes.Call, str]:
        """(x divided by a count that is a kernel's argument, the name of the divisor's variable).

        A mean of 1024 rows:  T9 = T8 / 1024.0  ->  T9_by = (float) size0;  T9 = T8 / T9_by
        on a GPU                       ->  T9_by = by_count(size0);  T9 = over_count(T8, T9_by)

        A GPU multiplies in Float (`quotient` if it may be short): a division has a call, because of
        which the rows of a norm's backward would not stay in registers. Otherwise, if the count is
        a power of two and each element is divided, elements are multiplied by its reciprocal.
        """
        literal, dtype = expr.inputs[-1], self.ctx.dtype_of(point.name)
        assert isinstance(literal, Literal) and not isinstance(literal.value, complex)
        count = int(literal.value)
        inverts = count.bit_count() == 1 and self.ctx.is_full(point)
        name = self.name(f"{self.ctx.local(point.name)}_by", (literal, inverts))
        plain = f"{name}_n"
        size: nodes.Value = nodes.IndexValue(const(sized(name, count)), dtype)
        if not self.ctx.is_cpu and dtype is DataType.Float:
            by, over = ("divisor", "quotient") if expr.attr("short") else ("by_count", "over_count")
            scope.define(nodes.Let(plain, dtype, size), NONE)
            scope.define(nodes.Let(name, dtype, nodes.Call(by, (plain,)), 2), NONE)
            return nodes.Call(over, (x, name)), name
        types = (dtype, dtype)
        if inverts:
            scope.define(nodes.Let(plain, dtype, size), NONE)
            size = nodes.Math("truediv", (Literal.of(1.0), plain), types, dtype)
        scope.define(nodes.Let(name, dtype, size), NONE)
        return nodes.Math("mul" if inverts else "truediv", (x, name), types, dtype), name

    def _factory(self, point: Point, expr: OpRecord, scope: Scope) -> Computed:
        dtype = self.ctx.dtype_of(point.name)
        if expr.op == "size":
            extent = self.ctx.part.tensors[str(expr.inputs[0])].shape[int(expr.attr("dim"))]  # type: ignore[arg-type]
            return self._put(point, expr, nodes.IndexValue(extent, dtype), NONE, scope)
        operands, needs = self._operands(point, expr, scope)
        if expr.op == "full":
            source_type = self.ctx.dtype_of(expr.inputs[0])
            value: nodes.Value = nodes.Math("cast", operands[:1], (source_type,), dtype)
            return self._put(point, expr, value, needs, scope)
        index, more = self._place(point.index[0], scope)
        start, step = (o.value if isinstance(o, Literal) else None for o in operands)
        if dtype.is_int and isinstance(start, int) and isinstance(step, int):
            last = abs(start) + abs(step) * int(index.hi)
            self.largest_index = max(self.largest_index, last)
            value = nodes.IndexValue(index * step + start, dtype)
        else:
            value = self._iota(point, index, operands, needs | more, scope)
        return self._put(point, expr, value, needs | more, scope)

    def _iota(
        self, point: Point, index: Scalar, operands: Operands, needs: Needs, scope: Scope
    ) -> nodes.Math:
        """start + step * index, in double, as torch.arange does."""
        (start, step), types = operands, (DOUBLE, DOUBLE)
        at, scaled, moved = (
            self.name(f"{point.name}_{word}", point) for word in ("at", "by", "to")
        )
        steps: tuple[tuple[str, nodes.Value], ...] = (
            (at, nodes.IndexValue(index, DOUBLE)),
            (scaled, nodes.Math("mul", (at, step), types, DOUBLE)),
            (moved, nodes.Math("add", (scaled, start), types, DOUBLE)),
        )
        for name, value in steps:
            scope.define(nodes.Let(name, DOUBLE, value), needs)
        return nodes.Math("cast", (moved,), (DOUBLE,), self.ctx.dtype_of(point.name))

    def _random(self, point: Point, expr: OpRecord, scope: Scope) -> Computed:
        view = self.ctx.part.tensors[point.name]
        operands, needs = self._operands(point, expr, scope)
        position, words = linear(point.index, view.shape), None
        if self.ctx.is_cpu and expr.op == "uniform" and not position.elements:
            words = self._words(point, position, operands[2:], needs, scope)
        position, more = self._place(position, scope)
        value = nodes.Random(expr.op, position, operands, view.dtype, words)
        return self._put(point, expr, value, needs | more, scope)

    def _words(
        self, point: Point, position: Scalar, stream: Operands, needs: Needs, scope: Scope
    ) -> nodes.Lane | None:
        """This lane's element of an array that is made before the lane loop, if lanes are adjacent.

        A simd loop would compute all four words of a group for each lane. CUDA's unrolled loop does
        not, because the calls for one group are equal.
        """
        view, lane = self.ctx.part.tensors[point.name], self.ctx.lane_symbol
        guarded = [g for g in self.ctx.loops.guards if lane.symbols & g.value.symbols]
        first = position.substitute({str(g.variable): g.value for g in guarded}) - lane
        count = min(self.ctx.lanes, int(prod(view.sizes)))
        aside = lane.symbols and not lane.symbols & (first.symbols | needs)
        # With a condition, as in a pad, the position may lie outside the tensor.
        if not aside or count > MOST_WORDS or not point.condition.is_const:
            return None
        name = self.name(f"{point.name}_w", point)
        scope.define(nodes.Words(name, stream, first, count, view.dtype), needs | first.symbols)
        return nodes.Lane(name, lane + first % view.dtype.random_share)

    def _move(self, point: Point, expr: OpRecord, scope: Scope) -> Computed:
        """A moved element is the element itself. pad and cat choose by index."""
        reads = self.ctx.demand.reads[point]
        dtype = self.ctx.dtype_of(point.name)
        if expr.op not in ("pad", "cat"):
            return self._get(reads[0], scope)
        values = [self._get(read, scope) for read in reads]
        where = [a.condition for a in accesses(expr, point.index, self.ctx.part.tensors)]
        if expr.op == "pad":
            value = Literal.of(expr.attr("value") or 0)  # type: ignore[arg-type]
            values.append((value, NONE))
            where.append(const(1))
        result, needs = values[-1]
        for (operand, symbols), when in zip(values[-2::-1], where[-2::-1], strict=True):
            condition, more = self._place(when, scope)
            needs |= symbols | more
            name = self.name(self.ctx.local(point.name), (point, condition))
            choose = nodes.Choose(condition, operand, result, dtype)
            scope.define(nodes.Let(name, dtype, choose, comment=sizeless_text(expr)), needs)
            result = name
        return result, needs


def _short(function: str, exact: nodes.Math) -> nodes.Math | nodes.Call:
    """The less exact form of an op.

    exp(x)  ->  short_exp(x);    1 / x  ->  approximate_reciprocal(x);    x / 4.0  ->  x * 0.25
    """
    if exact.op != "div":
        return nodes.Call(function, exact.operands)
    dividend, divisor = exact.operands
    if not isinstance(divisor, Literal):
        return nodes.Call(function, (divisor,)) if dividend == Literal.of(1.0) else exact
    reciprocal = 1.0 / divisor.value if divisor.value else inf
    if not NORMAL[0] <= abs(reciprocal) < NORMAL[1]:
        return exact
    return replace(exact, op="mul", operands=(dividend, Literal.of(reciprocal)))


def is_count(expr: OpRecord, types: Types) -> bool:
    """True for x / N if N may be the number of added elements, as in a mean."""
    by = expr.inputs[-1]
    if not isinstance(by, Literal) or set(types) - {DataType.Float, DataType.Double}:
        return False
    value = by.value
    return not isinstance(value, complex) and 2 < value <= LARGEST_COUNT and value % 1 == 0
