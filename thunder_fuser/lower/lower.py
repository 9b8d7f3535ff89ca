# SPDX-License-Identifier: Apache-2.0
"""ScheduledFusion -> Kernel.

A kernel has block and thread loops (the root), then one nest of loops for each pass over the
reduced axes, then the work that remains for each kept position:

    root:    i0 = blockIdx.x; t = threadIdx.x
    nest 0:  for s: load x; max = max(max, x)           reduce over the block
    nest 1:  for s: sum += exp(x - max)                 reduce over the block
    nest 2:  for s: store exp(x - max) / sum
    rows:    store what has only kept axes

A scan has its own loop over the lanes of a step, before the loop that reads it:

    for s:  for v: a[v] = exp(x)      then scan a over the block, from the carry on
            for v: store a[v]

Values are pulled: what a store lacks, back to the loads, is listed and then made in order. Each
value is put into the outermost scope with the loop variables of its index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.analysis.part import Part
from thunder_fuser.errors import ScheduleError
from thunder_fuser.ir.domain import IterDomain, ParallelType
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import names_of
from thunder_fuser.ir.scalar import Scalar, conjunction, const, symbol
from thunder_fuser.ir.size_symbols import sized
from thunder_fuser.lower import accumulators, buffers, groups, guards, nests, values
from thunder_fuser.lower import kernel as nodes
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel_passes.passes import run_passes
from thunder_fuser.lower.kernel_passes.verify import verify_kernel
from thunder_fuser.lower.launch import with_launch
from thunder_fuser.lower.nests import Work
from thunder_fuser.lower.scope import ROOT, ROW, Scope, loops_around
from thunder_fuser.lower.size_arguments import with_free_sizes
from thunder_fuser.lower.state import KernelState, Window
from thunder_fuser.schedule.axes import size_of
from thunder_fuser.schedule.products import COLUMNS, Matrix, Products, matrices_of
from thunder_fuser.schedule.scheduled import ScheduledFusion, Tile

INT32_MAX = 2**31 - 1
MOST_STACK = 4 << 20  # bytes; a thread's stack has 8 MiB


def lower(scheduled: ScheduledFusion, name: str) -> nodes.Kernel:
    """The kernel of a schedule; ScheduleError if it needs too much shared memory or stack."""
    is_cpu = scheduled.target.is_cpu
    pieces = scheduled.pieces or (scheduled,)
    kernels = [kernel_of(Context(with_free_sizes(piece)), name) for piece in pieces]
    unfinished = _side_by_side(kernels, scheduled) if scheduled.pieces else kernels[0]
    unfinished = with_launch(unfinished, scheduled)
    kernel = verify_kernel(run_passes(unfinished, is_cpu))
    most = MOST_STACK if is_cpu else scheduled.target.smem_bytes_per_block
    taken = stack_bytes(kernel) if is_cpu else kernel.smem_bytes
    if taken > most:
        expected = f"at most {most} bytes of {'a stack' if is_cpu else 'shared memory'}"
        raise ScheduleError(f"schedule of {name}", expected=expected, got=str(taken))
    return kernel


def stack_bytes(kernel: nodes.Kernel) -> int:
    """The bytes of a CPU thread's arrays, all of which are on its stack."""
    inside = nodes.statements_in(kernel.body)
    arrays = (array for array in inside if isinstance(array, nodes.Array | nodes.Words))
    return sum(array.count * array.dtype.bytes for array in arrays)


def kernel_of(ctx: Context, name: str) -> nodes.Kernel:
    """The kernel of a context, before its passes."""
    state, tile = KernelState(ctx), ctx.scheduled.tile
    body = _root_body(state) if tile is None else _phases(state, tile)
    # Tensors that never reach memory count too: a reshape computes with positions in them.
    names = (*ctx.part.inputs, *ctx.part.producer)
    sizes = [prod(map(int, ctx.part.tensors[n].sizes)) for n in names]
    reach = [int(ctx.part.elements(n)) - 1 for n in ctx.part.global_tensors]
    work = prod(int(axis.extent.value) for axis in ctx.scheduled.axes)
    # Guards compare positions past the last element.
    beyond = [int(guard.value.hi) for guard in ctx.loops.guards]
    params = ctx.scheduled.params
    rows = ParallelType.CLUSTER if ctx.cluster > 1 else ParallelType.BIDY
    return nodes.Kernel(
        name,
        _parameters(ctx.part),
        tuple(body),
        (ctx.extent(ParallelType.BIDX), ctx.extent(rows)),
        ctx.threads,
        state.shared.bytes,
        max([*sizes, *reach, *beyond, work, state.largest_index]) > INT32_MAX,
        work,
        # A CPU's params contain a size, which must not be in the text.
        params.scheduler if ctx.is_cpu else str(params),
        ctx.cluster,
        params.blocks,
        tuple(state.checks),
    )


def _side_by_side(kernels: Sequence[nodes.Kernel], scheduled: ScheduledFusion) -> nodes.Kernel:
    """The kernel whose blocks are divided among these.

    128 blocks: i_o = blockIdx.x; ...          block = blockIdx.x
    32 blocks:  i_o = blockIdx.x; ...      ->  if (block < 128) i_o = block; ...
                                               else i_o = block - 128; ...
    """
    assert len({(kernel.threads, kernel.cluster) for kernel in kernels}) == 1
    end = blocks = sum(kernel.grid[0] for kernel in kernels)
    block, rest = symbol("block", 0, blocks - 1), tuple[nodes.Statement, ...]()
    for at, kernel in reversed([*enumerate(kernels)]):
        start = end - kernel.grid[0]
        number = partial(_with_block, block - sized(f"blocks{at}", start))
        body = nodes.rewritten(kernel.body, number)
        rest = (nodes.If(block.lt(sized(f"blocks{at + 1}", end)), body, rest),) if rest else body
        end = start
    return replace(
        kernels[0],
        parameters=_parameters(scheduled.part),
        body=(nodes.Let("block", None, nodes.Coordinate(ParallelType.BIDX)), *rest),
        grid=(blocks, kernels[0].grid[1]),
        smem_bytes=max(kernel.smem_bytes for kernel in kernels),
        wide_index=any(kernel.wide_index for kernel in kernels),
        work=sum(kernel.work for kernel in kernels),
        comment=str(scheduled.params),
        checks=tuple(check for kernel in kernels for check in kernel.checks),
    )


def _with_block(number: Scalar, statement: nodes.Statement) -> nodes.Statement:
    """The statement, with this number of the block instead of the hardware's."""
    if isinstance(statement, nodes.Let) and statement.value == nodes.Coordinate(ParallelType.BIDX):
        return replace(statement, value=number)
    return statement


def _parameters(part: Part) -> tuple[nodes.Parameter, ...]:
    shared = {name for pair in part.overwrites for name in pair}

    def parameter(name: str, kind: nodes.Kind) -> nodes.Parameter:
        view = part.tensors[name]
        if kind == "input" and view.by_value:
            return nodes.Parameter(name, view.dtype.compute, "scalar")
        reach = int(part.elements(name)) * view.dtype.bytes
        return nodes.Parameter(name, view.dtype, kind, name in shared, bytes=reach)

    inputs = (parameter(name, "input") for name in part.inputs)
    return (*inputs, *(parameter(name, "output") for name in part.outputs))


def _root_body(state: KernelState) -> tuple[nodes.Statement, ...]:
    """Coordinates, guards, and the nests inside them. A CPU walks blocks in a loop."""
    ctx, loops = state.ctx, state.ctx.loops.loops
    blocks = [a for a in ctx.root_loops if not loops[a.name].is_const]
    outer = Scope(frozenset())
    root = Scope(frozenset([ROOT]))
    if ctx.is_cpu:
        root = outer.child(ROOT, *(str(loops[a.name]) for a in blocks))
    for axis in () if ctx.is_cpu else blocks:
        # With a bound the compiler drops the tests of all steps of a loop but the last.
        is_bounded = axis.parallel is not ParallelType.BIDX and bool(ctx.loops.guards)
        below = axis.extent.value if is_bounded and axis.extent.is_known else None
        guards.define(root, loops[axis.name], nodes.Coordinate(axis.parallel, below))
    inner = guards.put_ready(state, root)
    if ctx.cluster > 1 and not ctx.scheduled.rows:
        accumulators.make_gates_of_sums(state, inner)
    if ctx.scheduled.rows:
        groups.put(state, inner)
    elif ctx.carried:
        _walk_rows(state, inner)
    else:
        _nests(state, inner)
    guards.close(inner, root)
    around = [(loops[a.name], a.extent, a.parallel) for a in blocks if ctx.is_cpu]
    return (*outer.statements, *loops_around(root.statements, around))


# ---- rows that one block or cluster walks


def _walk_rows(state: KernelState, scope: Scope) -> None:
    """The nests for each row that the block or cluster walks, then the sums over the rows: those of
    threads that walked different rows are combined, and the first of these threads stores."""
    ctx, variables = state.ctx, state.ctx.loops.loops
    for name in ctx.carried:
        accumulators.declare(ctx, scope, name)
    inner = scope.child(ROW, *(str(variables[axis.name]) for axis in ctx.row_loops))
    with state.inside():
        loops = [
            (variables[axis.name], _rows_of_block(state, inner, axis), axis.parallel)
            for axis in ctx.row_loops
        ]
        guarded = guards.put_ready(state, inner)
        _nests(state, guarded)
        guards.close(guarded, inner)
    scope.statements += loops_around(inner.statements, loops)
    rows = [a for a in ctx.root_loops if a.parallel.is_thread and not a.is_reduction]
    for name in ctx.carried if rows and ctx.threads[1] > 1 else ():
        scope.put(accumulators.join_threads(ctx, name, "y"))
    state.row_condition = ctx.first_of(rows)
    nests.put(state, scope, Work(results=ctx.carried))


def _rows_of_block(state: KernelState, scope: Scope, axis: IterDomain) -> Scalar:
    """The number of rows that a block walks. It stops at the last row if all its threads work
    on one row. Threads on several rows go on together, and mask the rows behind the last.
    """
    extent, variable = axis.extent, state.ctx.loops.loops[axis.name]
    if state.ctx.threads[1] > 1:
        return extent
    for guard in guards.take_ready(state, scope):
        if guard.growth(variable) == 1:
            extent = guards.clip(scope, guard, variable, extent)
        else:
            state.guards.append(guard)
    return extent


# ---- nests


def _nests(state: KernelState, scope: Scope) -> None:
    """The passes over the reduced axes, then the results that have only kept axes. One of the
    threads that share such a result stores it."""
    ctx, demand = state.ctx, state.ctx.demand
    buffers.declare(state, scope)
    full = [p for p in demand.roots if _in_nest(ctx, p) and not _is_carried(ctx, p)]
    count = 1 + max((demand.level[p] for p in full), default=-1)
    for number in range(count):
        _nest(state, scope, number)
    kept = [n for n, p in demand.results.items() if not _in_nest(ctx, p) and n not in ctx.carried]
    if kept:
        state.nest = count
        # All blocks of a cluster may store equal values, but not over the values' own operands.
        first = ctx.first_thread(of_cluster=bool(ctx.part.overwrites))
        nests.put_rows(state, scope, kept, conjunction([state.row_condition, first]))


def _in_nest(ctx: Context, point: Point) -> bool:
    return point in ctx.demand.operands.values() or ctx.is_full(point)


def _is_carried(ctx: Context, point: Point) -> bool:
    return point.name in ctx.carried and point.name in ctx.demand.results


def _nest(state: KernelState, scope: Scope, number: int) -> None:
    """One pass: accumulates the reductions and stores the full results of this level."""
    ctx, demand = state.ctx, state.ctx.demand
    scans = [expr.outputs[0] for expr in ctx.part.scans]
    here = {n: p for n, p in demand.operands.items() if demand.level[p] == number}
    reductions = [n for n in here if n not in scans]
    results = [
        n
        for n, p in demand.results.items()
        if ctx.is_full(p) and demand.level[p] == number and not _is_carried(ctx, p)
    ]
    state.nest = number
    declared = [name for name in reductions if name not in ctx.carried]
    for name in declared:
        accumulators.declare(ctx, scope, name)
    for name in scans:
        accumulators.declare_scan(ctx, scope, name)
    if ctx.scheduled.params.scheduler == Products.name:  # it reads nothing else before its wait
        _put_products(state, scope, reductions)
        return
    plain, looked_up = row_loads(ctx) if number == 0 else ([], [])
    values.put_all(state, plain, scope)
    if ctx.loops.edge is not None and number == 0 and any(b.vector for b in state.buffers.values()):
        # The loads of all steps come first: behind the first step's branches they would wait.
        nests.put(state, scope, Work())
    nests.put(state, scope, Work(reductions, results))
    values.put_all(state, looked_up, scope)
    for name in declared:
        accumulators.reduce_block(state, scope, name)


def _put_products(state: KernelState, scope: Scope, sums: Iterable[str]) -> None:
    """Sums of products by tensor cores, one call for all threads of a block; each gets its own.

    T8 = sum_of_products<Sum, 16, 32, 1>(T1, 0, 2048, 8192, 16*i_o, T0, 0, 2048, 8, 2048, s_f32);
    """
    ctx = state.ctx
    part, template = ctx.part, (*ctx.threads, ctx.scheduled.params.unroll)
    (block,) = (axis for axis in ctx.root_loops if axis.parallel is ParallelType.BIDX)
    length = const(size_of(part, ctx.scheduled.reduced))

    def arguments(of: Matrix) -> tuple[str | Scalar, ...]:
        return of.name, const(of.first), const(of.stride), const(size_of(part, of.axes))

    for name in sums:
        operands = matrices_of(part, part.producer[name])
        assert operands is not None
        rows, matrix = map(arguments, operands)
        begin = ctx.loops.loops[block.name] * COLUMNS
        call = nodes.Call(
            nodes.PRODUCTS, (*matrix, begin, *rows, length), (ctx.combines(name), *template),
            ctx.dtype_of(name),
        )  # fmt: skip
        scope.put(nodes.Set(ctx.accumulator(name), call, ctx.dtype_of(name)))


# ---- early loads of rows


def row_loads(ctx: Context) -> tuple[list[Point], list[Point]]:
    """The input elements that only a row's results read: (at known places, at looked-up places).

    They are loaded early, so that the loads run while reductions wait. A row of cross entropy ends
    with its target's element. Loaded where it is used, after the last reduction, it would cost two
    waits, one for its place and one for itself:

    T1_e = ld(T1, i)                       before the first pass, which waits for memory anyway
    for s: load x; max = max(max, x)
    T9_x = checked_index(T1_e, 50257)      a looked-up place: behind the loads of the pass, but
    T0_e = ld(T0, T9_x + i * 50257)        before the reduction over the block
    max = reduce(max)
    """
    demand, part = ctx.demand, ctx.part
    if ctx.is_cpu or ctx.lane_is_kept or not part.reductions:
        return [], []
    full = [*demand.operands.values(), *(p for p in demand.roots if ctx.is_full(p))]
    rows = [p for n, p in demand.results.items() if p not in full and n not in ctx.carried]
    read = [p for p in demand.reached(rows) if p.name in part.inputs and not ctx.is_full(p)]
    loaded = [p for p in read if not part.tensors[p.name].by_value]
    needs = {p: ctx.lookups(p) for p in loaded}
    known = [p for p in loaded if not any(_is_late(ctx, at) for at in needs[p])]
    return [p for p in known if not needs[p]], [p for p in known if needs[p]]


def _is_late(ctx: Context, element: Scalar) -> bool:
    """True if a place depends on a reduction, such as the position of a maximum."""
    names, seen = [str(element.args[0])], set[str]()
    while names:
        name = names.pop()
        expr = ctx.part.producer.get(name)
        if expr is None or name in seen:
            continue
        if expr.row.kind in (OpKind.REDUCTION, OpKind.SCAN):
            return True
        seen.add(name)
        names += names_of(expr)
    return any(_is_late(ctx, at) for part in element.parts for at in part.elements)


# ---- tiles


def _phases(state: KernelState, tile: Tile) -> list[nodes.Statement]:
    """The phases, each with its own loops. The first and the last are there if tiles need them.

    read:     for tile of T0, in T0's order:   T0_t[moved] = T0[...]          barrier
    compute:  for tile, in the schedule's:     T1[...] = relu(T0_t[computed])
    write:    for results in the other order, after a barrier:  T2[...] = T2_t[moved]
    """
    scheduled, body = state.ctx.scheduled, list[nodes.Statement]()
    loads, stores = [p.name for p in tile.loads], tile.stores
    for name in (*loads, *stores):
        body.append(state.shared.array(f"{name}_t", state.ctx.dtype_of(name), tile.elements))

    def put(what: str, ctx: Context, read: Iterable[Point], written: Iterable[str]) -> None:
        """Puts a phase, which reads points from tiles and writes values to tiles."""
        at = tile.computed if ctx is state.ctx else tile.moved
        windows = {name: Window(f"{name}_t", at) for name in written}
        phase = KernelState(ctx, windows, state.shared, state.checks)
        for point in read:
            buffers.keep(phase, ctx.at_loops(point), Window(f"{point.name}_t", at))
        barrier = [nodes.Call("sync_threads")] if isinstance(body[-1], nodes.Block) else []
        body.extend([*barrier, nodes.Block(what, _root_body(phase))])
        state.largest_index = max(state.largest_index, phase.largest_index)

    moving = replace(scheduled, transforms=tile.transforms)  # the tile's own loops
    if loads:
        put("read", Context(moving, tile.loads), (), loads)
    put("compute", state.ctx, tile.loads, stores)
    if stores:
        results = [scheduled.part.demand.results[name] for name in stores]
        put("write", Context(moving, results), results, ())
    return body
