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

from collections.abc import Sequence
from dataclasses import dataclass, replace

from thunder_fuser.errors import CommunicationError, FuserError, MeshError, shown
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.mesh import Mesh, On, Sharding
from thunder_fuser.ir.rules.layouts import shards


@dataclass(frozen=True, slots=True)
class Placement:
    """axes: for each logical axis, the dimensions of the mesh it is spread over, outermost first.
    partial: the dimensions along which each device holds a term, with the reduction of the terms.
    """

    axes: Sharding
    partial: tuple[tuple[ParallelType, str], ...] = ()

    def on(self, at: int, kinds: On) -> Placement:
        """The same with one axis on other dimensions."""
        return replace(self, axes=(*self.axes[:at], kinds, *self.axes[at + 1 :]))


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


def annotated(view: TensorView) -> Placement:
    """The placement that the definition gives a tensor: whole, if it gives none."""
    axes = shards(view) if view.mesh is not None else ((),) * len(view.shape)
    return Placement(axes, view.partial)


def check_even(
    axes: Sharding, sizes: Sequence[int], mesh: Mesh, error: type[FuserError], what: str
) -> None:
    """Raises the error for the first axis that its devices do not divide."""
    for at, (on, size) in enumerate(zip(axes, sizes, strict=True)):
        if size % mesh.devices(on):
            raise error(
                f"{what}: axis {at}", got=f"size {size}", do="pad the axis first",
                expected=f"a multiple of {mesh.devices(on)} devices:"
                " a split over devices must divide",
            )  # fmt: skip


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
        name, _, argument = word.rstrip(")").partition("(")
        if name == "Shard":
            at = int(argument)
            if not -rank <= at < rank:
                raise MeshError(f"{what}: {word}", expected=f"an axis of {rank}", got=str(at))
            axes[at].append(kind)
        elif name == "Partial":
            partial.append((kind, argument))
    return Placement(tuple(map(tuple, axes)), tuple(partial))


def words_of(placement: Placement, mesh: Mesh) -> tuple[str, ...]:
    """The words of a placement; the inverse of `read`."""
    words = ["Replicate()"] * len(mesh.sizes)
    for axis, kinds in enumerate(placement.axes):
        for kind in kinds:
            words[mesh.dimension(kind)] = f"Shard({axis})"
    for kind, reduce in placement.partial:
        words[mesh.dimension(kind)] = f"Partial({reduce})"
    return tuple(words)


def steps(source: Placement, target: Placement, what: str) -> list[Step]:
    """The steps from one placement to another; CommunicationError if there are none.

    First axes are gathered, or exchanged for others, from the innermost dimension out. Then terms
    are reduced, and axes are cut.
    """
    for term in target.partial:
        if term not in source.partial:
            raise CommunicationError(
                what, expected="only Partial placements that the tensor has already",
                got=f"Partial({term[1]}) along {term[0].value}", do="leave it whole",
            )  # fmt: skip
    way: list[Step] = []
    now = source
    for axis in range(len(now.axes)):
        while now.axes[axis] != target.axes[axis][: len(now.axes[axis])]:
            kind, left = now.axes[axis][-1], now.axes[axis][:-1]
            other = _next_on(now, target, kind)
            now = now.on(axis, left)
            if other is None:
                way.append(Step("all_gather", kind, cat=axis))
            else:
                now = now.on(other, (*now.axes[other], kind))
                way.append(Step("all_to_all", kind, split=other, cat=axis))
    terms = dict(now.partial)
    for axis, wanted in enumerate(target.axes):
        for kind in wanted[len(now.axes[axis]) :]:
            op = "reduce_scatter" if kind in terms else "cut"
            way.append(Step(op, kind, split=axis, reduce=terms.pop(kind, "sum")))
    kept = dict(target.partial)
    left_over = (term for term in terms.items() if term[0] not in kept)
    return [*way, *(Step("all_reduce", kind, reduce=word) for kind, word in left_over)]


def _next_on(now: Placement, target: Placement, kind: ParallelType) -> int | None:
    """The axis that the target spreads over this dimension next; None if there is none."""
    for axis, wanted in enumerate(target.axes):
        have = now.axes[axis]
        if wanted[: len(have) + 1] == (*have, kind):
            return axis
    return None
