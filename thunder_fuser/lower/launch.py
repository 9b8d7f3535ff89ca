# SPDX-License-Identifier: Apache-2.0
"""How a kernel of an sm_90 device meets the kernels around it, and the second-level cache.

RMS norm of 16 rows     ->  early, lets_next_start   both launches are hidden
RMS norm of 1 GiB       ->  T0 is streamed           its loads have a hint for the cache

Devices before sm_90 launch no kernel early, and the hint was not measured there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

from thunder_fuser.analysis.part import Part
from thunder_fuser.lower import kernel as nodes
from thunder_fuser.schedule.scheduled import ScheduledFusion

# Bytes that an early kernel reads and writes, without and with rows that stay on chip: ADR 63.
MOST_EARLY, MOST_EARLY_ROWS = 96 << 20, 24 << 20
LEAST_STREAMED = 384 << 20  # bytes; the second-level cache of an H200 has 50 MiB


def with_launch(kernel: nodes.Kernel, scheduled: ScheduledFusion) -> nodes.Kernel:
    """The kernel with `early`, `lets_next_start` and its streamed parameters."""
    if scheduled.target.max_cluster == 1:  # before sm_90
        return kernel
    read, written = scheduled.part.moved
    early = read + written < (MOST_EARLY_ROWS if scheduled.persistent else MOST_EARLY)
    # The next kernel's blocks wait on the SMs. Where this kernel fills them, or fills them again
    # after it as a chain of norms does, that costs more than a launch: ADR 68.
    leaves_room = 2 * prod(kernel.grid) <= scheduled.target.sm_count or 16 * written < read
    if read + written >= LEAST_STREAMED and 2 * written >= read:
        kernel = _with_streams(kernel, scheduled.part)
    return replace(kernel, early=early, lets_next_start=early and leaves_room)


def _with_streams(kernel: nodes.Kernel, part: Part) -> nodes.Kernel:
    """Marks the large inputs that are loaded at one place: ADR 67."""
    statements = nodes.statements_in(kernel.body)
    uses = Counter(name for s in statements for name in {*nodes.names_in(s)})
    most = max(map(part.bytes_of, part.inputs))

    def marked(p: nodes.Parameter) -> nodes.Parameter:
        is_streamed = p.kind == "input" and uses[p.name] == 1 and 2 * part.bytes_of(p.name) >= most
        return replace(p, streamed=is_streamed)

    return replace(kernel, parameters=tuple(map(marked, kernel.parameters)))
