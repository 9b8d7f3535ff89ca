# SPDX-License-Identifier: Apache-2.0
"""Kernel -> C++ for the CPU: blocks are OpenMP iterations, a block one thread, lanes simd."""

from __future__ import annotations

from thunder_fuser.codegen.cfamily import C_TYPES, REDUCERS, CPrinter
from thunder_fuser.codegen.source import Dialect, KernelSource
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.kernel import For, Kernel

# Elements below which starting threads costs more than it saves (an OpenMP region takes 1-5 us).
PARALLEL_WORK = 32768


def emit_cpu(kernel: Kernel) -> KernelSource:
    """The C++ source of a kernel: `void NAME(..., int threads)`."""
    return CpuPrinter(kernel).source()


class CpuPrinter(CPrinter):
    """The CPU dialect. Indices are 64 bits wide: there is nothing to save."""

    dialect: Dialect = "cpu"

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.index_type = "i64"

    def head(self) -> list[str]:
        arguments = ",\n    ".join([*self.parameters(), "int threads"])
        reductions = sorted({a[1:] for a in self._accumulators(self.kernel.body)}, key=str)
        return [
            *(self._declare_reduction(op, dtype) for op, dtype in reductions),
            f"// {self.kernel.comment}",
            f'extern "C" void {self.kernel.name}(\n    {arguments}) {{',
        ]

    def _accumulators(self, statements: tuple[object, ...]) -> list[tuple[str, str, DataType]]:
        found: list[tuple[str, str, DataType]] = []
        for statement in statements:
            if isinstance(statement, For):
                found += statement.accumulators
            found += self._accumulators(getattr(statement, "body", ()))
        return found

    def _declare_reduction(self, op: str, dtype: DataType) -> str:
        """OpenMP's own max drops NaN, so each reduction is declared with the prelude's operator."""
        kind, apply = C_TYPES[dtype], f"{REDUCERS[op]}::apply"
        return (
            f"#pragma omp declare reduction({_reduction_name(op, dtype)} : {kind} : "
            f"omp_out = {apply}(omp_out, omp_in)) initializer(omp_priv = omp_orig)"
        )

    def loop_head(self, loop: For) -> list[str]:
        name, extent = loop.variable, self.index(loop.extent)
        head = f"for (i64 {name} = 0; {name} < {extent}; ++{name}) {{"
        if loop.parallel is ParallelType.BIDX:
            enough = "true" if self.kernel.work > PARALLEL_WORK else "false"
            return [f"#pragma omp parallel for num_threads(threads) if ({enough})", head]
        if loop.parallel is not ParallelType.VECTORIZE:
            return [head]
        clauses = [
            f"reduction({_reduction_name(op, dtype)} : {variable})"
            for variable, op, dtype in loop.accumulators
        ]
        return [" ".join(["#pragma omp simd", *clauses]), head]


def _reduction_name(op: str, dtype: DataType) -> str:
    return f"{op}_{dtype.short}"
