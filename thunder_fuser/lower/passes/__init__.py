# SPDX-License-Identifier: Apache-2.0
"""Kernel -> Kernel: what follows from a whole kernel. One file a pass, in this order.

A GPU's loops reduce into variables of a thread, which the threads then join; a CPU's compiler is
told what its simd loops reduce into. Between passes a kernel is legal (lower/verify.py).
"""

from __future__ import annotations

from collections.abc import Callable

from thunder_fuser.lower.kernel import Kernel
from thunder_fuser.lower.passes.collect_accumulators import collect_accumulators
from thunder_fuser.lower.passes.declare_scratch import declare_scratch
from thunder_fuser.lower.passes.unroll import unroll

KernelPass = Callable[[Kernel], Kernel]

GPU_PASSES: tuple[KernelPass, ...] = (declare_scratch, unroll)
CPU_PASSES: tuple[KernelPass, ...] = (collect_accumulators,)


def run_passes(kernel: Kernel, is_cpu: bool) -> Kernel:
    """Runs the passes for a target."""
    for one in CPU_PASSES if is_cpu else GPU_PASSES:
        kernel = one(kernel)
    return kernel
