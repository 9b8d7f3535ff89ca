# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> the memory that is live after each call of its traces, and its picture.

    plot({"time": jitted, "memory": other}, "memory.png")

In a picture, calls stand at equal distances, the forward's in the left half and the backward's in
the right half. So policies with different numbers of calls can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from thunder_fuser.errors import ToolchainError
from thunder_fuser.explain.jitted import graphs_of, name_of
from thunder_fuser.explain.live_memory import Timeline
from thunder_fuser.explain.live_memory import timeline as of_graph
from thunder_fuser.explain.shown import Shown, kib, size_unit, table

_INCHES = (9, 3.2)  # of the picture of one model


@dataclass(frozen=True, slots=True, repr=False)
class LiveMemory(Timeline, Shown):
    """The calls of a forward and a backward; kept: the bytes that live between the two."""

    name: str

    def __repr__(self) -> str:
        return f"<live memory of {self.name}: {kib(self.peak)} KiB at most>"

    def __str__(self) -> str:
        rows = [(call["call"], call["direction"], kib(call["bytes"])) for call in self._calls()]
        head = f"{self.name} keeps {kib(self.kept)} KiB, and holds {kib(self.peak)} KiB at most."
        return f"{head}\n\n{table(('after', 'pass', 'KiB live'), rows)}\n"

    def _calls(self) -> list[dict[str, Any]]:
        both = (("forward", self.forward), ("backward", self.backward))
        return [
            {"call": call.name, "direction": direction, "bytes": call.bytes}
            for direction, calls in both for call in calls
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """calls: each with the bytes that are live after it."""
        return {"name": self.name, "calls": self._calls(), "kept": self.kept, "peak": self.peak}


def timeline(jitted: Any) -> LiveMemory:
    """The memory of the compilation that ran last, in the order of its calls.

    Its traces run once more, on zeros. If torch.compile made several graphs of the function, they
    follow each other: the forwards in order, then the backwards in reverse.

    Raises InputError for a function that was not called, or whose arguments are not plain tensors
    and numbers.
    """
    return _joined(name_of(jitted), [of_graph(graph) for graph in graphs_of(jitted)])


def _joined(name: str, timelines: Sequence[Timeline]) -> LiveMemory:
    forward = tuple(call for timeline in timelines for call in timeline.forward)
    backward = tuple(call for timeline in reversed(timelines) for call in timeline.backward)
    return LiveMemory(forward, sum(timeline.kept for timeline in timelines), backward, name)


# ------------------------------------------------------------------------------------ pictures

def plot(functions: Mapping[str, Any], path: str, title: str = "") -> None:
    """Writes the picture of functions that were called; the path's suffix chooses the format."""
    picture({title: {name: timeline(function) for name, function in functions.items()}}, path)


def picture(models: Mapping[str, Mapping[str, Timeline]], path: str) -> None:
    """A row for each model, with a line for each of its timelines."""
    page = new_page(_INCHES[0], _INCHES[1] * len(models))
    rows = page.subplots(len(models), squeeze=False)
    for (axes,), (title, lines) in zip(rows, models.items(), strict=True):
        _draw(axes, title, lines)
    page.savefig(path, dpi=150)


def new_page(width: float, height: float) -> Any:
    """An empty picture of this size in inches. It needs no display."""
    need_matplotlib()
    return import_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def need_matplotlib() -> None:
    """Raises ToolchainError if it is not installed."""
    if find_spec("matplotlib") is None:
        raise ToolchainError(
            "a picture", expected="matplotlib", got="none", do="pip install 'thunder-fuser[plot]'"
        )


def _draw(axes: Any, title: str, lines: Mapping[str, Timeline]) -> None:
    peak = max((line.peak for line in lines.values()), default=0)
    size, unit = size_unit(peak)
    for name, line in lines.items():
        places, heights = points(line)
        kept, most = line.kept / size, line.peak / size
        label = f"{name}: {kept:.1f} kept, {most:.1f} at most"
        axes.plot(places, [height / size for height in heights], label=label, linewidth=1.2)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlim(0, 2)
    axes.set_ylim(bottom=0)
    axes.set_xticks([0.5, 1.5], ["forward", "backward"])
    axes.set_ylabel(f"{unit} live beside arguments")
    axes.set_title(title, fontsize=9)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)


def points(line: Timeline) -> tuple[list[float], list[int]]:
    """Places from 0 to 2 and the live bytes there; at 1, the bytes kept for the backward.

    forward of 2 calls, backward of 1  ->  places 0.25, 0.75, 1, 1.5
    """
    heights = [*(call.bytes for call in line.forward), line.kept]
    places = [(at + 0.5) / len(line.forward) for at in range(len(line.forward))]
    heights += [call.bytes for call in line.backward]
    after = [1 + (at + 0.5) / len(line.backward) for at in range(len(line.backward))]
    return [*places, 1.0, *after], heights
