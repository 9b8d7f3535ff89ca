# SPDX-License-Identifier: Apache-2.0
"""Which kernels of a CUDA graph may start before the one in front has ended.

    a norm:      waits, reads T0, writes T2          may: it touches nothing before its wait
    a product:   reads T1, waits, reads T2, ...      may, if no kernel in front still writes T1

A kernel that lets the next one start behind its wait is the only one in front that still writes.
One that lets it start at once may not have waited, so those in front of it may still write too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder_fuser.codegen.source import KernelSource, Param

AddressRange = tuple[int, int]  # the first address, and the one behind the last
Ranges = tuple[AddressRange, ...]
CapturePoint = tuple[int, ...]  # the number of a capture, and the nodes that the next depends on
EVERYTHING: Ranges = ((0, 1 << 64),)


def unwritten(stream: int, place: CapturePoint) -> Ranges:
    """The memory that kernels in front of the next one may still write when it starts."""
    if len(place) == 1:
        return ()  # it is the graph's first node
    before, ranges = _last.get(stream, ((), EVERYTHING))
    return ranges if place and before == place else EVERYTHING


def may_start_early(source: KernelSource, values: Sequence[Any], behind: Ranges) -> bool:
    """True if an early kernel reads nothing ahead that is not written yet."""
    ahead = [_span(p, at) for p, at in zip(source.params, values, strict=True) if p.ahead]
    meet = (begin < there and first < end for begin, end in ahead for first, there in behind)
    return source.early and not any(meet)


def note_launch(
    stream: int, place: CapturePoint, source: KernelSource, values: Sequence[Any], behind: Ranges
) -> None:
    """Notes a launch. place: behind it. behind: what was not written when it could start."""
    pairs = zip(source.params, values, strict=True)
    written = tuple(_span(p, at) for p, at in pairs if p.kind == "output")
    _last[stream] = place, written + behind * source.lets_next_start


def _span(param: Param, address: int) -> AddressRange:
    return address, address + param.bytes


# {stream: where our last launch on it left the capture, and what the next one may not find written}
_last: dict[int, tuple[CapturePoint, Ranges]] = {}
