# SPDX-License-Identifier: Apache-2.0
"""Kernel -> CUDA C++: blocks and threads are the hardware's, and short loops are unrolled."""

from __future__ import annotations

from thunder_fuser.codegen.cfamily import CPrinter
from thunder_fuser.codegen.source import Dialect, KernelSource
from thunder_fuser.lower.kernel import ALL, For, Kernel


def emit_cuda(kernel: Kernel) -> KernelSource:
    """The CUDA source of a kernel."""
    return CudaPrinter(kernel).source()


class CudaPrinter(CPrinter):
    """The CUDA dialect."""

    dialect: Dialect = "cuda"

    def head(self) -> list[str]:
        bounds = f"{self.kernel.threads[0] * self.kernel.threads[1]}"
        if self.kernel.blocks > 1:
            bounds += f", {self.kernel.blocks}"  # limits the registers that the compiler takes
        arguments = ",\n    ".join(self.parameters())
        reads_ahead = any(p.ahead for p in self.kernel.parameters)
        cluster = self.kernel.cluster
        dims = f" __cluster_dims__(1, {cluster}, 1)" if cluster > 1 else ""
        return [
            f"// {self.kernel.comment}",
            f'extern "C" __global__ void{dims} __launch_bounds__({bounds})',
            f"{self.kernel.name}(\n    {arguments}) {{",
            *["  next_kernel_may_start();"] * self.kernel.lets_next_start,
            *["  after_earlier_kernels();"] * (self.kernel.early and not reads_ahead),
            *(f"  {p.name} = streamed({p.name});" for p in self.kernel.parameters if p.streamed),
        ]

    def loop_head(self, loop: For) -> list[str]:
        kind, name = self.index_type, loop.variable
        return [
            "#pragma unroll" if loop.unroll == ALL else f"#pragma unroll {loop.unroll}",
            f"for ({kind} {name} = 0; {name} < {self.index(loop.extent)}; ++{name}) {{",
        ]
