# SPDX-License-Identifier: Apache-2.0
"""A graph -> the schedule and the text of its first kernel, for a target; nothing is compiled."""

from __future__ import annotations

from helpers.graphs import Graph
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compiler import emit, schedule
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.target import Target

_HEAD = ('extern "C" void', 'extern "C" __global__')


def scheduled(
    graph: Graph, target: Target, alignment: int = 16
) -> tuple[ScheduledFusion, KernelSource]:
    """The first segment of a graph, scheduled and emitted, for arguments so aligned."""
    fd, inputs = graph
    segment = fd.plan(inputs, target=target).segments[0]
    made = schedule(segment, dict.fromkeys(fd.fusion.inputs, alignment))
    assert made is not None
    source = emit(made)
    assert source is not None
    return made, source


def kernel_text(source: KernelSource) -> str:
    """From the comment over the kernel on: the prelude has tests of its own."""
    lines = source.text.splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if line.startswith(_HEAD))
    launch = f"// grid {source.grid}, block {source.block}, {source.smem_bytes} bytes shared\n"
    return launch + "".join(lines[first - 1 :])


