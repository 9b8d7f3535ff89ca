# SPDX-License-Identifier: Apache-2.0
"""A scheduler matches a part, or refuses it with a reason. A match makes the schedule.

Reduction.match(part, target, options)  ->  NoMatch("reduction: there is no reduction")
                                        or  Reduction(part, ..., kept=(i0,), reduced=(i1,))
found.schedule(alignment)               ->  ScheduledFusion
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from thunder_fuser.analysis.cost import is_cheap
from thunder_fuser.analysis.part import Part, axis_symbols, result_index
from thunder_fuser.base.threads import cached_property
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.domain import Domain, Transform
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.schedule.axes import Build, best_width, size_of
from thunder_fuser.schedule.row_shape import has_order
from thunder_fuser.schedule.scheduled import (
    HeuristicParams,
    ScheduledFusion,
    Transforms,
    reference,
)
from thunder_fuser.target import Target

# What a scheduler decides: the parameters, and the transforms of the kernel's axes.
Decisions = tuple[HeuristicParams, tuple[Transform, ...]]

# To compute a value at more places for one output element costs more than to store and load it.
MAX_PLACES = 8


@dataclass(frozen=True, slots=True)
class NoMatch:
    """Why a scheduler does not take a part."""

    scheduler: str
    reason: str

    def __str__(self) -> str:
        return f"{self.scheduler}: {self.reason}"


@dataclass(frozen=True)
class Match(ABC):
    """A part that a scheduler takes. The subclass is the scheduler; it adds what it found."""

    part: Part
    target: Target
    options: CompileOptions

    name: ClassVar[str]
    makes_kernel: ClassVar[bool] = False  # else torch runs the part
    takes_schedules: ClassVar[bool] = False  # that a user gives

    @classmethod
    @abstractmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> Match | NoMatch:
        """The match of this scheduler, or why it does not take the part."""

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion | None:
        """The schedule for arguments with these alignments in bytes; None where torch runs the
        part."""
        return None


@dataclass(frozen=True)
class KernelMatch(Match):
    """A part that becomes a kernel, and the axes that it keeps and reduces, in memory order.

    beside: the results of other blocks of the same launch (joined.py).
    """

    kept: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    beside: int = field(default=0, kw_only=True)

    makes_kernel = takes_schedules = True
    takes_no: ClassVar[tuple[OpKind, ...]]

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> Match | NoMatch:
        match = _refuse_ops(part, cls) or cls.find(part, target, options)
        if isinstance(match, NoMatch):
            return match
        return match.refuse() or _refuse_reads(part, cls.name) or match

    @classmethod
    @abstractmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> KernelMatch | NoMatch:
        """The match or a refusal. The part has elements, and no ops of the kinds in takes_no."""

    def refuse(self) -> NoMatch | None:
        """Why the scheduler refuses the match after all, such as rows that do not fit on chip."""
        return None

    @abstractmethod
    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion: ...

    @cached_property
    def has_order(self) -> bool:
        """True if the order of its sums is fixed by their sizes; see row_shape.py."""
        return has_order(self.part, self.options)

    @cached_property
    def domain(self) -> Domain:
        """The axes before any transform."""
        return reference(self.part, self.kept, self.reduced)

    @property
    def kept_size(self) -> int:
        return size_of(self.part, self.kept)

    @property
    def reduced_size(self) -> int:
        return size_of(self.part, self.reduced)

    def widest(
        self, build: Build, alignment: dict[str, int], settled: int = 0
    ) -> tuple[int, tuple[Transform, ...]]:
        """The vector width, `settled` if not 0 or else the best one, and its transforms."""
        walked = frozenset(self.reduced)
        width = settled or best_width(self.part, self.domain, build, alignment, walked)
        s = Transforms(self.domain)
        build(s, width)
        return width, tuple(s.applied)

    def scheduled(self, decisions: Decisions, alignment: dict[str, int]) -> ScheduledFusion:
        """The part with these decisions."""
        fields, aligned = (self.part, self.target, self.options), tuple(sorted(alignment.items()))
        return ScheduledFusion(*fields, self.kept, self.reduced, *decisions, aligned)


def _refuse_ops(part: Part, scheduler: type[KernelMatch]) -> NoMatch | None:
    """Refuses tensors without elements, and kinds of ops that the scheduler does not take."""
    if part.has_empty:
        return NoMatch(scheduler.name, "a tensor has no elements")
    for expr in part.exprs:
        kind = expr.row.kind
        if kind in (*scheduler.takes_no, OpKind.COMMUNICATION):
            reason = f"it takes no {kind.value} op: {expr.op} -> {expr.outputs[0]}"
            return NoMatch(scheduler.name, reason)
    return None


def _refuse_reads(part: Part, scheduler: str) -> NoMatch | None:
    """Refuses reductions and scans that are read at other elements than their own, and values that
    the kernel would compute too often."""
    symbols = axis_symbols(part)
    for expr in (*part.reductions, *part.scans):
        name = expr.outputs[0]
        index = result_index(part, name, symbols)
        if any(p.index != index or not p.condition.is_const for p in part.demand.points(name)):
            return NoMatch(scheduler, f"{name} is indexed by another value")
    for name in part.producer:
        count = len({point.index for point in part.demand.points(name)})
        if count > MAX_PLACES:
            return NoMatch(scheduler, f"{name} would be computed at {count} places")
    for expr in part.exprs:
        if expr.row.kind is OpKind.INDEX and _repeats(part, expr):
            source, result = expr.inputs[expr.row.source], expr.outputs[0]
            return NoMatch(scheduler, f"{source} would be computed for each element of {result}")
    return None


def _repeats(part: Part, lookup: OpRecord) -> bool:
    """True if a lookup reads more elements than its source has, and one is expensive to compute."""
    source = str(lookup.inputs[lookup.row.source])
    sizes, wanted = part.tensors[source].sizes, part.tensors[lookup.outputs[0]].sizes
    return prod(wanted) > prod(sizes) and _is_expensive(part, source)


def _is_expensive(part: Part, name: str) -> bool:
    """True if the value, or one that it is computed from, costs more than to store and load it."""
    seen, stack = set[str](), [name]
    while stack:
        expr = part.producer.get(stack.pop())
        if expr is not None and expr.outputs[0] not in seen:
            if not is_cheap(expr.row):
                return True
            seen.add(expr.outputs[0])
            stack.extend(names_of(expr))
    return False
