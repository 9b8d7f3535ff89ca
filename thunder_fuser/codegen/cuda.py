# SPDX-License-Identifier: Apache-2.0
"""Kernel -> CUDA C++: blocks and threads are the hardware's, short loops are unrolled."""

from __future__ import annotations

from thunder_fuser.codegen.cfamily import CPrinter
from thunder_fuser.codegen.source import Dialect, KernelSource
from thunder_fuser.lower.kernel import For, Kernel

# Loops up to this length are unrolled whole, so that arrays they index stay in registers.
MAX_UNROLL = 64


def emit_cuda(kernel: Kernel) -> KernelSource:
    """The CUDA source of a kernel."""
    return CudaPrinter(kernel).source()


class CudaPrinter(CPrinter):
    """The CUDA dialect."""

    dialect: Dialect = "cuda"

    def head(self) -> list[str]:
        threads = self.kernel.threads[0] * self.kernel.threads[1]
        arguments = ",\n    ".join(self.parameters())
        return [
            f"// {self.kernel.comment}",
            f'extern "C" __global__ void __launch_bounds__({threads})',
            f"{self.kernel.name}(\n    {arguments}) {{",
        ]

    def loop_head(self, loop: For) -> list[str]:
        extent = loop.extent
        unroll = extent.is_const and extent.value <= MAX_UNROLL
        pragma = ["#pragma unroll"] if unroll else ["#pragma unroll 4"]
        kind, name = self.index_type, loop.variable
        head = f"for ({kind} {name} = 0; {name} < {self.index(extent)}; ++{name}) {{"
        return [*pragma, head]
