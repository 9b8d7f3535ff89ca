# SPDX-License-Identifier: Apache-2.0
"""Kernel -> Kernel: what follows from a whole kernel, in the order of the lists below.

A GPU's loops reduce into variables of a thread, which the threads then join; a CPU's compiler is
told what its simd loops reduce into. Between passes a kernel is legal (lower/verify.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.kernel import (
    ALL,
    REDUCES,
    Accumulate,
    Accumulator,
    Array,
    Call,
    For,
    If,
    Kernel,
    Lane,
    Set,
    Statement,
    Stream,
    Variable,
    called,
    rewritten,
    statements_in,
)
from thunder_fuser.lower.scope import SharedMemory
from thunder_fuser.lower.size_arguments import SHORT_LOOP

EXCHANGES = {"reduce_x": "x", "scan_x": "x", "reduce_y": "y"}  # the axis of the threads that do
SEVERAL = 4  # turns of a loop of unknown length


def declare_scratch(kernel: Kernel) -> Kernel:
    """Declares shared memory for what threads exchange when they reduce or scan, and passes it.

    T8 = reduce_x<Sum, 128, 2>(T8)  ->  const Shared<float> scratch_f32(0, 8);  first in the kernel
                                        T8 = reduce_x<Sum, 128, 2>(T8, scratch_f32)

    Calls of one type and axis share it, for each begins with a barrier. It lies behind the arrays
    that the kernel has.
    """
    shared, found = SharedMemory(kernel.smem_bytes), dict[tuple[DataType, str], Array]()

    def passed(call: Call) -> Call:
        key, count = (call.dtype, EXCHANGES[call.function]), _exchanged(call)
        if key not in found:
            others = sum(dtype is call.dtype for dtype, _ in found)
            name = f"scratch_{call.dtype.short}" + f"_{others}" * bool(others)
            found[key] = shared.array(name, call.dtype, count)
        assert count <= found[key].count
        return replace(call, arguments=(*call.arguments, found[key].name))

    def change(s: Statement) -> Statement:
        if called(s) not in EXCHANGES:
            return s
        if isinstance(s, Set) and isinstance(s.value, Call):
            return replace(s, value=passed(s.value))
        return passed(s) if isinstance(s, Call) else s

    body = rewritten(kernel.body, change)
    arrays = reversed(found.values())
    return replace(kernel, body=(*arrays, *body), smem_bytes=shared.bytes)


def _exchanged(call: Call) -> int:
    """Elements of all threads along y, as each adds its own; along x one a warp, if several."""
    _, x, y, *count = (int(n) if isinstance(n, int) else 0 for n in call.template)
    if EXCHANGES[call.function] == "y":
        return x * y * count[0]
    return y * x // 32 if x > 32 else 0


def unroll(kernel: Kernel) -> Kernel:
    """Gives every loop of a GPU the number of turns that are written as one.

    for (j_o_o < 4) { T8 += ...; }      ->   #pragma unroll      a short loop: all of them
    for (j_o_o < size0) { T8 += ...; }  ->   #pragma unroll 4    their loads are under way together
    for (i < 64) { ...; reduce_x; }     ->   #pragma unroll 1    threads wait for each other in it
    """

    def change(s: Statement) -> Statement:
        return replace(s, unroll=_turns(s)) if isinstance(s, For) else s

    return replace(kernel, body=rewritten(kernel.body, change))


def _turns(loop: For) -> int:
    if loop.parallel in (ParallelType.UNROLL, ParallelType.VECTORIZE):
        return ALL
    if _reduces(loop.body):
        return 1
    return ALL if loop.extent.is_known and loop.extent.value <= SHORT_LOOP else SEVERAL


def _reduces(statements: tuple[Statement, ...]) -> bool:
    return any(
        called(s) in REDUCES or (isinstance(s, For | If) and _reduces(s.body)) for s in statements
    )


def collect_accumulators(kernel: Kernel) -> Kernel:
    """Lists in each simd loop of a CPU what it reduces into: its compiler may then reorder sums.

    double T8_a = 0.0;                       double T8_a = 0.0;
    for (j) { T8_a += ...; }            ->   #pragma omp simd reduction(sum_f64 : T8_a)
                                             for (j) { T8_a += ...; }

    A stream, whose order is kept, gets the values of a piece of the loop at a time
    (codegen/cpu.py).
    """
    inside = list(statements_in(kernel.body))
    variables = {s.name: s for s in inside if isinstance(s, Variable)}
    streams = {f"{s.name}_v": s.name for s in inside if isinstance(s, Stream)}

    def change(loop: Statement) -> Statement:
        if not isinstance(loop, For) or loop.parallel is not ParallelType.VECTORIZE:
            return loop
        work = list(statements_in(loop.body))
        own = {s.name for s in work if isinstance(s, Variable)}
        sums = {s.target: s.op for s in work if isinstance(s, Accumulate)}
        filled = [s.target.array for s in work if isinstance(s, Set) and isinstance(s.target, Lane)]
        return replace(
            loop,
            accumulators=tuple(
                Accumulator(name, op, variables[name].dtype, variables[name].init)
                for name, op in sums.items()
                if isinstance(name, str) and name not in own
            ),
            streams=tuple(streams[name] for name in filled if name in streams),
        )

    return replace(kernel, body=rewritten(kernel.body, change))


GPU_PASSES: tuple[Callable[[Kernel], Kernel], ...] = (declare_scratch, unroll)
CPU_PASSES: tuple[Callable[[Kernel], Kernel], ...] = (collect_accumulators,)


def run_passes(kernel: Kernel, is_cpu: bool) -> Kernel:
    """Runs the passes for a target."""
    for one in CPU_PASSES if is_cpu else GPU_PASSES:
        kernel = one(kernel)
    return kernel
