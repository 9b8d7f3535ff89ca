# SPDX-License-Identifier: Apache-2.0
"""SegmentedFusion, the result of segmentation, as text and as a graph in DOT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thunder_fuser.analysis.part import Part
from thunder_fuser.errors import GivenScheduleError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord, record_text
from thunder_fuser.schedule.scheduled import HeuristicParams
from thunder_fuser.schedule.scheduler import Match, NoMatch


@dataclass(frozen=True, slots=True)
class KeptBuffer:
    """A value that stays on chip between passes over it. bytes: of one row of it."""

    name: str
    dtype: DataType
    bytes: int
    memory: str

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype.short}, {self.bytes} bytes a row in {self.memory})"


@dataclass(frozen=True)
class Segment:
    """A part with the scheduler that takes it. edge_bytes: bytes that it reads from memory and
    writes to it.

    params: the scheduler's decisions, or None where torch runs the segment; persistent_buffers:
    values that stay on chip between passes over the data. `with_params` fills in both.
    """

    match: Match
    edge_bytes: int = 0
    params: HeuristicParams | None = None
    persistent_buffers: tuple[KeptBuffer, ...] = ()

    @property
    def part(self) -> Part:
        return self.match.part

    @property
    def scheduler(self) -> type[Match]:
        """The scheduler that takes the part; it has a `name`."""
        return type(self.match)

    @property
    def ops(self) -> tuple[OpRecord, ...]:
        """The expressions, with the segment's private copies of cheap producers."""
        return self.part.exprs

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values that it reads."""
        return self.part.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The values that it writes."""
        return self.part.outputs

    def __str__(self) -> str:
        lines = [f"{self.scheduler.name}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}"]
        lines += [f"    # {self.params}"] if self.params is not None else []
        lines += [f"    # stays on chip: {buffer}" for buffer in self.persistent_buffers]
        lines += [f"    # {self.edge_bytes} bytes at its edges"]
        return "\n".join([*lines, *("    " + record_text(e) for e in self.ops)])


def with_params(segmented: SegmentedFusion) -> SegmentedFusion:
    """The plan with what schedulers decide for arguments whose addresses are multiples of 16.

    segment 0 reduction: T0 -> T1      ->      segment 0 reduction: T0 -> T1
                                                   # reduction(vectorize=8, threads=32x4, unroll=1)
    """
    return replace(segmented, segments=tuple(map(_with_params, segmented.segments)))


def _with_params(segment: Segment) -> Segment:
    scheduled = segment.match.schedule({})
    if scheduled is None:
        return segment
    kept = (
        KeptBuffer(b.point.name, segment.part.tensors[b.point.name].dtype, b.bytes, b.memory)
        for b in scheduled.persistent
    )
    return replace(segment, params=scheduled.params, persistent_buffers=tuple(kept))


def numbered(
    segmented: SegmentedFusion, schedules: Sequence[tuple[int | str, Any]]
) -> dict[int, Any]:
    """{number of a segment: its schedule}; GivenScheduleError for a segment that the plan does not
    have, or that has two schedules."""
    by_number: dict[int, Any] = {}
    for key, schedule in schedules:
        number = _number(segmented, key)
        if number in by_number:
            raise GivenScheduleError("schedules", expected=f"one for segment {number}", got="two")
        by_number[number] = schedule
    return by_number


def _number(segmented: SegmentedFusion, key: int | str) -> int:
    """The number of a segment. The key is its number, its line in the plan's text, or the name of
    its scheduler if no other segment has the same."""
    names = [f"{at} {segment.scheduler.name}" for at, segment in enumerate(segmented.segments)]
    text = str(key).removeprefix("segment ").partition(":")[0].strip()
    fitting = [at for at, name in enumerate(names) if text in (name, *name.split(" "))]
    if len(fitting) == 1 and type(key) in (int, str):
        return fitting[0]
    expected = f"one of {', '.join(f'segment {name}' for name in names)}"
    raise GivenScheduleError("schedules", expected=expected, got=repr(key))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Two segments that would save bytes as one, and why they could not be merged."""

    first: int
    second: int
    reasons: tuple[NoMatch, ...]

    def __str__(self) -> str:
        reasons = "; ".join(map(str, self.reasons))
        return f"not joined: segments {self.first} and {self.second}: {reasons}"


@dataclass(frozen=True)
class SegmentedFusion:
    """The segments in the order in which they run, and why neighbours were not merged.

    edge_bytes: read and written by all segments; lower_bound: what one segment with everything
    would read and write; peak_bytes: the most that intermediates take at once; notes: lines that
    later stages add to the text.
    """

    fusion: Fusion
    segments: tuple[Segment, ...]
    strides: Mapping[str, tuple[int, ...]] = field(compare=False, repr=False)
    refusals: tuple[Refusal, ...] = ()
    edge_bytes: int = 0
    lower_bound: int = 0
    peak_bytes: int = 0
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        lines = [f"segment {number} {segment}" for number, segment in enumerate(self.segments)]
        lines += [*map(str, self.refusals), *self.notes]
        bound = f", {self.lower_bound} at least" if len(self.segments) > 1 else ""
        lines.append(f"{self.edge_bytes} bytes at segment edges{bound}")
        lines.append(f"{self.peak_bytes} bytes of intermediates at most")
        return "\n".join(lines) + "\n"

    def dot(self) -> str:
        """The plan as a graph in DOT: segments are boxes, values edges with dtype and sizes."""
        lines = ["digraph plan {", "  node [shape=box, fontname=monospace];"]
        lines += [f"  {name} [shape=ellipse];" for name in self.fusion.inputs]
        for number, segment in enumerate(self.segments):
            ops = "\\l".join(record_text(e).replace('"', "'") for e in segment.ops)
            lines.append(f'  s{number} [label="{number} {segment.scheduler.name}\\n{ops}\\l"];')
        results = dict.fromkeys(output.name for output in self.fusion.outputs)
        lines += [f"  {name}_out [label={name}, shape=ellipse];" for name in results]
        maker = {n: f"s{at}" for at, segment in enumerate(self.segments) for n in segment.outputs}
        for number, segment in enumerate(self.segments):
            read = [name for name in segment.inputs if name in maker or name in self.fusion.inputs]
            lines += [self._arrow(maker.get(name, name), f"s{number}", name) for name in read]
        lines += [self._arrow(maker.get(name, name), f"{name}_out", name) for name in results]
        return "\n".join([*lines, "}"]) + "\n"

    def _arrow(self, start: str, end: str, name: str) -> str:
        view = self.fusion.tensors[name]
        label = f"{name} {view.dtype.short}{list(view.sizes)}"
        return f'  {start} -> {end} [label="{label}"];'
