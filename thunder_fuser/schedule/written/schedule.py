# SPDX-License-Identifier: Apache-2.0
"""A schedule that a user wrote -> a ScheduledFusion. Printed schedules can be given too.

    def schedule(s):
        s.split("i1", 8)
        s.parallelize("i0", "blockIdx.x")
        ...
        s.cache("T0", "registers")

A text is read and never run. It consists of calls of methods of `Schedule` with plain arguments. A
function is called with a `Schedule`. Both start from the part's axes without any transform, and
rules.py checks the result before it is lowered.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thunder_fuser.errors import GivenScheduleError, ScheduleError, nearest, shown
from thunder_fuser.ir.domain import Domain, Merge, Parallelize, ParallelType, Reorder, Split
from thunder_fuser.schedule.axes import row_shift, size_of
from thunder_fuser.schedule.persistence import cacheable, cached
from thunder_fuser.schedule.scheduled import ScheduledFusion, Transforms, params_of
from thunder_fuser.schedule.scheduler import KernelMatch
from thunder_fuser.schedule.written.rules import FREE, check

PARALLEL = {
    p.value: p for p in ParallelType if not p.is_device and p is not ParallelType.STREAM
}
MEMORIES = ("registers", "shared")
METHODS = ("split", "merge", "reorder", "parallelize", "vectorize", "cache", "inline", "blocks")
FUNCTIONS = ("schedule", "move")
LONGEST_SHOWN = 100  # characters of a line in a message


class LoopTransforms:
    """The axes of a kernel, and the transforms so far."""

    def __init__(self, default: ScheduledFusion) -> None:
        self._default = default
        self._transforms = Transforms(default.axes)

    @property
    def axes(self) -> Domain:
        """The axes now, outermost first: each has a name, an extent and what iterates over it."""
        return self._transforms.domain

    def extent(self, axis: str) -> int:
        """The elements along an axis."""
        return int(self._axis(axis).extent.value)

    def split(self, axis: str, factor: int, shift: str | None = None) -> tuple[str, str]:
        """axis -> axis.o, axis.i, where axis.i has `factor` elements. Returns both names.

        shift: as it prints, where vectors of an odd row start before the row.
        """
        self._axis(axis)
        if type(factor) is not int:
            raise ScheduleError(f"split of {axis}", expected="a whole factor", got=shown(factor))
        self._transforms.add(Split(axis, factor))
        if shift is not None:
            self._shift(axis, factor, shift)
        return axis + ".o", axis + ".i"

    def _shift(self, axis: str, factor: int, shift: str) -> None:
        """Adds the shift to the last split. Only one shift keeps vectors aligned. If the factor
        divides, none is allowed, since a step past the end may read what is not there."""
        part, names = self._default.part, tuple(axis.split("*"))
        is_odd = set(names) <= part.extents.keys() and size_of(part, names) % factor
        legal = row_shift(part, names, factor) if is_odd else None
        if str(legal) != shift:
            raise ScheduleError(f"shift of {axis}", expected=str(legal), got=repr(shift))
        (*before, _), domain = self._transforms.applied, Transforms(self._default.axes)
        for transform in (*before, Split(axis, factor, shift=legal)):
            domain.add(transform)
        self._transforms = domain

    def merge(self, outer: str, inner: str) -> str:
        """Merges two neighbours and returns the name. Both are kept axes, or both reduced."""
        first, second = self._axis(outer), self._axis(inner)
        if first.kind is not second.kind:
            kinds = " and ".join("reduced" if a.is_reduction else "kept" for a in (first, second))
            raise ScheduleError(
                f"merge of {outer} and {inner}", expected="two kept axes or two reduced ones",
                got=kinds,
            )  # fmt: skip
        self._transforms.add(Merge(outer, inner))
        return f"{outer}*{inner}"

    def reorder(self, order: Sequence[str]) -> None:
        """The axes in a new order, outermost first."""
        self._transforms.add(Reorder(tuple(order)))

    def parallelize(self, axis: str, parallel: str | ParallelType) -> None:
        """Says what iterates over an axis: blockIdx.x, threadIdx.x, vectorize, unroll, ..."""
        self._axis(axis)
        parallel_type = PARALLEL.get(parallel) if isinstance(parallel, str) else parallel
        if parallel_type is None or parallel_type not in PARALLEL.values():
            expected, near = f"one of {', '.join(PARALLEL)}", nearest(str(parallel), PARALLEL)
            raise ScheduleError(
                f"parallelize {axis}", expected=expected, got=repr(parallel),
                do=f"write {near}" * bool(near),
            )  # fmt: skip
        self._transforms.add(Parallelize(axis, parallel_type))

    def vectorize(self, axis: str) -> None:
        """A thread reads and writes all elements along the axis at once."""
        self.parallelize(axis, "vectorize")

    def _axis(self, name: str) -> Any:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise ScheduleError(
            f"axis {name}", expected=f"one of {', '.join(axis.name for axis in self.axes)}",
            got=shown(name),
        )  # fmt: skip


class Schedule(LoopTransforms):
    """The schedule of a segment while it is written. Its methods are those of a printed schedule.

    move: the loops that load or store a tile in shared memory, if the segment has one.
    """

    def __init__(self, default: ScheduledFusion) -> None:
        super().__init__(default)
        self.move = LoopTransforms(default)
        self._cached: dict[str, str] = {}
        self._blocks = 0

    def cache(self, name: str, memory: str = "registers") -> None:
        """Keeps a value on chip between passes over a row: in registers, or in shared memory."""
        self._cacheable(name)
        if memory not in MEMORIES:
            expected = f"one of {', '.join(MEMORIES)}"
            raise ScheduleError(f"cache of {name}", expected=expected, got=repr(memory))
        self._cached[name] = memory

    def inline(self, name: str) -> None:
        """Computes a value again in each pass: the default for values that are not cached."""
        self._cacheable(name)
        self._cached.pop(name, None)

    def _cacheable(self, name: str) -> None:
        known = cacheable(self._default)
        if name not in known:
            listed = ", ".join(known) or "none"
            expected = f"a value that several passes over a row need: {listed}"
            raise ScheduleError(f"cache of {name}", expected=expected, got=shown(name))

    def blocks(self, count: int) -> None:
        """How many blocks a multiprocessor shall hold at once; 0: as many as it can."""
        if type(count) is not int or count < 0:
            raise ScheduleError("blocks", expected="a number of blocks", got=shown(count))
        self._blocks = count

    def scheduled(self) -> ScheduledFusion:
        """The schedule so far. That of a scheduler with loops of its own is checked here, any other
        by rules.py."""
        default = self._default
        memories = sorted(set(self._cached.values()))
        if len(memories) > 1:
            raise ScheduleError("caches", expected="one memory for all", got=" and ".join(memories))
        moves = tuple(self.move._transforms.applied)
        loops, scheduler = tuple(self._transforms.applied), default.params.scheduler
        if scheduler not in FREE:
            kept = {buffer.point.name: buffer.memory for buffer in default.persistent}
            tile = default.tile.transforms if default.tile else ()
            if (loops, moves, self._cached) != (default.transforms, tile, kept):
                expected = f"the loops and caches of {scheduler}, as they print"
                raise ScheduleError(f"schedule of {scheduler}", expected=expected, got="others")
            return replace(default, params=replace(default.params, blocks=self._blocks))
        if moves:
            expected = "none, as the segment has no tile"
            raise ScheduleError("def move(s)", expected=expected, got=f"{len(moves)} transforms")
        params = params_of(default.params, self.axes, self._blocks)
        scheduled = replace(default, params=params, transforms=loops)
        return cached(scheduled, self._cached.keys(), *(memories or ["none"]))


ScheduleSource = str | Callable[[Schedule], object]


def given_schedule(
    match: KernelMatch, source: ScheduleSource, alignment: dict[str, int]
) -> ScheduledFusion:
    """The schedule that a text or a function gives; GivenScheduleError unless it is legal."""
    default = match.schedule(alignment)
    s = Schedule(default)
    try:
        if isinstance(source, str):
            _follow(read(source), s)
        else:
            source(s)
        scheduled = s.scheduled()
        check(scheduled, default)
        return scheduled
    except ScheduleError as error:
        raise GivenScheduleError(error.thing, **error.facts) from None
    except Exception as error:  # from the user's function, or from a deeply nested text
        got = f"{type(error).__name__}: {error}"
        thing = "schedule" if isinstance(source, str) else f"the function {source!r}"
        raise GivenScheduleError(thing, got=got) from error


# ---- text


@dataclass(frozen=True, slots=True)
class PrintedCall:
    """A call in a schedule's text: s.method(*arguments, **keywords)."""

    function: str
    method: str
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    line: int


def read(text: str) -> tuple[PrintedCall, ...]:
    """The calls of a printed schedule. ScheduleError for anything else; nothing is run."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        expected = "def schedule(s): with calls of s"
        raise ScheduleError("schedule", expected=expected, got=str(error)) from None
    return tuple(step for statement in body for step in _function(statement))


def _function(node: ast.stmt) -> list[PrintedCall]:
    if not isinstance(node, ast.FunctionDef) or node.name not in FUNCTIONS:
        raise _not_read(node, f"def {' or '.join(FUNCTIONS)}(s)")
    return [_step(node.name, call) for call in node.body if not isinstance(call, ast.Pass)]


def _step(function: str, node: ast.stmt) -> PrintedCall:
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        raise _not_read(node, "a call s.split(...), s.parallelize(...), ...")
    if call.func.attr not in METHODS:
        raise _not_read(node, f"one of s.{', s.'.join(METHODS)}")
    try:
        arguments = tuple(ast.literal_eval(argument) for argument in call.args)
        keywords = tuple((str(k.arg), ast.literal_eval(k.value)) for k in call.keywords)
    except ValueError:
        raise _not_read(node, "plain arguments: names and numbers") from None
    return PrintedCall(function, call.func.attr, arguments, keywords, node.lineno)


def _not_read(node: ast.stmt, expected: str) -> ScheduleError:
    got = ast.unparse(node).partition("\n")[0][:LONGEST_SHOWN]
    return ScheduleError("schedule", expected=expected, got=got, where=f"line {node.lineno} of it")


def _follow(steps: Sequence[PrintedCall], s: Schedule) -> None:
    walks: Mapping[str, LoopTransforms] = {"schedule": s, "move": s.move}
    for step in steps:
        where = f"line {step.line} of the schedule"
        method = getattr(walks[step.function], step.method, None)
        if method is None:
            expected = f"no s.{step.method}: it belongs to def schedule(s)"
            raise ScheduleError("def move(s)", expected=expected, got=step.method, where=where)
        try:
            method(*step.arguments, **dict(step.keywords))
        except ScheduleError as error:
            raise error.at(where) from None
        except TypeError as error:
            wrong = ScheduleError(f"s.{step.method}", expected="its arguments", got=str(error))
            raise wrong.at(where) from None
