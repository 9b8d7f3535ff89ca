# SPDX-License-Identifier: Apache-2.0
"""A memory timeline -> the coordinates of its picture in a page: bytes over calls, as steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thunder_fuser.explain.table import size_text

_WIDTH, _HEIGHT, _MARGIN = 800, 180, 20


@dataclass(frozen=True, slots=True)
class Picture:
    """An area under steps, the line between forward and backward, and the highest place.

    calls: (name, pass, bytes live after it) in order.
    """

    area: str
    middle: float
    peak: tuple[float, float]
    label: str
    calls: tuple[tuple[str, str, str], ...]
    width: int = _WIDTH
    height: int = _HEIGHT
    bottom: int = _HEIGHT - _MARGIN


def picture(calls: Sequence[Mapping[str, Any]]) -> Picture:
    """Of at least one call, each a {"call", "direction", "bytes"}, the forward's first."""
    step, bottom = _WIDTH / len(calls), _HEIGHT - _MARGIN
    sizes = [one["bytes"] for one in calls]
    most = max(sizes)
    highest = sizes.index(most)
    tops = (f"V{_top(size, most):.1f}H{(at + 1) * step:.1f}" for at, size in enumerate(sizes))
    forward = sum(one["direction"] == "forward" for one in calls)
    return Picture(
        area=f"M0 {bottom}{''.join(tops)}V{bottom}Z",
        middle=round(forward * step, 1),
        peak=(round((highest + 0.5) * step, 1), _top(most, most)),
        label="Live memory, without arguments:"
        f" at most {size_text(most)}, after {calls[highest]['call']}",
        calls=tuple((one["call"], one["direction"], size_text(one["bytes"])) for one in calls),
    )


def _top(count: int, most: int) -> float:
    """The place of so many bytes, counted from above."""
    high = _HEIGHT - 2 * _MARGIN
    return _MARGIN + high - high * count / (most or 1)
