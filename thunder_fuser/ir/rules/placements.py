# SPDX-License-Identifier: Apache-2.0
"""The placement of a tensor on a mesh: its sharding, and the dimensions whose devices hold terms.

    placements [Shard(0), Partial(sum)] on a mesh [2, 4]
->  Placement(axes=((mesh_y,), ()), partial=((mesh_x, "sum"),))

`steps` lists the communications and local cuts that lead from one placement to another:

    Partial(sum) -> Shard(0)    reduce_scatter        Shard(0) -> Replicate()    all_gather
    Partial(sum) -> Replicate() all_reduce            Shard(0) -> Shard(1)       all_to_all
    Replicate() -> Shard(0)     cut, which moves nothing
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from thunder_fuser.errors import CommunicationError, MeshError, shown
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.rules.layouts import Sharding

On = tuple[ParallelType, ...]
REDUCTIONS = ("sum", "avg", "product", "min", "max")

_SHARD = re.compile(r"S(?:hard)?\((?:dim=)?(-?\d+)\)")
_PARTIAL = re.compile(r"P(?:artial)?(?:\((\w*)\))?")
_REPLICATE = re.compile(r"R(?:eplicate\(\))?")


@dataclass(frozen=True, slots=True)
class Placement:
    """axes: for each logical axis, the dimensions of the mesh it is spread over, outermost first.
    partial: the dimensions along which each device holds a term, with the reduction of the terms.
    """

    axes: Sharding
    partial: tuple[tuple[ParallelType, str], ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if every device has all elements."""
        return not any(self.axes) and not self.partial

    def on(self, at: int, kinds: On) -> Placement:
        """The same with one axis on other dimensions."""
        return replace(self, axes=(*self.axes[:at], kinds, *self.axes[at + 1 :]))

    def without(self, kind: ParallelType) -> Placement:
        """The same with the terms along one dimension reduced."""
        return replace(self, partial=tuple(one for one in self.partial if one[0] is not kind))


@dataclass(frozen=True, slots=True)
class Step:
    """One communication along a dimension of the mesh, or a cut that keeps this device's part.

    op: all_gather, reduce_scatter, all_reduce, all_to_all or cut; split: the axis that becomes
    shorter; cat: the axis that becomes longer.
    """

    op: str
    on: ParallelType
    split: int = -1
    cat: int = -1
    reduce: str = "sum"


def whole(rank: int) -> Placement:
    """Every device has all elements."""
    return Placement(((),) * rank)


def word_of(placement: Any) -> str:
    """A placement of torch, or its text, as records store it; ValueError if it is none.

    >>> word_of("S(0)"), word_of("Replicate()"), word_of("P(sum)")
    ('Shard(0)', 'Replicate()', 'Partial(sum)')
    """
    text = str(placement)
    if found := _SHARD.fullmatch(text):
        return f"Shard({found[1]})"
    if _REPLICATE.fullmatch(text):
        return "Replicate()"
    found = _PARTIAL.fullmatch(text)
    if found and (found[1] or "sum") in REDUCTIONS:
        return f"Partial({found[1] or 'sum'})"
    raise ValueError(text)


def read(words: Sequence[str], mesh: Mesh, rank: int, what: str) -> Placement:
    """The placement of such words, one for each dimension of the mesh. MeshError if they do not
    fit."""
    if len(words) != len(mesh.sizes):
        expected = f"{len(mesh.sizes)} placements, one for each dimension of the mesh {mesh}"
        raise MeshError(f"{what}: placements", expected=expected, got=shown(list(words)))
    axes: list[list[ParallelType]] = [[] for _ in range(rank)]
    partial = []
    for dimension, word in enumerate(words):
        kind = mesh.parallel(dimension)
        if shard := _SHARD.fullmatch(word):
            at = int(shard[1])
            if not -rank <= at < rank:
                raise MeshError(f"{what}: {word}", expected=f"an axis of {rank}", got=str(at))
            axes[at].append(kind)
        elif term := _PARTIAL.fullmatch(word):
            partial.append((kind, term[1]))
    return Placement(tuple(map(tuple, axes)), tuple(partial))


def words_of(placement: Placement, mesh: Mesh) -> tuple[str, ...]:
    """The words of a placement; the inverse of `read`."""
    found = ["Replicate()"] * len(mesh.sizes)
    for axis, kinds in enumerate(placement.axes):
        for kind in kinds:
            found[mesh.dimension(kind)] = f"Shard({axis})"
    for kind, reduce in placement.partial:
        found[mesh.dimension(kind)] = f"Partial({reduce})"
    return tuple(found)


def steps(source: Placement, target: Placement, what: str) -> list[Step]:
    """The steps from one placement to another; CommunicationError if there are none.

    First axes are gathered, or exchanged for others, from the innermost dimension out. Then terms
    are reduced, and axes are cut.
    """
    for one in target.partial:
        if one not in source.partial:
            raise CommunicationError(
                what, expected="only Partial placements that the tensor has already",
                got=f"Partial({one[1]}) along {one[0].value}", do="leave it whole",
            )  # fmt: skip
    found: list[Step] = []
    now = source
    for axis in range(len(now.axes)):
        while now.axes[axis] != target.axes[axis][: len(now.axes[axis])]:
            kind, left = now.axes[axis][-1], now.axes[axis][:-1]
            other = _next_on(now, target, kind)
            now = now.on(axis, left)
            if other is None:
                found.append(Step("all_gather", kind, cat=axis))
            else:
                now = now.on(other, (*now.axes[other], kind))
                found.append(Step("all_to_all", kind, split=other, cat=axis))
    terms = dict(now.partial)
    for axis, wanted in enumerate(target.axes):
        for kind in wanted[len(now.axes[axis]) :]:
            op = "reduce_scatter" if kind in terms else "cut"
            found.append(Step(op, kind, split=axis, reduce=terms.pop(kind, "sum")))
    kept = dict(target.partial)
    left_over = (one for one in terms.items() if one[0] not in kept)
    return [*found, *(Step("all_reduce", kind, reduce=word) for kind, word in left_over)]


def _next_on(now: Placement, target: Placement, kind: ParallelType) -> int | None:
    """The axis that the target spreads over this dimension next; None if there is none."""
    for axis, wanted in enumerate(target.axes):
        have = now.axes[axis]
        if wanted[: len(have) + 1] == (*have, kind):
            return axis
    return None
