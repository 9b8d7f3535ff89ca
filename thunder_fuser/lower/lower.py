# SPDX-License-Identifier: Apache-2.0
"""ScheduledFusion -> Kernel.

A kernel is: block and thread loops (the root), then one nest of loops for each pass over the
reduced axes, then what is left for each kept position:

    root:    i0 = blockIdx.x; t = threadIdx.x
    nest 0:  for s: load x; max = max(max, x)           reduce over the block
    nest 1:  for s: sum += exp(x - max)                 reduce over the block
    nest 2:  for s: store exp(x - max) / sum
    rows:    store what has only kept axes

Values are pulled: a store asks for its operand at an index, that one for its own operands, back to
loads. Each is put into the outermost scope that has the loop variables of its index.
"""

from __future__ import annotations

from functools import cached_property
from math import prod

from thunder_fuser.analysis.demand import Demand, Point, demand
from thunder_fuser.ir.domain import IterDomain, ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Literal
from thunder_fuser.ir.scalar import Scalar, conjunction, const, minimum
from thunder_fuser.lower.kernel import (
    Accumulate,
    Array,
    BlockReduce,
    Coordinate,
    For,
    If,
    Kernel,
    Lane,
    Let,
    Parameter,
    Set,
    Statement,
    Variable,
)
from thunder_fuser.lower.scope import ROOT, Scope
from thunder_fuser.lower.stores import Stores
from thunder_fuser.lower.values import Values
from thunder_fuser.schedule.loop_index import Guard, LoopIndex, loop_index
from thunder_fuser.schedule.reduction import is_full
from thunder_fuser.schedule.scheduled import ScheduledFusion

INT32_MAX = 2**31 - 1


def lower(scheduled: ScheduledFusion, name: str) -> Kernel:
    """The kernel of a schedule."""
    return _Lowerer(scheduled).kernel(name)


class _Lowerer:
    """Builds one kernel; `values` makes and finds values, `stores` writes results."""

    def __init__(self, scheduled: ScheduledFusion) -> None:
        self.scheduled = scheduled
        self.part = scheduled.part
        self.is_cpu = scheduled.target.is_cpu
        self.loops: LoopIndex = loop_index(scheduled.axes, scheduled.transforms)
        self.facts: Demand = demand(self.part, self.loops.index)
        self.open_guards = list(self.loops.guards)
        self.row_condition = const(1)
        self.root = Scope(frozenset([ROOT]))
        self.values = Values(self)
        self.stores = Stores(self)

    # ---- facts

    @cached_property
    def root_loops(self) -> list[IterDomain]:
        return [a for a in self.scheduled.loop if a.parallel.is_block or a.parallel.is_thread]

    @cached_property
    def nest_loops(self) -> list[IterDomain]:
        """The loops inside the root, those of extent 1 left out."""
        inside = [a for a in self.scheduled.loop if a not in self.root_loops]
        return [a for a in inside if not self.loops.loops[a.name].is_const]

    @cached_property
    def lane(self) -> IterDomain | None:
        """The vector or simd loop."""
        found = [a for a in self.nest_loops if a.parallel is ParallelType.VECTORIZE]
        return found[0] if found else None

    @cached_property
    def lane_symbol(self) -> Scalar:
        return self.loops.loops[self.lane.name] if self.lane else const(0)

    @cached_property
    def width(self) -> int:
        """Elements of one vector access; 1 on the CPU, whose compiler makes the vectors."""
        return self.lane.extent.value if self.lane and not self.is_cpu else 1

    @cached_property
    def lane_is_kept(self) -> bool:
        """True if the lanes walk kept axes: every lane then has its own accumulator."""
        return self.lane is not None and not self.lane.is_reduction and bool(self.part.reductions)

    @cached_property
    def steps(self) -> int:
        """Iterations of the loops around the lanes in a nest, all threads alike."""
        return prod(a.extent.value for a in self.nest_loops if a is not self.lane)

    @property
    def step(self) -> Scalar:
        """The number of the current iteration of the loops around the lanes."""
        number = const(0)
        for axis in self.nest_loops:
            if axis is not self.lane:
                number = number * axis.extent + self.loops.loops[axis.name]
        return number

    def is_full(self, point: Point) -> bool:
        """True if the point walks the reduced axes; in a pointwise kernel all points count as full."""
        if not self.part.reductions:
            return True
        return is_full(point.index, self.reduced_symbols)

    @cached_property
    def reduced_symbols(self) -> tuple[str, ...]:
        """Every symbol that comes from a reduced axis: its loops and guards."""
        found: set[str] = set()
        for name in self.scheduled.reduced:
            found |= self.loops.index[name].symbols
        kept = {s for n in self.scheduled.kept for s in self.loops.index[n].symbols}
        return tuple(sorted(found - kept))

    # ---- the kernel

    def kernel(self, name: str) -> Kernel:
        body = self._root_body()
        sizes = [prod(self.part.tensors[n].sizes) for n in self.part.global_tensors]
        reach = [self._reach(n) for n in self.part.global_tensors]
        blocks = [a.extent.value for a in self.root_loops if a.parallel.is_block]
        work = prod(axis.extent.value for axis in self.scheduled.axes)
        return Kernel(
            name, self._parameters(), tuple(body), prod(blocks), self._threads(),
            self.values.smem_bytes, max([*sizes, *reach, work, 0]) > INT32_MAX, work,
            str(self.scheduled.params),
        )

    def _reach(self, name: str) -> int:
        """The largest position of a tensor in memory, in elements."""
        view, strides = self.part.tensors[name], self.part.strides[name]
        return sum((size - 1) * stride for size, stride in zip(view.sizes, strides, strict=True))

    def _threads(self) -> tuple[int, int]:
        extents = {a.parallel: a.extent.value for a in self.root_loops}
        return extents.get(ParallelType.TIDX, 1), extents.get(ParallelType.TIDY, 1)

    def _parameters(self) -> tuple[Parameter, ...]:
        inputs = [self.part.tensors[name] for name in self.part.inputs]
        made = [
            Parameter(v.name, v.dtype.compute, "scalar")
            if v.by_value
            else Parameter(v.name, v.dtype, "input")
            for v in inputs
        ]
        outputs = [Parameter(n, self.part.tensors[n].dtype, "output") for n in self.part.outputs]
        return (*made, *outputs)

    def _root_body(self) -> list[Statement]:
        """Coordinates, guards, and the nests inside them. The CPU walks blocks in a loop."""
        blocks = [a for a in self.root_loops if not self.loops.loops[a.name].is_const]
        outer = Scope(frozenset())
        if self.is_cpu:
            self.root = outer.child(ROOT, *(str(self.loops.loops[a.name]) for a in blocks))
        for axis in blocks:
            if not self.is_cpu:
                self._define(self.root, self.loops.loops[axis.name], Coordinate(axis.parallel))
        inner = self._guard_root()
        self._nests(inner)
        self._close(inner, self.root)
        if not self.is_cpu or not blocks:
            return [*outer.statements, *self.root.statements]
        (block,) = blocks
        loop = For(str(self.loops.loops[block.name]), block.extent, ParallelType.BIDX,
                   tuple(self.root.statements))
        return [*outer.statements, loop]

    def _define(self, scope: Scope, variable: Scalar, value: Coordinate | Scalar) -> None:
        scope.put(Let(str(variable), None, value))
        scope.symbols = scope.symbols | variable.symbols

    def _guard_root(self) -> Scope:
        """Guards known from blocks and threads.

        Kept axes are clamped where barriers follow, and reduced ones are left to the nests: no
        thread may skip a barrier. A pointwise kernel has none and skips all at once.
        """
        scope = self.root
        if not self.part.reductions:
            for guard in self._ready(scope):
                scope = self._enter(scope, guard)
            return scope
        reduced = {"*".join(self.scheduled.reduced), *self.scheduled.reduced}
        for guard in self._ready(scope):
            if guard.axis.partition(".")[0] in reduced:
                self.open_guards.append(guard)
                continue
            self._define(scope, guard.variable, minimum(guard.value, guard.extent - 1))
            self.row_condition = conjunction([self.row_condition, _valid(guard)])
        return scope

    def _ready(self, scope: Scope) -> list[Guard]:
        """The guards, innermost axes last, whose values can be known in the scope."""
        ready: list[Guard] = []
        symbols = scope.symbols
        progress = True
        while progress:
            progress = False
            for guard in list(self.open_guards):
                if guard.value.symbols <= symbols:
                    self.open_guards.remove(guard)
                    ready.append(guard)
                    symbols = symbols | guard.variable.symbols
                    progress = True
        return ready

    def _enter(self, scope: Scope, guard: Guard) -> Scope:
        """A block in which the guard holds and its variable is defined."""
        inner = scope.child()
        inner.condition = _valid(guard)
        self._define(inner, guard.variable, guard.value)
        return inner

    def _close(self, scope: Scope, until: Scope) -> None:
        """Puts each block made by _enter, from the innermost out to `until`, into its If."""
        while scope is not until:
            assert scope.condition is not None and scope.parent is not None
            scope.parent.put(If(scope.condition, tuple(scope.statements)))
            scope = scope.parent

    # ---- nests

    def _nests(self, scope: Scope) -> None:
        self.values.declare_persistent(scope)
        count = self._nest_count()
        for number in range(count):
            self._nest(scope, number)
        self._rows(scope, count)

    def _nest_count(self) -> int:
        full = [p for p in self.facts.roots if self._in_nest(p)]
        return 1 + max((self.facts.level[p] for p in full), default=-1)

    def _in_nest(self, point: Point) -> bool:
        return point in self.facts.operands.values() or self.is_full(point)

    def _nest(self, scope: Scope, number: int) -> None:
        """One pass: accumulates the reductions and stores the full results of this level."""
        reductions = [n for n, p in self.facts.operands.items() if self.facts.level[p] == number]
        results = [
            n for n, p in self.facts.results.items()
            if self.is_full(p) and self.facts.level[p] == number
        ]
        self.values.nest = number
        for name in reductions:
            self._declare_accumulator(scope, name)
        accumulators = () if self.lane_is_kept else tuple(
            (self.values.local(n), self.part.producer[n].op, self.part.tensors[n].dtype)
            for n in reductions
        )
        saved = list(self.open_guards)
        inner = scope
        for guard in self._ready(scope):
            inner = self._enter(inner, guard)
        self._loops(inner, list(self.nest_loops), reductions, results, accumulators)
        self._close(inner, scope)
        self.open_guards = saved
        for name in reductions:
            self._reduce_block(scope, name)

    def _accumulator(self, name: str) -> str | Lane:
        """What a reduction adds into: a variable, or this lane's element of an array."""
        local = self.values.local(name)
        return Lane(local, self.lane_symbol) if self.lane_is_kept else local

    def _declare_accumulator(self, scope: Scope, name: str) -> None:
        dtype, op = self.part.tensors[name].dtype, self.part.producer[name].op
        init = _identity(op, dtype)
        local = self.values.local(name)
        if not self.lane_is_kept:
            scope.put(Variable(local, dtype, init))
            return
        assert self.lane is not None
        scope.put(Array(local, dtype, self.lane.extent.value))
        zero = Set(Lane(local, self.lane_symbol), init, dtype)
        scope.put(For(str(self.lane_symbol), self.lane.extent, ParallelType.VECTORIZE, (zero,)))

    def _loops(
        self,
        scope: Scope,
        loops: list[IterDomain],
        reductions: list[str],
        results: list[str],
        accumulators: tuple[tuple[str, str, DataType], ...],
    ) -> None:
        """The loops of a nest, outermost first; at the lanes, the work itself."""
        if not loops or loops[0] is self.lane:
            self._lanes(scope, reductions, results, accumulators)
            return
        axis = loops[0]
        variable = self.loops.loops[axis.name]
        inner = scope.child(str(variable))
        saved = list(self.open_guards)
        guarded, extent = inner, axis.extent
        for guard in self._ready(inner):
            if self.is_cpu and _clips(guard, variable):
                extent = minimum(axis.extent, guard.extent - (guard.value - variable))
                self._define(inner, guard.variable, guard.value)
            else:
                guarded = self._enter(guarded, guard)
        self._loops(guarded, loops[1:], reductions, results, accumulators)
        self._close(guarded, inner)
        self.open_guards = saved
        scope.put(For(str(variable), extent, axis.parallel, tuple(inner.statements)))

    def _lanes(
        self,
        scope: Scope,
        reductions: list[str],
        results: list[str],
        accumulators: tuple[tuple[str, str, DataType], ...],
    ) -> None:
        """Work at one step: vector loads before, and vector stores after, a loop over the lanes."""
        if self.lane is None:
            self._work(scope, scope, reductions, results)
            return
        inner, extent = self._lane_scope(scope)
        after = self._work(scope, inner, reductions, results)
        scope.put(
            For(str(self.lane_symbol), extent, ParallelType.VECTORIZE, tuple(inner.statements),
                accumulators if self.is_cpu else ())
        )
        for statement in after:
            scope.put(statement)

    def _lane_scope(self, scope: Scope) -> tuple[Scope, Scalar]:
        """The block of the lane loop and the loop's extent, clipped where the last one is partial."""
        assert self.lane is not None
        inner, extent = scope.child(str(self.lane_symbol)), self.lane.extent
        saved = list(self.open_guards)
        for guard in self._ready(inner):
            assert self.is_cpu and _clips(guard, self.lane_symbol)
            extent = minimum(extent, guard.extent - (guard.value - self.lane_symbol))
            self._define(inner, guard.variable, guard.value)
        self.open_guards = saved
        return inner, extent

    def _work(
        self, outer: Scope, inner: Scope, reductions: list[str], results: list[str]
    ) -> list[Statement]:
        """Accumulates and stores; returns what must follow the lane loop."""
        for name in reductions:
            value = self.values.get(self.facts.operands[name], inner)
            op, dtype = self.part.producer[name].op, self.part.tensors[name].dtype
            inner.put(Accumulate(self._accumulator(name), op, value, dtype))
        after: list[Statement] = []
        for name in results:
            after += self.stores.store(name, self.row_condition, outer, inner)
        return after

    def _reduce_block(self, scope: Scope, name: str) -> None:
        """Joins the threads' accumulators; afterwards every thread has the result."""
        axis = "x" if self.scheduled.params.inner else "y"
        threads = self._threads()
        if self.is_cpu or (threads[0] if axis == "x" else threads[1]) == 1:
            return
        dtype, op = self.part.tensors[name].dtype, self.part.producer[name].op
        scratch = self.values.scratch(dtype, axis, threads)
        reduce = BlockReduce(self._accumulator(name), op, axis, threads, scratch, dtype)
        if not self.lane_is_kept:
            scope.put(reduce)
            return
        assert self.lane is not None
        scope.put(For(str(self.lane_symbol), self.lane.extent, ParallelType.VECTORIZE, (reduce,)))

    # ---- rows

    def _rows(self, scope: Scope, count: int) -> None:
        """Stores results that have only kept axes, by one thread of those that share them."""
        names = [n for n, p in self.facts.results.items() if not self._in_nest(p)]
        if not names:
            return
        self.values.nest = count
        condition = conjunction([self.row_condition, self._first_thread()])
        if not self.lane_is_kept:
            for name in names:
                for statement in self.stores.store(name, condition, scope, scope):
                    scope.put(statement)
            return
        assert self.lane is not None
        inner, extent = self._lane_scope(scope)
        after: list[Statement] = []
        for name in names:
            after += self.stores.store(name, condition, scope, inner)
        scope.put(
            For(str(self.lane_symbol), extent, ParallelType.VECTORIZE, tuple(inner.statements))
        )
        for statement in after:
            scope.put(statement)

    def _first_thread(self) -> Scalar:
        """True for the thread at 0 along the reduced axes."""
        reduced = [a for a in self.root_loops if a.is_reduction]
        return conjunction([self.loops.loops[a.name].lt(1) for a in reduced])


def _valid(guard: Guard) -> Scalar:
    return guard.value.lt(guard.extent)


def _clips(guard: Guard, variable: Scalar) -> bool:
    """True if the guard only shortens the loop: value == base + variable."""
    base = guard.value - variable
    return not base.symbols & variable.symbols


def _identity(op: str, dtype: DataType) -> Literal:
    """What a reduction starts from."""
    if op in ("sum", "prod"):
        value = 0 if op == "sum" else 1
        return Literal.of(float(value) if dtype.is_float else value)
    if dtype is DataType.Bool:
        return Literal.of(op == "min")
    if dtype.is_float:
        return Literal.of(float("-inf") if op == "max" else float("inf"))
    low, high = integer_range(dtype)
    return Literal.of(low if op == "max" else high)


def integer_range(dtype: DataType) -> tuple[int, int]:
    """The smallest and largest value of an integer type."""
    bits = 8 * dtype.bytes
    if dtype is DataType.UInt8:
        return 0, 255
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
