# SPDX-License-Identifier: Apache-2.0
"""Loop variables -> the index of every axis, by inverting the transforms of a schedule.

A split that does not divide has a last step that runs past the end. Its axis gets a variable of its
own, bounded by the extent, and a Guard that says when the variable is valid:

    i1{100} split 8:  i1 = 8*i1.o + i1.i, guarded by i1 < 100

A shifted split has partial steps at both ends. Its axis has no variable, since the expression shows
where the steps are in memory. An Edge says which elements are within the axis:

    i1{97} split 8, shift i0 % 8:  i1 = 8*i1.o + i1.i - i0 % 8, within the axis if 0 <= i1 < 97

Runs of partial results are such a split too. What is the same for a whole run is read before its
loop, so the number of a run is not computed from the variable:

    i1{100} in runs of 8:  i1 // 8 is i1.o
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from thunder_fuser.analysis.part import Chunked
from thunder_fuser.ir.domain import (
    Domain,
    IterDomain,
    Merge,
    ParallelType,
    Split,
    Transform,
    apply,
    merged_name,
)
from thunder_fuser.ir.scalar import Scalar, conjunction, const, symbol


@dataclass(frozen=True, slots=True)
class Guard:
    """`variable` stands for `value`, and is valid where value < extent."""

    axis: str
    variable: Scalar
    value: Scalar
    extent: Scalar
    is_reduction: bool = False

    def growth(self, loop: Scalar) -> int:
        """What each step of a loop adds to the value; 0 if not all steps add the same.

        If it is not 0, the guard holds in all steps before some step, and in none behind it.
        """
        factor = dict(self.value.terms[0]).get(loop, 0)
        rest = self.value - loop * factor
        return 0 if rest.symbols & loop.symbols else max(factor, 0)


@dataclass(frozen=True, slots=True)
class Edge:
    """The index of an axis whose vectors may begin before its start and end after its end."""

    index: Scalar
    extent: Scalar

    @property
    def holds(self) -> Scalar:
        """True where a lane is within the axis."""
        return conjunction([const(-1).lt(self.index), self.index.lt(self.extent)])


@dataclass(frozen=True)
class LoopIndex:
    """The variable of each loop, the index of each axis before and after transforms, the guards.

    runs: {variable of the axis that is split into runs: (steps of a run, the loop over runs)}
    """

    loops: Mapping[str, Scalar]
    index: Mapping[str, Scalar]
    guards: tuple[Guard, ...]
    edge: Edge | None = None
    runs: Mapping[Scalar, tuple[int, Scalar]] = field(default_factory=dict)

    def settled(self, index: Scalar) -> Scalar:
        """The same index; the loop over runs, where it is the number of a run."""
        if index.op != "div" or index.parts[0] not in self.runs:
            return index
        steps, run = self.runs[index.parts[0]]
        return run if index.parts[1].is_const and index.parts[1].value == steps else index


_AXES = re.compile(r"i\d+(?:\*i\d+)*")
_LETTERS = "ijklmnpqrstuvwxyz"


def _names() -> Callable[[str], str]:
    """Names loop variables: each axis, or run of merged axes, gets a letter, from the outermost on.

    So a loop over merged [i0, i1] has the same name as one over [i1], if i0 has size 1.

    >>> name = _names()
    >>> name("i0*i1.o"), name("i2.i"), name("i0*i1.i"), name("i2.o*i0*i1")
    ('i_o', 'j_i', 'i_i', 'j_o_i')
    """
    letters: dict[str, str] = {}

    def letter(matched: re.Match[str]) -> str:
        number = len(letters)
        unused = _LETTERS[number] if number < len(_LETTERS) else f"z{number}"
        return letters.setdefault(matched.group(), unused)

    return lambda axis: _AXES.sub(letter, axis).replace(".", "_").replace("*", "_")


def loop_index(
    axes: Domain, transforms: tuple[Transform, ...], chunked: Chunked | None = None
) -> LoopIndex:
    """The index of every axis, in one symbol for each loop.

    chunked: the runs of partial results; the block along the reduced axes is the number of a run.
    """
    met, domain = {axis.name: axis for axis in axes}, axes
    for transform in transforms:
        domain = apply(domain, transform)
        met.update({axis.name: axis for axis in domain})
    name_of = _names()
    known = {axis.name: _variable(name_of(axis.name), axis.extent) for axis in domain}
    loops, guards = dict(known), list[Guard]()
    shifted = [t for t in transforms if isinstance(t, Split) and t.shift is not None]
    for transform in reversed(transforms):
        if isinstance(transform, Merge):
            merged = known[merged_name(transform.outer, transform.inner)]
            inner = met[transform.inner].extent
            known[transform.outer], known[transform.inner] = merged // inner, merged % inner
        elif isinstance(transform, Split):
            guard = _joined(transform, known, met[transform.axis], name_of)
            known[transform.axis] = guard.variable
            if guard.variable is not guard.value:
                guards.append(guard)
    if shifted:  # a shift depends on axes that are known only now
        known = {name: index.substitute(known) for name, index in known.items()}
    runs: dict[Scalar, tuple[int, Scalar]] = {}
    if chunked is not None:
        run = runs_loop(domain)
        known[chunked.axis] = loops[run]
        steps = {t.axis: t.factor for t in transforms if isinstance(t, Split)}
        runs = {g.variable: (steps[g.axis], loops[run]) for g in guards if g.axis + ".o" == run}
    edge = next((Edge(known[split.axis], met[split.axis].extent) for split in shifted), None)
    return LoopIndex(loops, known, tuple(guards), edge, runs)


def runs_loop(domain: Domain) -> str:
    """The loop over runs of partial results: blocks of a reduced axis, else the first blocks."""
    blocks = [a for a in domain if a.parallel in (ParallelType.BIDX, ParallelType.BIDY)]
    return next((a.name for a in blocks if a.is_reduction), blocks[0].name)


def _variable(name: str, extent: Scalar) -> Scalar:
    return const(0) if extent is const(1) else symbol(name, 0, int(extent.value) - 1)


def _joined(
    split: Split, known: Mapping[str, Scalar], axis: IterDomain, name_of: Callable[[str], str]
) -> Guard:
    """The index of the axis that was split. value and variable are equal if the split divides."""
    extent = axis.extent
    value = known[split.axis + ".o"] * split.factor + known[split.axis + ".i"]
    if split.shift is not None:
        value = value - split.shift
    elif int(extent.value) % int(split.factor):
        variable = symbol(name_of(split.axis), 0, int(extent.value) - 1)
        return Guard(split.axis, variable, value, extent, axis.is_reduction)
    return Guard(split.axis, value, value, extent)
