# SPDX-License-Identifier: Apache-2.0
"""Shared memory for what threads of a block exchange when they reduce or scan.

T8 = reduce_x<Sum, 128, 2>(T8)   ->   const Shared<float> scratch_f32(0, 8);   first in the kernel
                                      T8 = reduce_x<Sum, 128, 2>(T8, scratch_f32)

Calls of one type and axis share it, for each begins with a barrier. It lies behind the arrays that
the kernel has.
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.kernel import Array, Call, Kernel, Set, Statement, called, rewritten
from thunder_fuser.lower.shared import SharedMemory

AXES = {"reduce_x": "x", "scan_x": "x", "reduce_y": "y"}


def declare_scratch(kernel: Kernel) -> Kernel:
    """Declares scratch for every call that needs it, and passes it."""
    shared, found = SharedMemory(kernel.smem_bytes), dict[tuple[DataType, str], Array]()

    def passed(call: Call) -> Call:
        key = call.dtype, AXES[call.function]
        if key not in found:
            others = sum(dtype is call.dtype for dtype, _ in found)
            name = f"scratch_{call.dtype.short}" + f"_{others}" * bool(others)
            found[key] = shared.array(name, call.dtype, _elements(call))
        assert _elements(call) <= found[key].count
        return replace(call, arguments=(*call.arguments, found[key].name))

    def change(s: Statement) -> Statement:
        if called(s) not in AXES:
            return s
        if isinstance(s, Set) and isinstance(s.value, Call):
            return replace(s, value=passed(s.value))
        return passed(s) if isinstance(s, Call) else s

    body = rewritten(kernel.body, change)
    arrays = reversed(found.values())
    return replace(kernel, body=(*arrays, *body), smem_bytes=shared.bytes)


def _elements(call: Call) -> int:
    """Of all threads along y, as each adds its own; along x, one a warp, if there are several."""
    _, x, y, *count = (int(n) if isinstance(n, int) else 0 for n in call.template)
    if AXES[call.function] == "y":
        return x * y * count[0]
    return y * x // 32 if x > 32 else 0
