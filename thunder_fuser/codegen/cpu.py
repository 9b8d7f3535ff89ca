# SPDX-License-Identifier: Apache-2.0
"""Kernel -> C++ for the CPU: blocks are OpenMP iterations, a block one thread, lanes simd."""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.codegen.cfamily import REDUCERS, CPrinter, indented
from thunder_fuser.codegen.literals import C_TYPES, literal_text
from thunder_fuser.codegen.source import Dialect, KernelSource
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.lower.kernel import For, Kernel, Variable, statements_in

# Elements below which starting threads costs more than it saves (an OpenMP region takes 1-5 us).
PARALLEL_WORK = 32768


def emit_cpu(kernel: Kernel) -> KernelSource:
    """The C++ source of a kernel: `void NAME(..., int threads)`.

    A kernel with checks also takes `i64* failed` before the threads. It writes there the number of
    a check that failed, and the value that failed it.
    """
    return replace(CpuPrinter(kernel).source(), threaded=kernel.work > PARALLEL_WORK)


class CpuPrinter(CPrinter):
    """The CPU dialect. Indices have 64 bits, since 32 bits are no faster."""

    dialect: Dialect = "cpu"

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.index_type = "i64"

    def head(self) -> list[str]:
        failed = ["i64* __restrict__ failed"] if self.kernel.checks else []
        arguments = ",\n    ".join([*self.parameters(), *failed, "int threads"])
        loops = (s for s in statements_in(self.kernel.body) if isinstance(s, For))
        declared = {_reduction(*reduction) for loop in loops for reduction in loop.accumulators}
        return [
            *sorted(declared),
            f"// {self.kernel.comment}",
            f'extern "C" void {self.kernel.name}(\n    {arguments}) {{',
        ]

    def loop(self, loop: For) -> list[str]:
        return self._streamed(loop) if loop.streams else super().loop(loop)

    def _streamed(self, loop: For) -> list[str]:
        """The loop in pieces. A piece ends when the streams' buffers, all equally full, are full.

        for (i64 j_b = 0, j_e; j_b < N; j_b = j_e) {
          j_e = T2_s.end(j_b, N);
          float* __restrict__ T2_s_v = T2_s.from(j_b);
          #pragma omp simd
          for (i64 j = j_b; j < j_e; ++j) { ... T2_s_v[j] = T1; }
          T2_s.took(j_e - j_b);
        }
        """
        name, extent = loop.variable, self.index(loop.extent)
        begin, end = f"{name}_b", f"{name}_e"
        piece = [
            f"{end} = {loop.streams[0]}.end({begin}, {extent});",
            *(f"auto* __restrict__ {s}_v = {s}.from({begin});" for s in loop.streams),
            self._simd(loop),
            f"for (i64 {name} = {begin}; {name} < {end}; ++{name}) {{",
            *indented(self.block(loop.body)),
            "}",
            *(f"{s}.took({end} - {begin});" for s in loop.streams),
        ]
        head = f"for (i64 {begin} = 0, {end}; {begin} < {extent}; {begin} = {end}) {{"
        return [head, *indented(piece), "}"]

    def loop_head(self, loop: For) -> list[str]:
        name, extent = loop.variable, self.index(loop.extent)
        head = f"for (i64 {name} = 0; {name} < {extent}; ++{name}) {{"
        if loop.parallel.is_block:
            inner = loop.body[0]
            inside = len(loop.body) == 1 and isinstance(inner, For) and inner.parallel.is_block
            if loop.parallel is ParallelType.BIDY and self.kernel.grid[0] > 1:
                return [head]  # the outer loop's collapse(2) includes it
            both = " collapse(2)" if inside else ""
            return [f"#pragma omp parallel for{both} num_threads(threads) if (threads > 1)", head]
        return [self._simd(loop), head] if loop.parallel is ParallelType.VECTORIZE else [head]

    def _simd(self, loop: For) -> str:
        clauses = [f"reduction({op}_{v.dtype.short} : {v.name})" for op, v in loop.accumulators]
        return " ".join(["#pragma omp simd", *clauses])



def _reduction(op: str, into: Variable) -> str:
    """OpenMP's own max drops NaN, so each reduction is declared with the prelude's operator."""
    apply, init = f"{REDUCERS[op]}::apply", literal_text(into.init, into.dtype)
    return (
        f"#pragma omp declare reduction({op}_{into.dtype.short} : {C_TYPES[into.dtype]} : "
        f"omp_out = {apply}(omp_out, omp_in)) initializer(omp_priv = {init})"
    )
