# SPDX-License-Identifier: Apache-2.0
"""What it takes to make a value again, and how long a device needs for it.

A kernel that waits for memory computes meanwhile: half of what the arithmetic units could do in
that time is taken to be free for it, the other half is what the kernel does anyway. Operations are
counted in the table's units (ir/op_table.py: an addition is 1, an exponential 8).
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.target import Target

_HIDDEN = 2  # operations a kernel does in the time of one, being held up by memory
_LANES, _GPU_CLOCK = 128, 1.7e9
# What it takes to saturate a CPU's memory, whatever the number of its cores: a policy must not
# depend on that.
_CORES, _CPU_CLOCK = 2, 3e9


@dataclass(frozen=True, slots=True)
class Cost:
    """moved: bytes written and read; operations: of arithmetic, over all elements."""

    moved: int = 0
    operations: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.moved + other.moved, self.operations + other.operations)


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes and operations a second."""

    bytes: float
    operations: float

    @staticmethod
    def of(target: Target) -> Machine:
        """The rates of a device."""
        if target.is_cpu:
            lanes = _CORES * target.simd_bytes // 4
            return Machine(target.bandwidth_bytes_per_s, lanes * _CPU_CLOCK)
        return Machine(target.bandwidth_bytes_per_s, target.sm_count * _LANES * _GPU_CLOCK)

    def time(self, cost: Cost) -> int:
        """Femtoseconds in kernels that wait for memory."""
        computing = cost.operations / (_HIDDEN * self.operations)
        return round(1e15 * (cost.moved / self.bytes + computing))
