# SPDX-License-Identifier: Apache-2.0
"""Schedulers of parts that reduce each row, and also reduce over rows, in one pass over the data.

inner_outer: sums over all rows, as in the backward of a norm. dx needs sums over columns, dweight
and dbias need sums over rows, and all of them read x and dy.

CUDA [M.o@blockIdx.x, M.i.o, M.i.i@threadIdx.y, N.o.o, N.o.i@threadIdx.x, N.i@vectorize]
     long rows also over the blocks of a cluster: N.o.i -> N.o.i.o@cluster, N.o.i.i
CPU  [M.o@blockIdx.x, M.i, N@vectorize]

A block walks a run of rows, which presegment/rfactor.py has cut. It keeps its sums over rows in
registers and writes them once, as partial results. A second kernel adds these.

nested: the results of rows are reduced over groups of rows, as in the backward of a group norm.

    T4[n, g, c] = sum(T3[n, g, c, hw], hw);  T5[n, g] = sum(T4, c);  T6 = T3 - T5

CUDA [K@blockIdx.x, C.o, C.i@threadIdx.y, R.o.o, R.o.i@threadIdx.x, R.i@vectorize]
     large groups over the blocks of a cluster: C.o -> C.o.o@cluster, C.o.i
CPU  [K@blockIdx.x, C, R@vectorize]

K are the groups, C the rows of a group, R the columns. A block or a cluster takes one group and
keeps its operands on chip. The threads of a row reduce the row, and one of them writes the result
to shared memory. There each warp reduces the results of all rows for itself. Sums over other axes,
such as a weight's gradient over n and hw, are partial results of rows here (presegment/rfactor.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder_fuser.analysis.domain_map import Axes, Pattern, rows_and_groups
from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import names_of
from thunder_fuser.schedule.axes import shared_last, size_of, summed_order
from thunder_fuser.schedule.persistence import (
    MAX_ELEMENTS,
    MAX_STEPS,
    register_bytes,
    with_group,
    with_inputs,
)
from thunder_fuser.schedule.row_shape import (
    RowShape,
    fits_registers,
    has_long_rows,
    has_order,
    row_of,
    row_shape,
)
from thunder_fuser.schedule.scheduled import HeuristicParams, ScheduledFusion, Transforms
from thunder_fuser.schedule.scheduler import Decisions, KernelMatch, NoMatch
from thunder_fuser.target import Target

CPU_SUM_BYTES = 256 * 1024  # of sums over rows, which a thread keeps in its second-level cache
WARP = 32
MOST_THREADS = 512  # of a block that reduces a group
MOST_VALUES = 128  # elements in one thread of what is read once, behind all other reductions
AT_ONCE = 1024  # threads of an SM that several blocks share
MOST_CLUSTER = 8  # the threads of a row, at least 8, each send its result to one block
CPU_ROWS = 4096  # of a group: their results are an array on the stack
CPU_GROUPS = 16  # enough work for a CPU's threads


# ---- inner_outer: over all rows, in runs


@dataclass(frozen=True, kw_only=True)
class InnerOuter(KernelMatch):
    """Reductions of rows, and partial reductions over runs of rows, that share their inputs.

    kept: the axes of rows; reduced: the axes of columns.
    """

    name = "inner_outer"
    takes_no = (OpKind.SCAN, OpKind.EXTERNAL)

    run: int  # rows that a block walks

    @classmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> InnerOuter | NoMatch:
        """The match, with the axes of rows and of columns, or why there is none."""
        chunked, partial = part.chunked, set(part.partial)
        if chunked is None:
            return NoMatch(cls.name, "there are no partial results over rows")
        rows, columns = chunked.reduced, part.patterns[part.partial[0]].kept - {chunked.axis}
        over, along = Pattern(columns, frozenset(rows)), Pattern(frozenset(rows), columns)
        for name, pattern in part.patterns.items():
            if pattern.without(chunked.axis) != (over if name in partial else along):
                return NoMatch(cls.name, f"{name} reduces neither rows nor columns")
        if len(partial) == len(part.reductions):
            return NoMatch(cls.name, "there is no reduction of rows")
        if {e.attr("chunk") for e in part.reductions} - {None, chunked.size}:
            return NoMatch(cls.name, "runs of several lengths")
        foreign = along.foreign(part.stored_axes.values())
        for name, axes in part.stored_axes.items():
            if name not in partial and axes in foreign:
                return NoMatch(cls.name, f"result {name} has neither the row's axes nor all axes")
        if any(not partial.isdisjoint(names_of(expr)) for expr in part.exprs):
            return NoMatch(cls.name, "a partial result is used in the same kernel")
        order = summed_order(part, part.reductions[0], {*rows, *columns}, options)
        if order[: len(rows)] != rows:
            return NoMatch(cls.name, "rows do not follow one another in memory")
        return cls(part, target, options, rows, order[len(rows) :], run=chunked.size)

    def refuse(self) -> NoMatch | None:
        """Refuses rows so long that the columns and their sums do not fit on chip."""
        columns, target = self.reduced_size, self.target
        if target.is_cpu:
            fits = columns * 8 * len(self.part.partial) <= CPU_SUM_BYTES
        elif self.has_order:
            fits = not has_long_rows(columns, target)
        else:
            fits = fits_registers(columns, target)
        reason = f"{columns} columns and their sums do not fit on chip"
        return None if fits else NoMatch(self.name, reason)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        decisions = _cpu_runs(self) if self.target.is_cpu else _cuda_runs(self, alignment)
        return with_inputs(self.scheduled(decisions, alignment))


def _cuda_runs(match: InnerOuter, alignment: dict[str, int]) -> Decisions:
    """[M, N] -> [M.o@bx, M.i.o, M.i.i@ty, N.o.o, N.o.i@tx, N.i@vectorize]"""
    columns, target, sums = match.reduced_size, match.target, len(match.part.partial)
    settled = row_of(columns, target, sums=sums) if match.has_order else None
    shape = settled or row_shape(columns, sums, target)
    (x, y), cluster = shape.threads, shape.cluster

    def build(s: Transforms, width: int) -> bool:
        if columns % width:  # with shifted rows, a lane would add other columns in the next row
            return False
        run, rows = s.split(s.merge(match.kept), match.run)
        _, row = s.split(rows, y)
        vectors, lane = s.split(s.merge(match.reduced), width)
        thread = s.deal(vectors, x, cluster)
        s.bind(BIDX=run, TIDY=row, TIDX=thread, VECTORIZE=lane)
        return True

    width, transforms = match.widest(build, alignment, shape.width)
    params = HeuristicParams(match.name, width, (x, y), cluster=cluster, blocks=shape.blocks)
    return params, transforms


def _cpu_runs(match: InnerOuter) -> Decisions:
    """[M, N] -> [M.o@bx, M.i, N@vectorize]"""
    s = Transforms(match.domain)
    run, _ = s.split(s.merge(match.kept), match.run)
    lane = s.merge(match.reduced)
    s.bind(BIDX=run, VECTORIZE=lane)
    return HeuristicParams(match.name, s.extent(lane)), tuple(s.applied)


# ---- nested: over the rows of a group


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Who reduces a group. threads: (along a row, rows side by side); steps: rows that a thread
    reduces one after another; cluster: blocks."""

    width: int
    threads: tuple[int, int]
    steps: int
    cluster: int


@dataclass(frozen=True, kw_only=True)
class Nested(KernelMatch):
    """Reductions of rows, and reductions of their results over the rows of a group.

    kept: the axes of groups, then `rows`, the axes of a group's rows; reduced: the axes of columns.
    """

    name = "nested"
    takes_no = (OpKind.SCAN, OpKind.EXTERNAL)

    rows: tuple[str, ...]

    @classmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> Nested | NoMatch:
        """The match, with the axes of groups, rows and columns, or why reductions do not nest."""
        if part.chunked:
            return NoMatch(cls.name, "there is a partial result")
        first: dict[Pattern, str] = {}
        for name, pattern in part.patterns.items():
            first.setdefault(pattern, name)
        if len(first) not in (2, 3):
            return NoMatch(cls.name, f"reductions of {len(first)} patterns, not of two or three")
        row, group, *sums = rows_and_groups(first) or (None, None)
        if row is None or group is None or not group.kept:
            reason = "no reduction over groups of the rows that another one reduces"
            return NoMatch(cls.name, reason)
        if sums and (target.is_cpu or has_order(part, options)):
            return NoMatch(cls.name, "sums over rows that keep columns")
        for over in sums:
            joined = _with_columns(part, over.kept - group.kept, row.reduced)
            if joined is None or part.reductions[-1].outputs[0] != first[over]:
                return NoMatch(cls.name, f"{first[over]} keeps other columns, or is read again")
            part = joined
        results = (group.kept, row.kept, group.kept | row.reduced if sums else row.walked)
        for name, axes in part.stored_axes.items():
            if axes not in results:
                return NoMatch(cls.name, f"result {name} is not over groups, rows or elements")
        order = summed_order(part, part.producer[first[row]], row.walked, options)
        groups, columns = order[: len(group.kept)], order[len(row.kept) :]
        is_nested = set(groups) == group.kept and set(columns) == row.reduced
        if not is_nested or not are_innermost(part, row.reduced):
            reason = "a group's rows, or their columns, are not neighbours in memory"
            return NoMatch(cls.name, reason)
        walked = summed_order(part, part.producer[first[group]], row.kept, options)
        rows = tuple(a for a in walked if a in group.reduced)
        return cls(part, target, options, (*shared_last(part, groups), *rows), columns, rows=rows)

    @property
    def groups(self) -> tuple[str, ...]:
        """The axes of groups."""
        return self.kept[: -len(self.rows)]

    @property
    def column_sum(self) -> str:
        """The sum over a group's rows that keeps the columns, if there is one."""
        return next(iter(self.part.reductions_that_keep(self.reduced)), "")

    @property
    def bytes_read(self) -> int:
        """Bytes of input for each element of a row that a thread holds."""
        return bytes_read(self.part, frozenset(self.reduced), self.column_sum)

    def refuse(self) -> NoMatch | None:
        groups, rows = size_of(self.part, self.groups), size_of(self.part, self.rows)
        sizes = groups, rows, self.reduced_size, self.bytes_read
        is_cpu = self.target.is_cpu
        if fits(*sizes, target=self.target, options=self.options) if is_cpu else self.shapes():
            return None
        reason = f"a group of {rows} rows with {sizes[2]} columns does not fit on chip"
        return NoMatch(self.name, reason)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        decisions = _cpu_groups(self) if self.target.is_cpu else _cuda_groups(self)
        scheduled = replace(self.scheduled(decisions, alignment), rows=self.rows)
        return with_group(scheduled, size_of(self.part, self.rows))

    def shapes(self) -> list[GroupShape]:
        """The shapes of blocks and clusters that can reduce a group, the best first."""
        rows = size_of(self.part, self.rows)
        sizes = rows, self.reduced_size, self.bytes_read
        return group_shapes(*sizes, self.target, self.options, once=bool(self.column_sum))


def _with_columns(part: Part, ours: Axes, columns: Axes) -> Part | None:
    """The part in which the columns that a sum keeps are those of the rows, if they are as long:
    the same threads walk both.

    T3[i, j] = sum(T0[i, k] * T1[j, k], k); T5[i, d] = sum(exp(T3[i, j]) * T4[j, d], j)    d is k
    """
    if ours == columns:
        return part
    if len(ours) != 1 or len(columns) != 1:
        return None
    pair = *columns, *ours
    joined = part.domain_map.joined(*pair)
    alike = part.extents[pair[0]].value == part.extents[pair[1]].value
    return replace(part, domain_map=joined) if alike else None


def takes_sum(part: Part, name: str, target: Target, options: CompileOptions) -> bool:
    """True if a kernel that reduces rows, then groups of these, can also make this sum: over the
    rows of a group, with columns as long as those of the rows."""
    if target.is_cpu or has_order(part, options):
        return False
    over, patterns = part.patterns[name], set(part.patterns.values())

    def fits(group: Pattern, row: Pattern) -> bool:
        ours, columns = over.kept - group.kept, size_of(part, row.reduced)
        shape = size_of(part, group.reduced), columns, bytes_read(part, ours, name), target
        return columns == size_of(part, ours) and bool(group_shapes(*shape, options, once=True))

    groups = [p for p in patterns if p.reduced == over.reduced and p.kept < over.kept]
    return any(fits(group, row) for group in groups for row in patterns if row.kept == group.walked)


def bytes_read(part: Part, columns: Axes, name: str = "") -> int:
    """Bytes of input that a part reads for each element of rows with these columns. name: of a
    reduction, if only what it reads behind all others counts."""
    names, stack = set(() if name else part.inputs), [name] if name else []
    while stack:
        expr = part.producer.get(reached := stack.pop())
        names |= {reached} if expr is None else set()
        if expr is not None and (reached == name or expr.row.kind is not OpKind.REDUCTION):
            stack += names_of(expr)
    return sum(part.tensors[n].dtype.bytes for n in names if columns <= set(part.axes(n)))


def fits(
    groups: int, rows: int, columns: int, itemsize: int, *, target: Target, options: CompileOptions
) -> bool:
    """True if a block or cluster can keep a group, with `itemsize` bytes of input an element."""
    if target.is_cpu:
        return groups >= CPU_GROUPS and rows <= CPU_ROWS
    return bool(group_shapes(rows, columns, itemsize, target, options))


def group_shapes(
    rows: int, columns: int, itemsize: int, target: Target, options: CompileOptions,
    *, once: bool = False,
) -> list[GroupShape]:  # fmt: skip
    """The shapes that keep a group in the registers of a block or a small cluster, the best first.
    once: of a block alone, as each element is read once.

    The threads of a row, and the order in which its elements are added, depend on its length alone
    (row_shape.py), so that other kernels give a sum the same bits. The best cluster is the one that
    leaves the fewest threads without a row.

    >>> from thunder_fuser.options import compile_options
    >>> from thunder_fuser.target import A100, H200
    >>> group_shapes(8, 1024, 4, H200, compile_options())[0]
    GroupShape(width=8, threads=(64, 8), steps=1, cluster=1)
    >>> group_shapes(10, 4096, 4, H200, compile_options())[0]
    GroupShape(width=8, threads=(256, 2), steps=1, cluster=5)
    >>> group_shapes(10, 4096, 4, A100, compile_options())
    []
    """
    row, over = row_of(columns, target), row_of(rows, target)
    if row.cluster > 1 or over.cluster > 1 or over.threads[0] > WARP:
        return []
    most = 1 if once else min(target.max_cluster, MOST_CLUSTER)
    shapes = (_shape(-(-rows // k), k, row) for k in range(1, most + 1))
    fitting = [shape for shape in shapes if _is_held(shape, columns, itemsize, options, once)]
    return sorted(fitting, key=lambda s: (s.cluster > 1, s.cluster * s.steps * s.threads[1]))


def _shape(rows: int, cluster: int, row: RowShape) -> GroupShape:
    """The shape of blocks that have so many rows each."""
    x = row.threads[0]
    steps = -(-rows // max(MOST_THREADS // x, 1))
    y = -(-rows // steps)
    while y * x % WARP:
        y += 1
    return GroupShape(row.width, (x, y), steps, cluster)


def _is_held(
    shape: GroupShape, columns: int, itemsize: int, options: CompileOptions, once: bool
) -> bool:
    """once: twice as much, as there is one block on an SM: heads of 128 columns with 512 keys."""
    x, y = shape.threads
    vectors = -(-columns // (shape.width * x)) * shape.steps
    share, limit = vectors * shape.width, register_bytes(x * y, options) * (1 + once)
    most = MOST_VALUES if once else MAX_ELEMENTS
    return vectors <= MAX_STEPS and share <= most and share * itemsize <= limit


def are_innermost(part: Part, columns: frozenset[str]) -> bool:
    """True if these are the fastest axes in memory of every tensor that has them."""
    orders = [part.memory_axes(name) for name in part.global_tensors]
    fastest = [set(axes[len(axes) - len(columns) :]) for axes in orders if columns <= set(axes)]
    return all(axes == columns for axes in fastest)


def _cuda_groups(match: Nested) -> Decisions:
    """[K, C, R] -> [K@bx, C.o, C.i@ty, R.o.o, R.o.i@tx, R.i@vectorize]"""
    shape = match.shapes()[0]
    x, y = shape.threads
    s = Transforms(match.domain)
    group = s.merge(match.groups)
    steps, row = s.split(s.merge(match.rows), y)
    if shape.cluster > 1:
        rank, _ = s.split(steps, shape.steps)
        s.bind(CLUSTER=rank)
    vectors, lane = s.split(s.merge(match.reduced), shape.width)
    s.bind(BIDX=group, TIDY=row, TIDX=s.deal(vectors, x), VECTORIZE=lane)
    # Blocks that share an SM hold no values: 256 heads with 512 keys take 9.0 us, not 12.3 (H200).
    is_shared = match.column_sum and s.extent(group) > match.target.sm_count
    blocks = AT_ONCE // (x * y) if is_shared else 0
    params = HeuristicParams(match.name, shape.width, (x, y), cluster=shape.cluster, blocks=blocks)
    return params, tuple(s.applied)


def _cpu_groups(match: Nested) -> Decisions:
    """[K, C, R] -> [K@bx, C, R@vectorize]"""
    s = Transforms(match.domain)
    group = s.merge(match.groups)
    s.merge(match.rows)
    lane = s.merge(match.reduced)
    s.bind(BIDX=group, VECTORIZE=lane)
    return HeuristicParams(match.name, s.extent(lane)), tuple(s.applied)
