# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> its fusions with their states, and the ops that torch runs, with reasons.

    print(report(jitted))
    print(why(jitted))
    report(jitted).save("report.html")
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from thunder_fuser.base.stages import spent
from thunder_fuser.executors.cuda_graphs.replay import GraphSegment
from thunder_fuser.executors.cuda_graphs.transform import cuda_graphs_of, on_host, pieces_in
from thunder_fuser.executors.overlap.find import decisions
from thunder_fuser.executors.regions.claim import Claims, Unfused
from thunder_fuser.executors.regions.comments import counted
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.run.region_callable import RegionCallable
from thunder_fuser.explain.jitted import claims_of, final_traces, graphs_of, name_of, op_texts
from thunder_fuser.explain.memory import LiveMemory, timeline
from thunder_fuser.explain.outside import NotFused, outside_of
from thunder_fuser.explain.page import check_path, write_page
from thunder_fuser.explain.programs import Compiled, Kernel, compiled, named_fusions
from thunder_fuser.explain.saved_values import Saved, saved_in
from thunder_fuser.explain.shown import Shown, kib, plain, shortened, shown_lines, table
from thunder_fuser.source.lines import span_of

FUSED = "fused"
VIEWS = "views"
NOT_CALLED = "not called yet"
FELL_BACK = "fell back"
LEFT_OUT = "left out"
NOT_CLAIMED = "not claimed"

_WHY = {
    VIEWS: "views, which torch makes without a kernel",
    NOT_CALLED: "it is compiled at its first call",
}
_GONE = "its programs have left the process's cache"
_HEAD = (
    "fusion", "pass", "state", "ops", "segments", "kernels", "schedulers", "KiB in", "KiB out",
    "where",
)  # fmt: skip
REPLAYED = "replayed"
NOT_CAPTURED = "not captured yet"
FAILED = "failed"
ON_HOST = "in no graph"
GRAPH_HEAD = ("CUDA graph", "pass", "state", "calls", "graphs", "MiB", "replays", "why")


@dataclass(frozen=True, slots=True)
class FusedOp:
    """A primitive of a fusion, as a line of a trace; where: file:line of the user's program."""

    text: str
    where: str


@dataclass(frozen=True, slots=True, repr=False)
class FusionReport(Shown):
    """The state of a region of the trace.

    direction: forward or backward. state: fused, views, not called yet, fell back, left out.
    reason: why the state is so; empty if it is fused. program: the newest that it ran, or None.
    measured_us: microseconds of each kernel, in the result of `profile`.
    """

    name: str
    direction: str
    state: str
    reason: str
    where: str
    ops: tuple[FusedOp, ...]
    symbols: tuple[str, ...] = field(repr=False)
    program: Compiled | None = None
    measured_us: tuple[float | None, ...] = ()

    @property
    def schedulers(self) -> tuple[str, ...]:
        """The schedulers of its segments."""
        parts = () if self.program is None else self.program.segments
        return tuple(segment.scheduler.name for segment in parts)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of its newest program."""
        listed = () if self.program is None else self.program.described()
        times = self.measured_us or (None,) * len(listed)
        pairs = zip(listed, times, strict=True)
        return tuple(replace(kernel, measured_us=time) for kernel, time in pairs)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}, {len(self.ops)} ops>"

    def __str__(self) -> str:
        return fusion_table([self])

    def row(self) -> tuple[str, ...]:
        """Its line in a table."""
        row = (self.name, self.direction, self.state)
        where = shown_lines(self.where)
        program = self.program
        if program is None:
            return (*row, str(len(self.ops)), "", "", "", "", "", where)
        return (
            *row, str(len(program.fusion.exprs)), str(len(program.segments)),
            str(len(program.kernels)), counted(self.schedulers),
            kib(program.bytes_in), kib(program.bytes_out), where,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The entries that the page and other tools read."""
        program, kernels = self.program, self.kernels
        return {
            "name": self.name, "direction": self.direction, "state": self.state,
            "reason": self.reason, "where": self.where, "ops": plain(self.ops),
            "schedulers": plain(self.schedulers),
            "segments": _segments(program, kernels),
            "kernels": [  # without full_source: its prelude is the same in most kernels
                {name: value for name, value in kernel.to_dict().items() if name != "full_source"}
                for kernel in kernels
            ],
            "bytes_in": program.bytes_in if program else 0,
            "bytes_out": program.bytes_out if program else 0,
            "definition": str(program.fusion) if program else "",
            "plan": program.plan() if program else "",
            "schedules": [str(s) for s in program.schedules() if s] if program else [],
        }  # fmt: skip


def _segments(program: Compiled | None, kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    names = (kernel.name for kernel in kernels)
    return [
        {"scheduler": segment.scheduler.name,
         "kernels": [next(names)] if segment.scheduler.makes_kernel else []}
        for segment in (program.segments if program else ())
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Why(Shown):
    """Every op that torch runs, with the reason, as a sequence of NotFused."""

    name: str
    rows: tuple[NotFused, ...]

    def __iter__(self) -> Iterator[NotFused]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<why of {self.name}: {sum(row.count for row in self)} ops with torch>"

    def __str__(self) -> str:
        return table(("with torch", "state", "why", "where"), [
            (f"{row.count}x {row.name}", row.state, shortened(row.reason), shown_lines(row.where))
            for row in self
        ])  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Report(Shown):
    """The report on a jitted function. It prints as tables.

    fusions: its regions; unfused: ops outside of them; saved: what the backward keeps, None
    without one; timeline: live memory, if asked for; trace: what runs, as text; stages: seconds of
    each stage of the compiler, if the report was made inside of `base.stages.timed()`;
    graphs: the states of its CUDA graphs, empty without the option cuda_graphs; products: matrix
    products with communication, and the cost model's decisions; made_of: a weak reference to the
    function.
    """

    name: str
    fusions: tuple[FusionReport, ...]
    unfused: tuple[NotFused, ...]
    saved: Saved | None
    timeline: LiveMemory | None
    trace: str
    stages: Mapping[str, float]
    graphs: tuple[GraphReport, ...] = ()
    products: tuple[str, ...] = ()
    made_of: Callable[[], Any] = field(default=lambda: None, compare=False)

    def __repr__(self) -> str:
        states = Counter(fusion.state for fusion in self.fusions)
        counts = ", ".join(f"{count} {state}" for state, count in states.items()) or "no fusion"
        count = sum(row.count for row in self.unfused if row.state != VIEWS)
        return f"<report of {self.name}: {counts}; {count} ops with torch>"

    def __str__(self) -> str:
        rows = [fusion for fusion in self.fusions if fusion.state != VIEWS]
        parts = [fusion_table(rows) if rows else "  no fusion"]
        reasons = [(row.name, row.state, shortened(row.reason)) for row in rows if row.reason]
        if reasons:
            parts.append(table(("fusion", "state", "why"), reasons))
        if by_torch := tuple(row for row in self.unfused if row.state != VIEWS):
            parts.append(str(Why(self.name, by_torch)))
        if self.graphs:
            parts.append(table(GRAPH_HEAD, [graph.row() for graph in self.graphs]))
        parts += [f"  {product}" for product in self.products]
        return "\n\n".join([*parts, *self._views()]) + "\n"

    def _views(self) -> list[str]:
        """One line for all views: they cost nothing."""
        names: Counter[str] = Counter()
        for region in self.fusions:
            if region.state == VIEWS:
                names.update(region.symbols)
        for row in self.unfused:
            if row.state == VIEWS:
                names[row.name] += row.count
        text = counted(names.elements())
        return [f"  {names.total()} {_WHY[VIEWS]}: {text}"] if names else []

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types.

        fusions: FusionReport's fields, with schedulers, segments, kernels (texts without the
        prelude), bytes and the texts of definition and plan; unfused: name, count, state, reason,
        where; saved, recomputed: as `Saved.to_dict` has them; timeline: call, direction, bytes;
        graphs: GraphReport's fields; products: texts.
        """
        kept = self.saved.to_dict() if self.saved else {"kept": [], "recomputed": []}
        return {
            "name": self.name,
            "fusions": plain(self.fusions),
            "unfused": plain(self.unfused),
            "saved": kept["kept"],
            "recomputed": kept["recomputed"],
            "timeline": self.timeline.to_dict()["calls"] if self.timeline else [],
            "trace": self.trace,
            "stages": dict(self.stages),
            "graphs": plain(self.graphs),
            "products": plain(self.products),
        }


    def save(self, path: str | Path) -> Path:
        """Writes the report as one HTML page without other files, and returns its path.

        For the picture of live memory, the traces run once more on zeros unless the report has a
        timeline. Raises ReportError for a path that cannot be written, or is not one of HTML.
        """
        check_path(path)
        return write_page([self.page_entries()], path)

    def page_entries(self) -> dict[str, Any]:
        """The entries of its page: `to_dict()` with the live memory, or why there is none."""
        shown, reason, jitted = self, "", self.made_of()
        if self.timeline is None and jitted is not None:
            try:
                shown = replace(self, timeline=timeline(jitted))
            except Exception as error:  # a call of torch may raise anything: the page shows it
                reason = f"{type(error).__name__}: {error}"
        return {**shown.to_dict(), "no_timeline": reason}


def report(jitted: Any, *, with_timeline: bool = False) -> Report:
    """The report on a jitted function, as it was compiled for its last call.

    with_timeline: also its live memory; for that, its traces run once more on zeros.
    Raises InputError for a function that is not jitted with the fuser, or was not called.
    """
    fusions, unfused = _fusions(jitted), _unfused(jitted)
    cuts = saved_in(jitted)
    memory = timeline(jitted) if with_timeline else None
    traces = [trace for graph in graphs_of(jitted) for trace in final_traces(graph)]
    products = (decision for trace in traces for decision in decisions(trace.bound_symbols))
    return Report(
        name_of(jitted), fusions, unfused, cuts, memory, "\n\n".join(map(str, traces)), spent(),
        captured_in(jitted), tuple(products), weakref.ref(jitted),
    )  # fmt: skip


def why(jitted: Any) -> Why:
    """Every op of a jitted function that torch runs, and why; equal ones in one row.

    Raises InputError for a function that is not jitted with the fuser, or was not called.
    """
    regions = (
        NotFused(fusion.name, len(fusion.ops), fusion.state, fusion.reason, fusion.where)
        for fusion in _fusions(jitted) if fusion.state in (FELL_BACK, LEFT_OUT)
    )  # fmt: skip
    return Why(name_of(jitted), (*_unfused(jitted), *regions))


def fusion_table(
    fusions: Sequence[FusionReport], times: Mapping[str, tuple[float, float]] | None = None
) -> str:
    """A line for each fusion; `times`, {name: (fused, op by op) seconds}, adds two columns."""
    if times is None:
        return table(_HEAD, [fusion.row() for fusion in fusions])
    rows = []
    for fusion in fusions:
        pair = times.get(fusion.name)
        shown = (f"{1e6 * seconds:.0f}" for seconds in pair) if pair else ("", "")
        rows.append((*fusion.row(), *shown))
    return table((*_HEAD, "us", "us op by op"), rows)


# --------------------------------------------------------------------------------------- fusions


def _fusions(jitted: Any) -> tuple[FusionReport, ...]:
    claims = {id(graph): claims_of(graph) for graph in graphs_of(jitted)}
    claimed = [
        _of_callable(name, fusion, claims[id(graph)])
        for graph, name, fusion in named_fusions(jitted)
    ]
    left = (pair for graph_claims in claims.values() for pair in _left_out(graph_claims))
    return (*claimed, *left)


def _of_callable(name: str, fusion: RegionCallable, claims: Claims) -> FusionReport:
    programs = compiled(fusion)
    state, reason = _state(fusion, programs)
    described = _of_region(name, fusion.region, claims, state, reason)
    return replace(described, program=programs[-1] if programs else None)


def _left_out(claims: Claims) -> Iterator[FusionReport]:
    """Regions without fuel have no name: a fusion's number counts what is fused."""
    for number, (region, reason) in enumerate(claims.left_out):
        state = VIEWS if region.makes_views else LEFT_OUT
        yield _of_region(f"left_out{number}", region, claims, state, str(reason))


def _of_region(
    name: str, region: Region, claims: Claims, state: str, reason: str
) -> FusionReport:
    lines = claims.lines
    ops = tuple(FusedOp(text, lines.get(result, "")) for text, result in op_texts(region))
    direction = "backward" if region.is_backward else "forward"
    symbols = tuple(leaf.sym.name for leaf in region.leaves)
    where = span_of([op.where for op in ops])
    return FusionReport(name, direction, state, reason, where, ops, symbols)


def _state(fusion: RegionCallable, programs: Sequence[Compiled]) -> tuple[str, str]:
    """(state, reason) of a region that was claimed."""
    if fusion.region.makes_views:
        return VIEWS, _WHY[VIEWS]
    if fusion.fallbacks:
        some = "for some arguments: " if programs else ""
        return FELL_BACK, some + "; ".join(fusion.fallbacks)
    if not fusion.runners:
        return NOT_CALLED, _WHY[NOT_CALLED]
    if fusion.definitions:
        return FUSED, "" if programs else _GONE
    return VIEWS, _WHY[VIEWS]


# ----------------------------------------------------------------------------------- other ops


def _unfused(jitted: Any) -> tuple[NotFused, ...]:
    """The ops that torch runs, and what is outside of Dynamo's graphs; equal ones as one row."""
    calls = (call for graph in graphs_of(jitted) for call in claims_of(graph).unfused)
    return (
        *(_not_fused(call, count) for call, count in Counter(calls).items()),
        *outside_of(jitted),
    )


def _not_fused(call: Unfused, count: int) -> NotFused:
    state = VIEWS if call.is_view else NOT_CLAIMED
    return NotFused(call.name, count, state, str(call.reason), call.where)


# -------------------------------------------------------------------------------------- CUDA graphs


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
