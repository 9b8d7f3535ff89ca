# SPDX-License-Identifier: Apache-2.0
"""Facts that lowering needs before it writes statements: loops, their variables, the points."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from thunder_fuser.analysis.index_map import Point, index_element
from thunder_fuser.analysis.part import Demand, Part, demand_of, offset
from thunder_fuser.base.threads import cached_property
from thunder_fuser.ir.domain import Domain, IterDomain, ParallelType
from thunder_fuser.ir.dtypes import DataType, of_number
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.op_table import SCANS
from thunder_fuser.ir.record import Literal, Operand, OpRecord, names_of
from thunder_fuser.ir.rules.type_rules import ValueType, types_of
from thunder_fuser.ir.scalar import Scalar, conjunction, const
from thunder_fuser.lower.kernel import Lane
from thunder_fuser.lower.scope import NONE, ROOT, ROW, Needs
from thunder_fuser.lower.size_arguments import loops_of
from thunder_fuser.schedule.axes import MAX_BYTES, is_vector
from thunder_fuser.schedule.loop_index import loop_index
from thunder_fuser.schedule.row_shape import rounds
from thunder_fuser.schedule.scheduled import ScheduledFusion


class Context:
    """Facts of one kernel, derived from its schedule.

    Its loops, outermost first:
      root_loops: over blocks and threads;
      row_loops: over the rows of a block or cluster, around all nests;
      group_loops: over the rows of a block's group, around each nest;
      nest_loops: inside a nest; the last may be the lane, which is the vector or simd loop.
    width: elements of one vector access; 1 on the CPU, whose compiler makes the vectors.
    lane_is_kept: whether the lanes walk kept axes; then every lane has its own accumulator.
    step, steps: the number of the current iteration of the loops around the lanes, including the
      group's, and their total number. group_step: the same for the group's loops.
    slots, slot: the size of an array with an element for each lane of each step, and the index of
      the current element.
    home: a pseudo symbol. A value that depends on it stays inside the loop over rows.
    threads: of a block, as (x, y). cluster: the number of its blocks.
    demand: all points; or those that are `moved`, if a phase of the kernel does only that.
    """

    def __init__(self, scheduled: ScheduledFusion, moved: Iterable[Point] = ()) -> None:
        self.scheduled, self.part = scheduled, scheduled.part
        self.carried = scheduled.carried or scheduled.column_sums
        self.is_cpu, self.repeatable = scheduled.target.is_cpu, scheduled.options.repeatable
        self.loops = loop_index(scheduled.axes, scheduled.transforms, self.part.chunked)
        settled = self.loops.settled if self.loops.runs else None
        self.demand = demand_of(self.part, self.loops.index, settled)
        if points := [self.at_loops(point) for point in moved]:
            level, results = dict.fromkeys(points, 0), {point.name: point for point in points}
            self.demand = Demand({}, level, tuple(level), results, {})
        self.home = ROW if scheduled.carried else ROOT
        self._split_loops(loops_of(scheduled))
        self.threads = self.extent(ParallelType.TIDX), self.extent(ParallelType.TIDY)
        self.cluster = self.extent(ParallelType.CLUSTER)
        has_short = not self.is_cpu and not self.repeatable
        self.short_exps = short_exps(self.part) if has_short else frozenset[str]()

    def _split_loops(self, loops: Domain) -> None:
        """Sorts the loops by what they enclose. Nests have no loops of extent 1."""
        self.root_loops = [a for a in loops if a.parallel.is_block or a.parallel.is_thread]
        of_thread = [a for a in loops if a not in self.root_loops]
        walked = [a for a in of_thread if not self.loops.loops[a.name].is_const]
        kept = [a for a in walked if not a.is_reduction]
        self.row_loops = kept if self.scheduled.carried else []
        self.group_loops = kept if self.scheduled.rows else []
        around = [*self.row_loops, *self.group_loops]
        self.nest_loops = [a for a in walked if a not in around]
        lanes = [a for a in self.nest_loops if a.parallel is ParallelType.VECTORIZE]
        self.lane = lanes[0] if lanes else None
        self.lanes = int(self.lane.extent.value) if self.lane else 1
        self.width = 1 if self.is_cpu else self.lanes
        self.lane_symbol = self.loops.loops[self.lane.name] if self.lane else const(0)
        collects = bool(self.part.reductions or self.part.scans)
        self.lane_is_kept = self.lane is not None and not self.lane.is_reduction and collects
        step_loops = [a for a in (*self.group_loops, *self.nest_loops) if a is not self.lane]
        self.steps = prod(int(axis.extent.value) for axis in step_loops)
        self.slots = self.steps * self.lanes
        self.step, self.group_step = self.number(step_loops), self.number(self.group_loops)
        self.slot = self.step * self.lanes + self.lane_symbol
        of_row = step_loops[len(self.group_loops) :]
        self.columns = prod(int(axis.extent.value) for axis in of_row) * self.lanes
        self.column = self.number(of_row) * self.lanes + self.lane_symbol

    # ---- loops

    def extent(self, parallel: ParallelType) -> int:
        """The extent of the loop over blocks or threads with this parallel type; 1 without one."""
        return next((int(a.extent.value) for a in self.root_loops if a.parallel is parallel), 1)

    def number(self, loops: list[IterDomain]) -> Scalar:
        """The number of the current iteration of these loops, the outermost first."""
        number = const(0)
        for axis in loops:
            number = number * axis.extent + self.loops.loops[axis.name]
        return number

    def parallel_of(self, axis: IterDomain) -> ParallelType:
        """How a loop runs. It is unrolled if it indexes arrays, so that they are in registers."""
        arrays = self.scheduled.params.memory == "registers" and not self.is_cpu
        return ParallelType.UNROLL if arrays else axis.parallel

    def first_of(self, loops: Iterable[IterDomain]) -> Scalar:
        """True for the first of the blocks and threads along these loops."""
        return conjunction(self.loops.loops[axis.name].lt(1) for axis in loops)

    def first_thread(self, *, of_cluster: bool = False) -> Scalar:
        """True for the first of the threads that share a kept position, in a block or a cluster."""
        return self.first_of(
            a for a in self.root_loops if a.is_reduction
            and (a.parallel.is_thread or (of_cluster and a.parallel is ParallelType.CLUSTER))
        )  # fmt: skip

    def next_row(self, position: Scalar) -> tuple[Scalar, Scalar]:
        """The position in the block's next row, and the condition that there is a next row."""
        (row,) = self.row_loops
        variable = self.loops.loops[row.name]
        step = {str(variable): variable + 1}
        guards = [g for g in self.loops.guards if variable.symbols & g.value.symbols]
        plain = position.substitute({str(g.variable): g.value for g in guards})
        exists = [g.value.substitute(step).lt(g.extent) for g in guards]
        moved = position + (plain.substitute(step) - plain)
        return moved, conjunction([(variable + 1).lt(row.extent), *exists])

    def short_form(self, expr: OpRecord, dtype: DataType) -> str:
        """The less exact device function that computes an op, or nothing."""
        if self.is_cpu or dtype is not DataType.Float:
            return ""
        may_be = expr.attr("short") or expr.outputs[0] in self.short_exps
        return SHORT_FORMS.get(expr.op, "") if may_be else ""

    def at_loops(self, point: Point) -> Point:
        """A point over axis symbols -> the point over loop variables."""
        index = tuple(at.substitute(self.loops.index) for at in point.index)
        return Point(point.name, index, point.condition.substitute(self.loops.index))

    def is_full(self, point: Point) -> bool:
        """True if the point walks the reduced axes; in a pointwise kernel every point is full."""
        return not self.part.reductions or point.walks(self.reduced_symbols)

    @cached_property
    def reduced_symbols(self) -> tuple[str, ...]:
        """Every symbol that comes from a reduced axis: its loops and guards."""
        index, chunked = self.loops.index, self.part.chunked
        outside = [*self.scheduled.kept, *([chunked.axis] if chunked else [])]
        reduced = {symbol for name in self.scheduled.reduced for symbol in index[name].symbols}
        return tuple(reduced.difference(*(index[name].symbols for name in outside)))

    def lookups(self, point: Point) -> list[Scalar]:
        """The elements of index tensors that a point needs: for the position of an input's load,
        and for an op that reads at an index."""
        expr, places = self.part.producer.get(point.name), list[Scalar]()
        if expr is None and not self.part.tensors[point.name].by_value:
            places = [offset(point.index, self.part.strides[point.name]), point.condition]
        elif expr is not None and expr.row.kind is OpKind.INDEX:
            places = [index_element(expr, point.index, point.condition, self.part.tensors)]
        elements = frozenset[Scalar]().union(*(at.elements for at in places))
        return sorted(elements, key=lambda element: element.sort_key)

    def loads_vector(self, point: Point, position: Scalar) -> bool:
        """True if one vector load can read an input's elements for all lanes."""
        dtype, aligned = self.dtype_of(point.name), self.alignment(point.name)
        return self.is_vector(position, point.condition, dtype, aligned)

    def is_vector(
        self, position: Scalar, condition: Scalar, dtype: DataType, alignment: int = MAX_BYTES
    ) -> bool:
        """True if the lanes are adjacent in memory, at an address aligned for a vector."""
        lane, size = self.lane_symbol, dtype.bytes
        return is_vector(position, condition, lane, self.width, itemsize=size, alignment=alignment)

    def alignment(self, name: str) -> int:
        """The alignment of a tensor's first element in bytes. The fuser's own memory is aligned."""
        return dict(self.scheduled.alignment).get(name, MAX_BYTES)

    def local(self, name: str) -> str:
        """The variable that holds a value. A result's own name is that of its pointer."""
        return f"{name}_e" if name in self.part.outputs else name

    def combines(self, name: str) -> str:
        """The reduction whose operator makes a reduction's or a scan's result."""
        op = self.part.producer[name].op
        return SCANS.get(op, op)

    def accumulator_type(self, name: str) -> DataType:
        """The type in which a reduction adds. A CPU adds Float in double, because it adds elements
        one by one. On a GPU each thread adds few elements, and threads are combined in pairs, so
        Float loses no more than torch does. Nor does it in a `short` sum, as of a matrix product.
        """
        dtype = self.dtype_of(name)
        adds = self.combines(name) in ("sum", "prod")
        if not self.is_cpu or not adds or self.part.producer[name].attr("short"):
            return dtype
        wide = {DataType.Float: DataType.Double, DataType.ComplexFloat: DataType.ComplexDouble}
        return wide.get(dtype, dtype)

    def operand_types(self, expr: OpRecord, dtype: DataType) -> tuple[DataType, ...]:
        """The type of each operand. A literal takes the type of the named operands; literals alone
        take the type that the op computes in: truediv(1, 3) divides floats."""
        if expr.row.rule is DtypeRule.SELECT:
            return DataType.Bool, dtype, dtype
        types = [self.dtype_of(operand) for operand in expr.inputs]
        named = [isinstance(operand, str) for operand in expr.inputs]
        if not any(named):
            return tuple(types_of(expr, [ValueType(t, is_scalar=True) for t in types])[:-1])
        common = [t for t, is_named in zip(types, named, strict=True) if is_named][-1]
        return tuple(t if is_named else common for t, is_named in zip(types, named, strict=True))

    def dtype_of(self, operand: Operand) -> DataType:
        """The type of a value, or of a number."""
        if isinstance(operand, Literal):
            return of_number(operand.value)
        return self.part.tensors[operand].dtype

    def needs(self, name: str) -> Needs:
        """The symbols on which the result of a reduction depends."""
        if name in self.carried:
            return self.column.symbols | {ROOT}
        lanes = self.lane_symbol.symbols if self.lane_is_kept else NONE
        # The reduction of a row stays in the loop over a group's rows.
        return lanes | {self.home} | (self.group_step.symbols if self.is_of_row(name) else NONE)

    def is_of_row(self, name: str) -> bool:
        """True for a value with an element for each row of a group."""
        return not set(self.scheduled.rows).isdisjoint(self.part.axes(name))

    def is_stream(self, name: str) -> bool:
        """True for a row's sum that the CPU computes as a Stream: in an order that does not depend
        on the loops."""
        alone = self.lane is not None and not self.lane_is_kept and name not in self.carried
        return self.is_cpu and self.repeatable and alone and rounds(self.part, name)

    def accumulator(self, name: str) -> str | Lane:
        """A reduction's accumulator: a variable, or this lane's element of an array."""
        wide = self.accumulator_type(name) is not self.dtype_of(name)
        local = f"{name}_a" if wide else self.local(name)
        if name in self.carried:
            return Lane(local, self.column)
        return Lane(local, self.lane_symbol) if self.lane_is_kept else local

    def scanned(self, name: str) -> str | Lane:
        """The scanned element: this lane's in the array of a step, or the accumulator itself."""
        target = self.accumulator(name)
        if self.scheduled.params.inner and isinstance(target, str):
            return Lane(target, self.lane_symbol)
        return target


SHORT_FORMS = {
    "div": "approximate_reciprocal", "erf": "short_erf", "exp": "short_exp",
    "reciprocal": "approximate_reciprocal", "tanh": "short_tanh",
}  # fmt: skip
_EXPANDS = ("broadcast", "broadcast_in_dim")


def short_exps(part: Part) -> frozenset[str]:
    """The Float exps that may be two instructions: their error is 2 + |x| units in the last place.

    They are allowed if all results are 16-bit floats, and for exp(x - max(x)) that is only summed,
    as in log-sum-exp. There the largest term is 1, and a term e^-t adds an error of (2 + t) units
    times e^-t.
    """
    halves = all(part.tensors[name].dtype.is_half for name in part.outputs)
    exps = [e for e in part.exprs if e.op == "exp" and names_of(e)]
    floats = [e for e in exps if part.tensors[e.outputs[0]].dtype is DataType.Float]
    return frozenset(e.outputs[0] for e in floats if halves or _fades_in_a_sum(part, e))


def _fades_in_a_sum(part: Part, exp: OpRecord) -> bool:
    """True for exp(x - max(x, dims)) whose only use is its sum over the same dims."""
    name = exp.outputs[0]
    readers = [e for e in part.exprs if name in names_of(e)]
    most = _subtracted_max(part, exp)
    if name in part.outputs or most is None or not readers:
        return False
    return all(e.op == "sum" and e.attr("dims") == most.attr("dims") for e in readers)


def _subtracted_max(part: Part, exp: OpRecord) -> OpRecord | None:
    """The max(x, dims) of exp(x - max(x, dims)) or exp(-(max(x, dims) - x))."""
    shifted = _made_by(part, exp, "sub")
    negated = _made_by(part, exp, "neg")
    if negated is not None:
        shifted = _made_by(part, negated, "sub")
    if shifted is None or len(names_of(shifted)) != 2:
        return None
    x, name = names_of(shifted) if negated is None else reversed(names_of(shifted))
    most = part.producer.get(name)
    while most is not None and most.op in _EXPANDS:
        most = part.producer.get(names_of(most)[0])
    return most if most is not None and most.op == "max" and names_of(most) == (x,) else None


def _made_by(part: Part, reader: OpRecord, op: str) -> OpRecord | None:
    """The producer of the first operand, if it is this op."""
    producer = part.producer.get(names_of(reader)[0])
    return producer if producer is not None and producer.op == op else None
