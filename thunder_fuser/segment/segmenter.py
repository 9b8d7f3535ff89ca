# SPDX-License-Identifier: Apache-2.0
"""(Fusion, Target) -> SegmentedFusion: joins what one scheduler accepts, in program order.

    T2 = sum(T0); T4 = mul(T0, T3); T5 = sum(T4 over the other axis)
->  segment 0 (persistent): T2, T4        segment 1 (reduction): T5, reading T4

Each expression joins the groups of its producers, latest first, where the result is acyclic and
some scheduler takes it; then groups join that read the same values. Last, an edge that is cheaper
to recompute than to move is recomputed:
    T1 = cast(T0: bf16, Float) read by two segments  ->  both cast T0 themselves
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunder_fuser.analysis.part import Part, Parts
from thunder_fuser.errors import ScheduleError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.ops import OpKind
from thunder_fuser.ir.record import OpRecord, names_of, record_text
from thunder_fuser.schedule.registry import find_scheduler
from thunder_fuser.schedule.scheduler import Reject, Scheduler
from thunder_fuser.segment.recompute import recompute_cheap_edges
from thunder_fuser.target import Target


@dataclass(frozen=True)
class Segment:
    """A part and the scheduler that takes it."""

    part: Part
    scheduler: Scheduler

    def __str__(self) -> str:
        lines = [
            f"{self.scheduler.name}: {', '.join(self.part.inputs)} -> "
            f"{', '.join(self.part.outputs)}"
        ]
        return "\n".join([*lines, *("    " + record_text(e) for e in self.part.exprs)])


@dataclass(frozen=True)
class SegmentedFusion:
    """The segments in the order they run, and why neighbours were not joined."""

    fusion: Fusion
    segments: tuple[Segment, ...]
    strides: Mapping[str, tuple[int, ...]] = field(compare=False, repr=False)
    refusals: tuple[tuple[Reject, ...], ...] = ()

    def __str__(self) -> str:
        lines = []
        for number, segment in enumerate(self.segments):
            lines.append(f"segment {number} {segment}")
        for refusal in self.refusals:
            lines.append("not joined: " + "; ".join(map(str, refusal)))
        return "\n".join(lines) + "\n"


def segment(fusion: Fusion, target: Target) -> SegmentedFusion:
    """The segments of a specialised fusion; ScheduleError if an expression fits no scheduler."""
    parts_of = Parts(fusion)
    builder = _Segmenter(parts_of, target)
    whole = builder.scheduler_of(fusion.exprs) if fusion.exprs else None
    if isinstance(whole, Scheduler) and not _has_forced_cut(fusion):
        groups = [list(fusion.exprs)]
    else:
        groups = builder.grow()
    parts = recompute_cheap_edges(parts_of, groups, builder.accepts)
    segments = tuple(Segment(part, _certain(part, target)) for part in parts)
    refusals = tuple(dict.fromkeys(builder.refusals))
    return SegmentedFusion(fusion, segments, parts_of.strides, refusals)


def _has_forced_cut(fusion: Fusion) -> bool:
    return any(expr.op == "segment_set" for expr in fusion.exprs)


def _certain(part: Part, target: Target) -> Scheduler:
    found = find_scheduler(part, target)
    if isinstance(found, Scheduler):
        return found
    raise ScheduleError(
        "segment " + "; ".join(record_text(e) for e in part.exprs),
        expected="a scheduler that accepts it",
        got="; ".join(map(str, found)),
    )


def _has_reduction(exprs: list[OpRecord]) -> bool:
    return any(expr.row.kind is OpKind.REDUCTION for expr in exprs)


class _Segmenter:
    """Grows groups of expressions; `group_of` says which group an expression is in."""

    def __init__(self, parts_of: Parts, target: Target) -> None:
        self.parts_of, self.fusion, self.target = parts_of, parts_of.fusion, target
        self.order = {expr: at for at, expr in enumerate(self.fusion.exprs)}
        self.groups: dict[int, list[OpRecord]] = {}
        self.group_of: dict[OpRecord, int] = {}
        self.refusals: list[tuple[Reject, ...]] = []

    def scheduler_of(self, exprs: tuple[OpRecord, ...]) -> Scheduler | tuple[Reject, ...]:
        return find_scheduler(self.parts_of.of(exprs), self.target)

    def accepts(self, part: Part) -> bool:
        """True if some scheduler takes the part."""
        return isinstance(find_scheduler(part, self.target), Scheduler)

    def grow(self) -> list[list[OpRecord]]:
        """The groups, in an order in which each reads only earlier ones.

        First consumers join their producers; only then do groups join that read the same values.
        The other way round a column sum would draw in the producers of row sums.
        """
        for at, expr in enumerate(self.fusion.exprs):
            self.groups[at] = [expr]
            self.group_of[expr] = at
            self._join_producers(expr, [expr])
            if expr.row.kind is OpKind.INDEX:
                # What it reads may fit nowhere alone: a row made one longer, only to be indexed.
                self._join_producers(expr, self.groups[self.group_of[expr]])
        for at in range(len(self.fusion.exprs)):
            for other in self._siblings(at):
                if at in self.groups and other in self.groups:
                    self._join(at, other)
        return self._sorted()

    def _join_producers(self, expr: OpRecord, readers: list[OpRecord]) -> None:
        for other in self._producers(readers):
            if other in self.groups:
                self._join(other, self.group_of[expr])

    def _producers(self, exprs: list[OpRecord]) -> list[int]:
        """The groups that make an operand, latest first."""
        makers = [self.fusion.producer.get(name) for expr in exprs for name in names_of(expr)]
        made = {self.group_of[p] for p in makers if p is not None and p.op != "segment_set"}
        return sorted(made, reverse=True)

    def _siblings(self, group: int) -> list[int]:
        """Later groups that read what this one reads, or results made beside it; reductions with
        reductions only."""
        exprs = self.groups.get(group, [])
        read = {name for expr in exprs for name in names_of(expr)}
        for name in list(read):
            maker = self.fusion.producer.get(name)
            beside = self.groups[self.group_of[maker]] if maker is not None else []
            read |= {made for expr in beside for made in expr.outputs}
        found = {self.group_of[use] for name in read for use in self.fusion.uses[name]}
        reduces = _has_reduction(exprs)
        return sorted(g for g in found if g > group and _has_reduction(self.groups[g]) == reduces)

    def _join(self, a: int, b: int) -> None:
        """Joins two groups if nothing between them forbids it and a scheduler takes the result."""
        if a == b or self._path_between(a, b) or self._cut_between(a, b):
            return
        exprs = tuple(sorted((*self.groups[a], *self.groups[b]), key=self.order.__getitem__))
        found = self.scheduler_of(exprs)
        if not isinstance(found, Scheduler):
            self.refusals.append(found)
            return
        self.groups[a] = list(exprs)
        del self.groups[b]
        self.group_of.update(dict.fromkeys(exprs, a))

    def _cut_between(self, a: int, b: int) -> bool:
        """True if one group reads the other's segment_set, or only torch can run one of them."""
        for first, second in ((a, b), (b, a)):
            marked = {e.outputs[0] for e in self.groups[first] if e.op == "segment_set"}
            if any(marked & set(names_of(e)) for e in self.groups[second]):
                return True
        both = self.groups[a] + self.groups[b]
        return any(e.row.kind is OpKind.EXTERNAL for e in both)

    def _readers(self, group: int) -> set[int]:
        return {
            self.group_of[use]
            for expr in self.groups[group]
            for name in expr.outputs
            for use in self.fusion.uses[name]
            if use in self.group_of
        } - {group}

    def _path_between(self, a: int, b: int) -> bool:
        """True if a third group lies on a path between them: joining would make a cycle."""
        for source, sink in ((a, b), (b, a)):
            stack = list(self._readers(source) - {sink})
            seen = set(stack)
            while stack:
                for reader in self._readers(stack.pop()):
                    if reader == sink:
                        return True
                    if reader not in seen:
                        seen.add(reader)
                        stack.append(reader)
        return False

    def _sorted(self) -> list[list[OpRecord]]:
        """Groups in topological order, ties by first expression."""
        waiting: dict[int, set[int]] = {g: set() for g in self.groups}
        for group in self.groups:
            for reader in self._readers(group):
                waiting[reader].add(group)
        done: list[int] = []
        while waiting:
            ready = min(
                (g for g, needs in waiting.items() if not needs - set(done)),
                key=lambda g: self.order[self.groups[g][0]],
            )
            done.append(ready)
            del waiting[ready]
        return [self.groups[g] for g in done]
