# SPDX-License-Identifier: Apache-2.0
"""A memory timeline -> the coordinates of its picture in a page: bytes over calls, as steps."""

from __future__ import annotations

from collections.abc import Mapping
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


def picture(timeline: Mapping[str, Any]) -> Picture:
    """Of {"forward": calls, "kept": bytes, "backward": calls}, a call a {"name", "bytes"}."""
    forward, backward = timeline["forward"], timeline["backward"]
    calls = [*forward, *backward]
    step = _WIDTH / max(len(calls), 1)
    most = max((one["bytes"] for one in calls), default=0)
    tops = [_top(one["bytes"], most) for one in calls]
    points = "".join(f"V{top:.1f}H{(at + 1) * step:.1f}" for at, top in enumerate(tops))
    bottom = _HEIGHT - _MARGIN
    highest = min(range(len(tops)), key=tops.__getitem__, default=0)
    return Picture(
        area=f"M0 {bottom}{points}V{bottom}Z", middle=round(len(forward) * step, 1),
        peak=(round((highest + 0.5) * step, 1), round(_top(most, most), 1)),
        label=_label(timeline, calls[highest]["name"] if calls else "", most),
        calls=tuple(
            (one["name"], name, size_text(one["bytes"]))
            for name, some in (("forward", forward), ("backward", backward)) for one in some
        ),
    )  # fmt: skip


def _top(count: int, most: int) -> float:
    """The place of so many bytes, counted from above."""
    high = _HEIGHT - 2 * _MARGIN
    return _MARGIN + high - high * count / (most or 1)


def _label(timeline: Mapping[str, Any], highest: str, most: int) -> str:
    text = f"Live memory, without arguments: at most {size_text(most)}"
    text += f" after {highest}" if highest else ""
    if timeline["backward"]:
        text += f"; {size_text(timeline['kept'])} from forward to backward"
    return text
