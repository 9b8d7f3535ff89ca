# SPDX-License-Identifier: Apache-2.0
"""A function jitted with the option cuda_graphs -> the calls in its graphs, and those in none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thunder_fuser.executors.cuda_graphs.replay import GraphSegment
from thunder_fuser.executors.cuda_graphs.transform import cuda_graphs_of, on_host, pieces_in
from thunder_fuser.explain.jitted import final_traces, graphs_of

REPLAYED = "replayed"
NOT_CAPTURED = "not captured yet"
FAILED = "failed"
ON_HOST = "in no graph"
GRAPH_HEAD = ("CUDA graph", "pass", "state", "calls", "graphs", "MiB", "replays", "why")


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The state of several calls of a final trace.

    state: replayed, not captured yet, failed, in no graph. calls: their number. graphs: how many
    were captured. reason: why the state is so, or why results are copied. bytes: the memory of the
    graphs that are kept. copying: how many of the graphs copy large results too.
    """

    name: str
    direction: str
    state: str
    calls: int
    graphs: int
    replays: int
    reason: str
    bytes: int = 0
    copying: int = 0

    def row(self) -> tuple[str, ...]:
        """Its line in a table."""
        counts = (str(self.graphs), f"{self.bytes / (1 << 20):.1f}", str(self.replays))
        if self.state == ON_HOST:
            counts = ("", "", "")
        return (self.name, self.direction, self.state, str(self.calls), *counts, self.reason)


def captured_in(jitted: Any) -> tuple[GraphReport, ...]:
    """The pieces of the traces that ran last, and the calls between them; none without the option.

    Raises InputError for a function that is not jitted with the fuser, or was not called.
    """
    return tuple(row for graph in graphs_of(jitted) for row in _of_graph(graph))


def _of_graph(graph: Any) -> Iterator[GraphReport]:
    owner = cuda_graphs_of(graph)
    if owner is None:
        return
    for trace, direction in zip(final_traces(graph), ("forward", "backward"), strict=False):
        yield from (_of_piece(segment, direction) for segment in pieces_in(trace.bound_symbols))
        for call, count in Counter(on_host(trace, owner.device_type)).items():
            yield GraphReport(call.name, direction, ON_HOST, count, 0, 0, call.reason)


def _of_piece(piece: GraphSegment, direction: str) -> GraphReport:
    counts = piece.counts
    state, reason = REPLAYED, ""
    if counts.failures:
        state, reason = FAILED, "; ".join(dict.fromkeys(counts.failures))
    elif not counts.replayed:
        waits = counts.waits or "the second call with the same shapes captures"
        state, reason = NOT_CAPTURED, waits
    elif counts.copying:
        reason = f"{counts.copying} copy results, since the caller kept earlier ones"
    return GraphReport(
        piece.name, direction, state, piece.length, counts.captured, counts.replayed, reason,
        sum(graph.bytes for graph in counts.graphs), counts.copying,
    )  # fmt: skip
