# SPDX-License-Identifier: Apache-2.0
"""Which kernels of a CUDA graph may start before the one in front has ended.

    a norm:      waits, reads T0, writes T2          may: it touches nothing before its wait
    a product:   reads T1, waits, reads T2, ...      may, if no kernel in front still writes T1

A kernel that lets the next one start behind its wait is the only one in front that still writes.
One that lets it start at once may not have waited, so those in front of it may still write too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from thunder_fuser.codegen.source import KernelSource, Param

Span = tuple[int, int]  # the first address, and the one behind the last
Place = tuple[int, ...]  # the number of a capture, and the nodes that the next one depends on
EVERYTHING: tuple[Span, ...] = ((0, 1 << 64),)


class _Launch(NamedTuple):
    """Our last launch on a stream. unwritten: what may still be written when the next one starts."""

    place: Place
    unwritten: tuple[Span, ...]


def unwritten(stream: int, place: Place) -> tuple[Span, ...]:
    """The memory that kernels in front of the next one may still write when it starts."""
    if len(place) == 1:
        return ()  # it is the graph's first node
    last = _last.get(stream)
    return last.unwritten if place and last and last.place == place else EVERYTHING


def may_start_early(source: KernelSource, values: Sequence[Any], behind: tuple[Span, ...]) -> bool:
    """True if an early kernel reads nothing ahead that is not written yet."""
    ahead = [_span(p, at) for p, at in zip(source.params, values, strict=True) if p.ahead]
    meet = (begin < there and first < end for begin, end in ahead for first, there in behind)
    return source.early and not any(meet)


def note_launch(
    stream: int, place: Place, source: KernelSource, values: Sequence[Any], behind: tuple[Span, ...]
) -> None:
    """Notes a launch. place: behind it. behind: what was not written when it could start."""
    pairs = zip(source.params, values, strict=True)
    written = tuple(_span(p, at) for p, at in pairs if p.kind == "output")
    _last[stream] = _Launch(place, written + behind * source.lets_next_start)


def _span(param: Param, address: int) -> Span:
    return address, address + param.bytes


_last: dict[int, _Launch] = {}  # of each stream
