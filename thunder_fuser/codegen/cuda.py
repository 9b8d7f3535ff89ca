# SPDX-License-Identifier: Apache-2.0
"""Kernel -> CUDA C++: blocks and threads are the hardware's, short loops are unrolled."""

from __future__ import annotations

from thunder_fuser.codegen.cfamily import CPrinter
from thunder_fuser.codegen.source import Dialect, KernelSource
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.sized import Sized
from thunder_fuser.lower.kernel import REDUCES, For, If, Kernel, Statement, called
from thunder_fuser.lower.sizes import SHORT_LOOP


def emit_cuda(kernel: Kernel) -> KernelSource:
    """The CUDA source of a kernel."""
    return CudaPrinter(kernel).source()


class CudaPrinter(CPrinter):
    """The CUDA dialect."""

    dialect: Dialect = "cuda"

    def head(self) -> list[str]:
        bounds = f"{self.kernel.threads[0] * self.kernel.threads[1]}"
        if self.kernel.blocks > 1:
            bounds += f", {self.kernel.blocks}"  # the compiler then takes no more registers
        arguments = ",\n    ".join(self.parameters())
        cluster = self.kernel.cluster
        dims = f" __cluster_dims__(1, {cluster}, 1)" if cluster > 1 else ""
        return [
            f"// {self.kernel.comment}",
            f'extern "C" __global__ void{dims} __launch_bounds__({bounds})',
            f"{self.kernel.name}(\n    {arguments}) {{",
        ]

    def loop_head(self, loop: For) -> list[str]:
        whole = loop.parallel in (ParallelType.UNROLL, ParallelType.VECTORIZE)
        known = loop.extent.is_const and type(loop.extent.value) is not Sized
        short = known and loop.extent.value <= SHORT_LOOP
        pragma = "#pragma unroll" if whole or short else "#pragma unroll 4"
        if not whole and _has_barrier(loop.body):
            pragma = "#pragma unroll 1"  # threads wait for each other: nothing to overlap
        kind, name = self.index_type, loop.variable
        head = f"for ({kind} {name} = 0; {name} < {self.index(loop.extent)}; ++{name}) {{"
        return [pragma, head]


def _has_barrier(statements: tuple[Statement, ...]) -> bool:
    return any(
        called(s) in REDUCES or (isinstance(s, (For, If)) and _has_barrier(s.body))
        for s in statements
    )
