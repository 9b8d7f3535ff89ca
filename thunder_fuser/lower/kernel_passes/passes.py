# SPDX-License-Identifier: Apache-2.0
"""Kernel -> Kernel: the passes that need a whole kernel, in the order of the lists below.

On a GPU each thread reduces into its own variables, and the threads then combine them. On a CPU the
compiler is told what simd loops reduce into. Between passes a kernel is legal (verify.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower import kernel as nodes
from thunder_fuser.lower.kernel_passes.branches import branch_at_choices
from thunder_fuser.lower.scope import SharedMemory
from thunder_fuser.lower.size_arguments import SHORT_LOOP

# {device function: the axis of the threads that exchange values in it}
EXCHANGES = {"reduce_x": "x", "scan_x": "x", "reduce_y": "y", nodes.PRODUCTS: "xy"}
PRODUCT_SUMS = 8 * 20  # of a warp; as in sum_of_products.h: 8 rows of 16, each with 4 unused behind
SEVERAL = 4  # the unroll factor of a loop of unknown length
REGISTERS = 1 << 16  # of an SM, which its threads share
MOST_REGISTERS = 128  # of a thread, for the values that it loads


def declare_scratch(kernel: nodes.Kernel) -> nodes.Kernel:
    """Declares the shared memory in which threads exchange values, and passes it to the calls.

    T8 = reduce_x<Sum, 128, 2>(T8)  ->  const Shared<float> scratch_f32(0, 8);  first in the kernel
                                        T8 = reduce_x<Sum, 128, 2>(T8, scratch_f32)

    Calls of one type and axis share it, because each begins with a barrier. It is placed behind the
    kernel's other arrays.
    """
    shared, scratch = SharedMemory(kernel.smem_bytes), dict[tuple[DataType, str], nodes.Array]()

    def passed(call: nodes.Call) -> nodes.Call:
        key, count = (call.dtype, EXCHANGES[call.function]), _exchanged(call)
        if key not in scratch:
            others = sum(dtype is call.dtype for dtype, _ in scratch)
            name = f"scratch_{call.dtype.short}" + f"_{others}" * bool(others)
            scratch[key] = shared.array(name, call.dtype, count)
        assert count <= scratch[key].count
        return replace(call, arguments=(*call.arguments, scratch[key].name))

    def change(s: nodes.Statement) -> nodes.Statement:
        if nodes.called(s) not in EXCHANGES:
            return s
        if isinstance(s, nodes.Set) and isinstance(s.value, nodes.Call):
            return replace(s, value=passed(s.value))
        return passed(s) if isinstance(s, nodes.Call) else s

    body = nodes.rewritten(kernel.body, change)
    arrays = reversed(scratch.values())
    return replace(kernel, body=(*arrays, *body), smem_bytes=shared.bytes)


def _exchanged(call: nodes.Call) -> int:
    """The number of elements: along y all elements of all threads; along x one for each warp, and
    none for a single warp; for products, the sums of each warp."""
    _, x, y, *count = (int(n) if isinstance(n, int) else 0 for n in call.template)
    if EXCHANGES[call.function] == "y":
        return x * y * count[0]
    if EXCHANGES[call.function] == "xy":
        return x * y // 32 * PRODUCT_SUMS
    return y * x // 32 if x > 32 else 0


def unroll(kernel: nodes.Kernel) -> nodes.Kernel:
    """Gives every loop of a GPU an unroll factor.

    for (j_o_o < 4) { T8 += ...; }      ->   #pragma unroll      a short loop: all iterations
    for (j_o_o < size0) { T8 += ...; }  ->   #pragma unroll 4    the loads of four overlap
                                             #pragma unroll 2    if more would not fit in registers
    for (i < 64) { ...; reduce_x; }     ->   #pragma unroll 1    it has a barrier
    """

    def change(s: nodes.Statement) -> nodes.Statement:
        return replace(s, unroll=_factor(s, registers)) if isinstance(s, nodes.For) else s

    registers = min(REGISTERS // prod(kernel.threads), MOST_REGISTERS)
    return replace(kernel, body=nodes.rewritten(kernel.body, change))


def _factor(loop: nodes.For, registers: int) -> int:
    if loop.parallel in (ParallelType.UNROLL, ParallelType.VECTORIZE):
        return nodes.ALL
    if any(nodes.called(s) in nodes.REDUCES for s in nodes.statements_in(loop.body)):
        return 1
    if loop.extent.is_known and loop.extent.value <= SHORT_LOOP:
        return nodes.ALL
    return max(1, min(SEVERAL, registers // max(1, _loaded(loop.body))))


def _loaded(statements: tuple[nodes.Statement, ...]) -> int:
    """The registers (of four bytes) that an iteration loads; of two branches the larger counts."""
    total = 0
    for s in statements:
        if isinstance(s, nodes.Let) and isinstance(s.value, nodes.Load):
            total += -(-s.value.width * s.value.dtype.bytes // 4)
        elif isinstance(s, nodes.If):
            total += max(_loaded(s.body), _loaded(s.otherwise))
        elif isinstance(s, nodes.Block):
            total += _loaded(s.body)
    return total


def collect_accumulators(kernel: nodes.Kernel) -> nodes.Kernel:
    """Lists in each simd loop of a CPU what it reduces into, so that the compiler may reorder sums.

    double T8_a = 0.0;                       double T8_a = 0.0;
    for (j) { T8_a += ...; }            ->   #pragma omp simd reduction(sum_f64 : T8_a)
                                             for (j) { T8_a += ...; }

    A stream, which keeps the order, gets the values of one piece of the loop after the other
    (codegen/cpu.py).
    """
    inside = list(nodes.statements_in(kernel.body))
    variables = {s.name: s for s in inside if isinstance(s, nodes.Variable)}
    streams = {f"{s.name}_v": s.name for s in inside if isinstance(s, nodes.Stream)}

    def change(loop: nodes.Statement) -> nodes.Statement:
        if not isinstance(loop, nodes.For) or loop.parallel is not ParallelType.VECTORIZE:
            return loop
        work = list(nodes.statements_in(loop.body))
        declared = {s.name for s in work if isinstance(s, nodes.Variable)}
        sums = {s.target: s.op for s in work if isinstance(s, nodes.Accumulate)}
        filled = [
            s.target.array
            for s in work
            if isinstance(s, nodes.Set) and isinstance(s.target, nodes.Lane)
        ]
        return replace(
            loop,
            accumulators=tuple(
                (op, variables[name])
                for name, op in sums.items()
                if isinstance(name, str) and name not in declared
            ),
            streams=tuple(streams[name] for name in filled if name in streams),
        )

    return replace(kernel, body=nodes.rewritten(kernel.body, change))


GPU_PASSES: tuple[Callable[[nodes.Kernel], nodes.Kernel], ...] = (
    branch_at_choices, declare_scratch, unroll,
)  # fmt: skip
CPU_PASSES: tuple[Callable[[nodes.Kernel], nodes.Kernel], ...] = (
    branch_at_choices, collect_accumulators,
)  # fmt: skip


def run_passes(kernel: nodes.Kernel, is_cpu: bool) -> nodes.Kernel:
    """Runs the passes for a target."""
    for run in CPU_PASSES if is_cpu else GPU_PASSES:
        kernel = run(kernel)
    return kernel
