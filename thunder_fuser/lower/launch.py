# SPDX-License-Identifier: Apache-2.0
"""How a kernel of an sm_90 device meets the kernels around it, and the second-level cache.

RMS norm of 16 rows  ->  early, lets_next_start    both launches are hidden
a product of 8 rows  ->  early, T1 is read ahead   its matrix is on its way before x is there
RMS norm of 1 GiB    ->  T0 is streamed            its loads have a hint for the cache
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

from thunder_fuser.analysis.part import Part
from thunder_fuser.lower import kernel as nodes
from thunder_fuser.schedule.nested import Nested
from thunder_fuser.schedule.scheduled import ScheduledFusion

# Bytes that an early kernel reads and writes, without and with rows that stay on chip: ADR 63.
MOST_EARLY, MOST_EARLY_ROWS = 96 << 20, 24 << 20
LEAST_STREAMED = 384 << 20  # bytes; the second-level cache of an H200 has 50 MiB


def with_launch(kernel: nodes.Kernel, scheduled: ScheduledFusion) -> nodes.Kernel:
    """The kernel with `early`, `lets_next_start`, and what is streamed or read ahead."""
    if scheduled.target.max_cluster == 1:  # before sm_90
        return kernel
    read, written = scheduled.part.moved
    early = read + written < (MOST_EARLY_ROWS if scheduled.persistent else MOST_EARLY)
    if read + written >= LEAST_STREAMED and 2 * written >= read:
        kernel = _with_streams(kernel, scheduled.part)
    values = (s.value for s in nodes.statements_in(kernel.body) if isinstance(s, nodes.Set))
    calls = [value for value in values if isinstance(value, nodes.Call)]
    ahead = {call.arguments[0] for call in calls if call.function == nodes.PRODUCTS}
    if ahead:  # the function waits, and then lets the next kernel start
        parameters = tuple(replace(p, ahead=p.name in ahead) for p in kernel.parameters)
        return replace(kernel, parameters=parameters, early=True)
    return replace(kernel, early=early, lets_next_start=early and _leaves_room(kernel, scheduled))


def _leaves_room(kernel: nodes.Kernel, scheduled: ScheduledFusion) -> bool:
    """True if blocks of the next kernel may wait on the SMs; many would be spread unevenly: ADR 68.
    A product of few rows has one block an SM, attention two (ADR 84), or more than fit."""
    (read, written), blocks, target = scheduled.part.moved, prod(kernel.grid), scheduled.target
    fills = blocks * prod(kernel.threads) >= target.sm_count * target.max_threads_per_sm
    is_product = 16 * written < read and len(scheduled.part.inputs) > 1
    most = 2 if scheduled.params.scheduler == Nested.name else 1
    return blocks <= (most if is_product else 0.5) * target.sm_count or (is_product and fills)


def _with_streams(kernel: nodes.Kernel, part: Part) -> nodes.Kernel:
    """Marks the large inputs that are loaded at one place: ADR 67."""
    uses = Counter(n for s in nodes.statements_in(kernel.body) for n in {*nodes.names_in(s)})
    least = max([LEAST_STREAMED // 8, *map(part.bytes_of, part.inputs)]) / 2
    streamed = {n for n in part.inputs if uses[n] == 1 and part.bytes_of(n) >= least}
    parameters = (replace(p, streamed=p.name in streamed) for p in kernel.parameters)
    return replace(kernel, parameters=tuple(parameters))
