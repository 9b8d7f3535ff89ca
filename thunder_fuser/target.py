# SPDX-License-Identifier: Apache-2.0
"""A device as data, so that a laptop can plan for an H200.

The numbers are the vendor's, except `bytes_in_flight_per_sm`: the bytes that one SM must have
requested to saturate memory. It is 48 KiB on H200, 32 on H100 and 16 on A100, from CUB's tuning
tables of DeviceTransform.

The segmenter uses two costs. `launch_seconds` is the time from the end of one kernel to the full
speed of the next. `ops_per_byte` is the number of simple float operations in the time of one byte
from memory. On the H200 they are measured with `python -m benchmarks prices`: 3.1 us a launch in a
stream, 1.9 us in a graph, 25.9e12 operations and 4.3e12 bytes a second. Those of the H100 are
derived from the H200's, and the others are estimates.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from thunder_fuser.errors import TargetError


@dataclass(frozen=True, slots=True)
class Target:
    """Facts about a device. kind: cuda or cpu. emulated: it runs CUDA source on the CPU.

    max_cluster: the most blocks that can access each other's shared memory (sm_90: 8 portably, 16
    on Hopper).
    """

    kind: str
    name: str
    arch: str = ""
    sm_count: int = 1
    max_threads_per_sm: int = 1
    smem_bytes_per_block: int = 0
    max_cluster: int = 1
    bandwidth_bytes_per_s: float = 0.0
    bytes_in_flight_per_sm: int = 0
    simd_bytes: int = 16
    emulated: bool = False
    launch_seconds: float = 2.4e-6
    ops_per_byte: float = 7.0

    @property
    def launch_bytes(self) -> int:
        """The cost of one more segment: the bytes that memory transfers in the time of a launch."""
        return int(self.launch_seconds * self.bandwidth_bytes_per_s)

    @property
    def has_fast_doubles(self) -> bool:
        """True if a GPU computes with Double at half of Float's speed: A100, H100, H200, B200."""
        return self.arch in ("sm_80", "sm_90a", "sm_100a")

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"


def _hopper(
    name: str, bandwidth: float, in_flight: int, ops_per_byte: float, emulated: bool = False
) -> Target:
    return Target(
        "cuda", name, "sm_90a", sm_count=132, max_threads_per_sm=2048,
        smem_bytes_per_block=227 * 1024, max_cluster=16, bandwidth_bytes_per_s=bandwidth,
        bytes_in_flight_per_sm=in_flight, emulated=emulated, ops_per_byte=ops_per_byte,
    )  # fmt: skip


H200 = _hopper("h200", 4.8e12, 48 * 1024, 6.1)
H100 = _hopper("h100", 3.35e12, 32 * 1024, 8.7)
A100 = Target(
    "cuda", "a100", "sm_80", sm_count=108, max_threads_per_sm=2048,
    smem_bytes_per_block=163 * 1024, bandwidth_bytes_per_s=2.0e12,
    bytes_in_flight_per_sm=16 * 1024, ops_per_byte=5.0,
)  # fmt: skip
EMULATOR = _hopper("emulator", 4.8e12, 48 * 1024, 6.1, emulated=True)
CPU = Target(
    "cpu", "cpu", "native", sm_count=os.cpu_count() or 1, simd_bytes=64,
    bandwidth_bytes_per_s=4e10, launch_seconds=5e-6, ops_per_byte=4.0,
)  # fmt: skip

TARGETS = {target.name: target for target in (H200, H100, A100, EMULATOR, CPU)}


def named(target: str | Target) -> Target:
    """A Target by name, or the Target itself."""
    if isinstance(target, Target):
        return target
    if target not in TARGETS:
        raise TargetError("target", expected=f"one of {', '.join(TARGETS)}", got=repr(target))
    return TARGETS[target]
