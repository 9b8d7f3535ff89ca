# SPDX-License-Identifier: Apache-2.0
"""Figures -> a picture: for each point, the bandwidth of every contender as a share of clone's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.kernels.figure import CLONE, COMPILE, EAGER, OURS, TUNED, Figure
from thunder_fuser.explain.memory import new_page

_MARKS = {EAGER: ("s", "tab:gray"), COMPILE: ("^", "tab:orange"), TUNED: ("v", "tab:red"),
          OURS: ("o", "tab:blue")}
_INCHES_A_POINT = 0.22
_FASTEST = 2.0  # only what mostly reads is faster than clone


def plot(figures: Sequence[Figure], title: str, path: str) -> None:
    """Writes the picture, of the kind that the ending of `path` says."""
    timed = [figure for figure in figures if CLONE in figure.us]
    page = new_page(9, 1.5 + _INCHES_A_POINT * len(timed))
    axes = page.subplots()
    for name, (marker, colour) in _MARKS.items():
        _draw(axes, timed, name, marker, colour)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(timed)), [figure.title for figure in timed], fontsize=7)
    axes.set_xlim(0, _FASTEST)
    axes.set_ylim(len(timed), -1)
    axes.set_xlabel(f"speed, clone of as many bytes = 1; what is over {_FASTEST:g} stands there")
    axes.set_title(title, fontsize=9)
    axes.grid(axis="x", alpha=0.3)
    page.legend(loc="outside upper right", ncols=len(_MARKS), fontsize=8)
    page.savefig(path, dpi=150)


def _draw(axes: Any, timed: Sequence[Figure], name: str, marker: str, colour: str) -> None:
    found = [
        (min(f.us[CLONE].us / f.us[name].us, _FASTEST), at)
        for at, f in enumerate(timed) if name in f.us
    ]
    if found:
        shares, places = zip(*found, strict=True)
        axes.scatter(shares, places, marker=marker, color=colour, label=name, s=22, clip_on=False)
