# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> the memory that is live after each call of its traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thunder_fuser.executors.graphs import graphs_of, name_of
from thunder_fuser.executors.live import Timeline
from thunder_fuser.executors.live import timeline as of_graph
from thunder_fuser.explain.shown import Shown
from thunder_fuser.explain.table import kib, table


@dataclass(frozen=True, slots=True, repr=False)
class LiveMemory(Timeline, Shown):
    """The calls of a forward and a backward; kept: the bytes that live between the two."""

    name: str

    def __repr__(self) -> str:
        return f"<live memory of {self.name}: {kib(self.peak)} KiB at most>"

    def __str__(self) -> str:
        rows = [(one["call"], one["direction"], kib(one["bytes"])) for one in self._calls()]
        head = f"{self.name} keeps {kib(self.kept)} KiB, and holds {kib(self.peak)} KiB at most."
        return f"{head}\n\n{table(('after', 'pass', 'KiB live'), rows)}\n"

    def _calls(self) -> list[dict[str, Any]]:
        both = (("forward", self.forward), ("backward", self.backward))
        return [
            {"call": one.name, "direction": direction, "bytes": one.bytes}
            for direction, calls in both for one in calls
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


def _joined(name: str, found: Sequence[Timeline]) -> LiveMemory:
    forward = tuple(call for one in found for call in one.forward)
    backward = tuple(call for one in reversed(found) for call in one.backward)
    return LiveMemory(forward, sum(one.kept for one in found), backward, name)
