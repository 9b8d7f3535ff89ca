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

from thunder_fuser.analysis.index_map import Point, accesses, linear
from thunder_fuser.analysis.part import Part, offset
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import Literal, OpRecord, names_of, record_text, sizeless_text
from thunder_fuser.ir.rules.indexed import indexed_size
from thunder_fuser.ir.scalar import Scalar, const, symbol
from thunder_fuser.ir.size_symbols import sized
from thunder_fuser.lower import buffers
from thunder_fuser.lower import kernel as nodes
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.guards import whole_steps
from thunder_fuser.lower.scope import NONE, ROOT, Computed, Needs, Scope
from thunder_fuser.lower.state import KernelState
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
DTypes = tuple[DataType, ...]


# ---- asking


def get(state: KernelState, point: Point, scope: Scope) -> nodes.Operand:
    """The value of a point, made where it is first needed."""
    # Not by recursion: a chain of hundreds of operations is too deep for Python's stack.
    for missing in _missing(state, point, scope):
        _make(state, missing, scope)
    return _held(state, point, scope)[0]


def put_all(state: KernelState, points: Iterable[Point], scope: Scope) -> None:
    """Makes the values of points, which later work finds."""
    for point in points:
        get(state, point, scope)


def _missing(state: KernelState, point: Point, scope: Scope) -> list[Point]:
    """The points that must be made for one point, each after those that it reads."""
    order = dict[Point, None]()
    stack = [(point, False)]
    while stack:
        at, is_ready = stack.pop()
        if is_ready:
            order[at] = None
        elif at not in order and scope.find(at) is None and not buffers.has(state, at):
            stack.append((at, True))
            stack.extend((read, False) for read in reversed(_reads(state.ctx, at)))
    return list(order)


def _reads(ctx: Context, point: Point) -> list[Point]:
    """The points that a point reads: elements in the position of its access, then its operands."""
    if point.name in ctx.demand.operands:
        return []
    return [*map(point_of, ctx.lookups(point)), *ctx.demand.reads.get(point, ())]


def _make(state: KernelState, point: Point, scope: Scope) -> None:
    """Makes the value of a point whose operands are made."""
    ctx, expr = state.ctx, state.ctx.part.producer.get(point.name)
    if point.name in ctx.demand.operands:
        scope.keep(point, _joined(state, point, scope))
        return
    value = _load(state, point, scope) if expr is None else _compute(state, point, expr, scope)
    buffers.fill(state, point, (value[0], value[1] | {ctx.home}), scope)
    scope.keep(point, value)


def _held(state: KernelState, point: Point, scope: Scope) -> Computed:
    """A value that is made: in a block around, or in a buffer that an earlier nest has filled."""
    return scope.find(point) or buffers.read(state, point, scope)


def _joined(state: KernelState, point: Point, scope: Scope) -> Computed:
    """The result of a reduction whose nest is done, or a scan's element in this step."""
    ctx, name = state.ctx, point.name
    if ctx.part.producer[name].row.kind is OpKind.SCAN:
        value, needs = ctx.scanned(name), point.symbols | ctx.lane_symbol.symbols | {ROOT}
    else:
        value, needs = ctx.accumulator(name), ctx.needs(name)
        if name in state.rows_kept:
            return nodes.Lane(f"{name}_k", ctx.group_step), needs
    wide, dtype = ctx.accumulator_type(name), ctx.dtype_of(name)
    if wide is dtype:
        return value, needs
    cast = nodes.Math("cast", (value,), (wide,), dtype)
    return scope.define(_let(state, point, ctx.part.producer[name], cast), needs)


# ---- positions


def placed(state: KernelState, scope: Scope, *places: Scalar) -> tuple[list[Scalar], Needs]:
    """(Positions and conditions with looked-up elements as variables, their needs)."""
    needs, names = NONE.union(*(at.symbols for at in places)), dict[Scalar, Scalar]()
    for element in [e for at in places for e in sorted(at.elements, key=lambda e: e.sort_key)]:
        held = scope.find(element) or scope.keep(element, _checked(state, element, scope))
        names[element] = symbol(str(held[0]), element.lo, element.hi)
        needs |= held[1]
    return [at.with_elements(names) for at in places], needs


def _checked(state: KernelState, element: Scalar, scope: Scope) -> Computed:
    """The variable with a looked-up element, which is checked where the variable is defined."""
    point = point_of(element)
    operand, needs = _held(state, point, scope)
    text, size = record_text(_reader(state.ctx.part, element)), int(element.hi) + 1
    number = state.checks.setdefault((text, size), len(state.checks) + 1)
    value = nodes.CheckedIndex(operand, state.ctx.dtype_of(point.name), size, number)
    name = state.name(f"{point.name}_x", element)
    return scope.define(nodes.Let(name, None, value, comment=text), needs)


def point_of(element: Scalar) -> Point:
    """The point of an index tensor that holds an element."""
    condition, *index = element.parts
    return Point(str(element.args[0]), tuple(index), condition)


def _reader(part: Part, element: Scalar) -> OpRecord:
    """The op that reads at an element as the index; the first, if there are several."""
    for expr in part.exprs:
        if expr.row.kind is OpKind.INDEX and element.args[0] in expr.inputs:
            source = part.tensors[str(expr.inputs[expr.row.source])]
            if indexed_size(expr, source) == element.args[1]:
                return expr
    raise ValueError(f"{element}: no op of the part reads at it")


# ---- loads


def _load(state: KernelState, point: Point, scope: Scope) -> Computed:
    view = state.ctx.part.tensors[point.name]
    if view.by_value:  # an argument of the kernel; narrow floats are passed as float
        if not view.dtype.is_narrow:
            return view.name, NONE
        cast = nodes.Math("cast", (view.name,), (DataType.Float,), view.dtype)
        return scope.define(nodes.Let(state.name(f"{view.name}_e", point), view.dtype, cast), NONE)
    position = offset(point.index, state.ctx.part.strides[view.name])
    if state.ctx.loads_vector(point, position):
        return _load_vector(state, point, position, scope)
    pair = _every_second(state, point, position, scope)
    if pair is not None:
        return pair
    ring = _ring(state.ctx, point, position)
    if ring is not None:
        needs = ring.first.symbols | ring.at.symbols | ring.condition.symbols
        name = state.name(f"{point.name}_v", (ring.first, ring.at, ring.condition))
        vector = scope.define(nodes.Let(name, ring.dtype, ring, ring.width), needs)
        return _lane_of(state.ctx, vector)
    (position, condition), needs = placed(state, scope, position, point.condition)
    load = nodes.Load(view.name, position, view.dtype, 1, condition)
    return scope.define(nodes.Let(state.name(f"{view.name}_e", point), view.dtype, load), needs)


def _lane_of(ctx: Context, vector: Computed) -> Computed:
    """This lane's element of a vector."""
    lane = ctx.lane_symbol
    return nodes.Lane(str(vector[0]), None, lane), vector[1] | lane.symbols


def _every_second(
    state: KernelState, point: Point, position: Scalar, scope: Scope
) -> Computed | None:
    """Every second element as one lane of a vector twice as long. The lanes of even and of odd
    elements share that vector's load.

    T0[16*i + 2*v + 1], v in [0, 8)  ->  lane 2*v + 1 of the 16 elements from 16*i on
    """
    ctx, lane, width = state.ctx, state.ctx.lane_symbol, 2 * state.ctx.width
    fits = partial(
        is_vector, condition=point.condition, lane=lane, width=width,
        itemsize=ctx.dtype_of(point.name).bytes, alignment=ctx.alignment(point.name),
    )
    starts = {place: position - lane * 2 - place for place in (0, 1)}
    place = next((at for at, start in starts.items() if fits(start + lane)), None)
    whole = ctx.width > 1 and ctx.loops.edge is None and ctx.part.elements(point.name) % width == 0
    if place is None or not whole:
        return None
    (base, condition), needs = placed(state, scope, starts[place], point.condition)
    load = nodes.Load(point.name, base, ctx.dtype_of(point.name), width, condition)
    name = state.name(f"{point.name}_w", (base, condition))
    scope.define(nodes.Let(name, load.dtype, load, width), needs)
    return nodes.Lane(name, None, lane * 2 + place), needs | lane.symbols


def _ring(ctx: Context, point: Point, position: Scalar) -> nodes.RingLoad | None:
    """One load for all lanes, if they walk a row and may go on at its beginning.

    T1[(8*i + v) % 4095]  ->  8 elements from (8*i) % 4095 on
    """
    lane, width, condition = ctx.lane_symbol, ctx.width, point.condition
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
    first, dtype = position - moving[0][0], ctx.dtype_of(point.name)
    return nodes.RingLoad(point.name, first, start % size, size.value, dtype, width, condition)


def _load_vector(state: KernelState, point: Point, position: Scalar, scope: Scope) -> Computed:
    ctx, view = state.ctx, state.ctx.part.tensors[point.name]
    (base, condition), needs = placed(state, scope, position - ctx.lane_symbol, point.condition)
    # Past the end of a row comes another row, which the lanes' work ignores.
    limit = None if ctx.loops.edge is None else ctx.part.elements(view.name)
    load = nodes.Load(
        view.name, base, view.dtype, ctx.width, condition, limit, whole_steps(ctx)[1]
    )
    if ctx.row_loops and state.nest == 0 and view.dtype.bytes <= PREFETCHED_BYTES:
        _prefetch(state.ctx, view.name, base, scope.home(needs))
    kept = buffers.load_into(state, point, load, needs, scope)
    if kept is not None:
        return kept
    name = state.name(f"{view.name}_v", (base, condition))
    vector = scope.define(nodes.Let(name, view.dtype, load, ctx.width), needs)
    buffers.fill(state, point, vector, scope, ctx.width)
    return _lane_of(state.ctx, vector)


def _prefetch(ctx: Context, name: str, position: Scalar, scope: Scope) -> None:
    """Prefetches the same vector of the block's next row."""
    following, condition = ctx.next_row(position)
    key = ("prefetch", name, following)
    if following is not position and scope.find(key) is None:
        scope.put(nodes.Prefetch(name, following, condition))
        scope.values[key] = (name, position.symbols)


# ---- math


def _compute(state: KernelState, point: Point, expr: OpRecord, scope: Scope) -> Computed:
    kind = expr.row.kind
    if kind is OpKind.INDEX:
        # The index is checked even if the place does not matter, as in an expanded source.
        placed(state, scope, *state.ctx.lookups(point))
        return _held(state, state.ctx.demand.reads[point][-1], scope)
    if kind is OpKind.POINTWISE:
        return _math(state, point, expr, scope)
    if kind is OpKind.FACTORY or kind is OpKind.SCALAR:
        return _factory(state, point, expr, scope)
    if kind is OpKind.RANDOM:
        return _random(state, point, expr, scope)
    return _move(state, point, expr, scope)


def _let(state: KernelState, point: Point, expr: OpRecord, value: nodes.Value) -> nodes.Let:
    """A variable for the value of a point. expr: for the comment."""
    name, dtype = state.name(state.ctx.local(point.name), point), state.ctx.dtype_of(point.name)
    return nodes.Let(name, dtype, value, comment=sizeless_text(expr))


def _operands(
    state: KernelState, point: Point, expr: OpRecord, scope: Scope
) -> tuple[Operands, Needs]:
    reads = iter(state.ctx.demand.reads[point])
    values = [
        (o, NONE) if isinstance(o, Literal) else _held(state, next(reads), scope)
        for o in expr.inputs
    ]
    return tuple(f[0] for f in values), NONE.union(*(f[1] for f in values))


def _math(state: KernelState, point: Point, expr: OpRecord, scope: Scope) -> Computed:
    operands, needs = _operands(state, point, expr, scope)
    dtype = state.ctx.dtype_of(point.name)
    types = state.ctx.operand_types(expr, dtype)
    exact = nodes.Math(expr.op, operands, types, dtype)
    value: nodes.Value = exact
    if expr.op in DIVISIONS and is_count(expr, types):
        value, by = _by_count(state, point, expr, operands[0], scope)
        expr = replace(expr, inputs=(expr.inputs[0], by))
    elif short := state.ctx.short_form(expr, dtype):
        value = _short(short, exact)
    elif expr.op in DIVISIONS and _shares_divisor(state.ctx, point, expr, (*types, dtype)):
        value = nodes.Call("quotient", (operands[0], _shared_divisor(state, point, scope)))
    return scope.define(_let(state, point, expr, value), needs)


def _shares_divisor(ctx: Context, point: Point, expr: OpRecord, types: DTypes) -> bool:
    """True on a GPU for element / row value in Float, as in softmax; with the option repeatable
    for every a / b. A GPU's division has some ten instructions and a branch.
    """
    dividend, divisor = expr.inputs
    if ctx.is_cpu or isinstance(divisor, Literal) or set(types) != {DataType.Float}:
        return False
    shares = ctx.is_full(point) and not ctx.is_full(ctx.demand.reads[point][-1])
    if ctx.repeatable:  # so the bits do not depend on where the divisor is computed
        shares = not isinstance(dividend, Literal)
    # A reader may drop the fraction: one unit less than 3.0 would be 2.
    readers = (e for e in ctx.part.exprs if expr.outputs[0] in names_of(e))
    return shares and not any(
        e.op in ("ceil", "floor", "trunc")
        or (e.op == "cast" and ctx.dtype_of(e.outputs[0]).is_int) for e in readers
    )  # fmt: skip


def _shared_divisor(state: KernelState, point: Point, scope: Scope) -> str:
    """The variable with a row value's reciprocal and scale, computed once a row.

    T8 = T6 / T7, T7 a row value  ->  T7_d = divisor(T7);  T8 = quotient(T6, T7_d)
    """
    divisor = state.ctx.demand.reads[point][-1]
    operand, needs = _held(state, divisor, scope)
    name = state.name(f"{state.ctx.local(divisor.name)}_d", divisor)
    value = nodes.Call("divisor", (operand,))
    scope.define(nodes.Let(name, DataType.Float, value, 2), needs)
    return name


def _by_count(
    state: KernelState, point: Point, expr: OpRecord, x: nodes.Operand, scope: Scope
) -> tuple[nodes.Math | nodes.Call, str]:
    """(x divided by a count that is a kernel's argument, the name of the divisor's variable).

    A mean of 1024 rows:  T9 = T8 / 1024.0  ->  T9_by = (float) size0;  T9 = T8 / T9_by
    on a GPU                       ->  T9_by = by_count(size0);  T9 = over_count(T8, T9_by)

    A GPU multiplies in Float (`quotient` if it may be short): a division has a call, because of
    which the rows of a norm's backward would not stay in registers. Otherwise, if the count is
    a power of two and each element is divided, elements are multiplied by its reciprocal.
    """
    literal, dtype = expr.inputs[-1], state.ctx.dtype_of(point.name)
    assert isinstance(literal, Literal) and not isinstance(literal.value, complex)
    count = int(literal.value)
    inverts = count.bit_count() == 1 and state.ctx.is_full(point)
    name = state.name(f"{state.ctx.local(point.name)}_by", (literal, inverts))
    plain = f"{name}_n"
    size: nodes.Value = nodes.IndexValue(const(sized(name, count)), dtype)
    if not state.ctx.is_cpu and dtype is DataType.Float:
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


def _factory(state: KernelState, point: Point, expr: OpRecord, scope: Scope) -> Computed:
    dtype = state.ctx.dtype_of(point.name)
    if expr.op == "size":
        extent = state.ctx.part.tensors[str(expr.inputs[0])].shape[int(expr.attr("dim"))]  # type: ignore[arg-type]
        return scope.define(_let(state, point, expr, nodes.IndexValue(extent, dtype)), NONE)
    operands, needs = _operands(state, point, expr, scope)
    if expr.op == "full":
        source_type = state.ctx.dtype_of(expr.inputs[0])
        value: nodes.Value = nodes.Math("cast", operands[:1], (source_type,), dtype)
        return scope.define(_let(state, point, expr, value), needs)
    (index,), more = placed(state, scope, point.index[0])
    start, stride = (o.value if isinstance(o, Literal) else None for o in operands)
    if dtype.is_int and isinstance(start, int) and isinstance(stride, int):
        last = abs(start) + abs(stride) * int(index.hi)
        state.largest_index = max(state.largest_index, last)
        value = nodes.IndexValue(index * stride + start, dtype)
    else:
        steps, value = _iota(state, point, index, operands)
        for step in steps:
            scope.define(step, needs | more)
    return scope.define(_let(state, point, expr, value), needs | more)


def _iota(
    state: KernelState, point: Point, index: Scalar, operands: Operands
) -> tuple[list[nodes.Let], nodes.Math]:
    """start + step * index, in double, as torch.arange does: its steps, and the result's cast."""
    (start, step), types = operands, (DOUBLE, DOUBLE)
    at, scaled, moved = (state.name(f"{point.name}_{word}", point) for word in ("at", "by", "to"))
    steps = [
        nodes.Let(at, DOUBLE, nodes.IndexValue(index, DOUBLE)),
        nodes.Let(scaled, DOUBLE, nodes.Math("mul", (at, step), types, DOUBLE)),
        nodes.Let(moved, DOUBLE, nodes.Math("add", (scaled, start), types, DOUBLE)),
    ]
    return steps, nodes.Math("cast", (moved,), (DOUBLE,), state.ctx.dtype_of(point.name))


def _random(state: KernelState, point: Point, expr: OpRecord, scope: Scope) -> Computed:
    view = state.ctx.part.tensors[point.name]
    operands, needs = _operands(state, point, expr, scope)
    position, element = linear(point.index, view.shape), None
    words = _words(state, point, position, operands[2:], needs) if expr.op == "uniform" else None
    if words is not None:
        scope.define(words, needs | words.first.symbols)
        at = state.ctx.lane_symbol + words.first % view.dtype.random_share
        element = nodes.Lane(words.name, at)
    (position,), more = placed(state, scope, position)
    value = nodes.Random(expr.op, position, operands, view.dtype, element)
    return scope.define(_let(state, point, expr, value), needs | more)


def _words(
    state: KernelState, point: Point, position: Scalar, stream: Operands, needs: Needs
) -> nodes.Words | None:
    """An array that is made on a CPU before the lane loop, if lanes are adjacent.

    A simd loop would compute all four words of a group for each lane. CUDA's unrolled loop does
    not, because the calls for one group are equal.
    """
    ctx, view, lane = state.ctx, state.ctx.part.tensors[point.name], state.ctx.lane_symbol
    guarded = [g for g in ctx.loops.guards if lane.symbols & g.value.symbols]
    first = position.substitute({str(g.variable): g.value for g in guarded}) - lane
    count = min(ctx.lanes, int(prod(view.sizes)))
    aside = lane.symbols and not lane.symbols & (first.symbols | needs)
    # With a condition, as in a pad, the position may lie outside the tensor.
    plain = point.condition.is_const and not position.elements
    if not ctx.is_cpu or not aside or count > MOST_WORDS or not plain:
        return None
    return nodes.Words(state.name(f"{point.name}_w", point), stream, first, count, view.dtype)


def _move(state: KernelState, point: Point, expr: OpRecord, scope: Scope) -> Computed:
    """A moved element is the element itself. pad and cat choose by index."""
    reads = state.ctx.demand.reads[point]
    dtype = state.ctx.dtype_of(point.name)
    if expr.op not in ("pad", "cat"):
        return _held(state, reads[0], scope)
    values = [_held(state, read, scope) for read in reads]
    where = [a.condition for a in accesses(expr, point.index, state.ctx.part.tensors)]
    if expr.op == "pad":
        value = Literal.of(expr.attr("value") or 0)  # type: ignore[arg-type]
        values.append((value, NONE))
        where.append(const(1))
    result, needs = values[-1]
    for (operand, symbols), when in zip(values[-2::-1], where[-2::-1], strict=True):
        (condition,), more = placed(state, scope, when)
        needs |= symbols | more
        name = state.name(state.ctx.local(point.name), (point, condition, result))
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


def is_count(expr: OpRecord, types: DTypes) -> bool:
    """True for x / N if N may be the number of added elements, as in a mean."""
    by = expr.inputs[-1]
    if not isinstance(by, Literal) or set(types) - {DataType.Float, DataType.Double}:
        return False
    value = by.value
    return not isinstance(value, complex) and 2 < value <= LARGEST_COUNT and value % 1 == 0
