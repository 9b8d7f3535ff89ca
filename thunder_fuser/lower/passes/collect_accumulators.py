# SPDX-License-Identifier: Apache-2.0
"""What each simd loop of a CPU reduces into: its compiler is told, and may then reorder sums.

double T8_a = 0.0;                       double T8_a = 0.0;
for (j) { T8_a += ...; }            ->   #pragma omp simd reduction(sum_f64 : T8_a)
                                         for (j) { T8_a += ...; }

A stream, whose order is kept, gets the values of a piece of the loop at a time (codegen/cpu.py).
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.lower.kernel import (
    Accumulate,
    Accumulator,
    For,
    Kernel,
    Lane,
    Set,
    Statement,
    Stream,
    Variable,
    rewritten,
    statements_in,
)


def collect_accumulators(kernel: Kernel) -> Kernel:
    """Lists in every simd loop the variables and streams that it reduces into."""
    inside = list(statements_in(kernel.body))
    variables = {s.name: s for s in inside if isinstance(s, Variable)}
    streams = {f"{s.name}_v": s.name for s in inside if isinstance(s, Stream)}

    def change(statement: Statement) -> Statement:
        if not isinstance(statement, For) or statement.parallel is not ParallelType.VECTORIZE:
            return statement
        work = list(statements_in(statement.body))
        own = {s.name for s in work if isinstance(s, Variable)}
        sums = {s.target: s.op for s in work if isinstance(s, Accumulate)}
        filled = [s.target.array for s in work if isinstance(s, Set) and isinstance(s.target, Lane)]
        return replace(
            statement,
            accumulators=tuple(
                Accumulator(name, op, variables[name].dtype, variables[name].init)
                for name, op in sums.items()
                if isinstance(name, str) and name not in own
            ),
            streams=tuple(streams[name] for name in filled if name in streams),
        )

    return replace(kernel, body=rewritten(kernel.body, change))
