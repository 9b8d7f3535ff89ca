# SPDX-License-Identifier: Apache-2.0
"""The axes of a tensor, and the three domains they form.

logical     one IterDomain for each dimension, including reduced ones (r)
allocation  the logical axes, possibly transformed, in memory order, outermost first
loop        the logical axes after Split, Merge and Reorder, as a kernel iterates over them

The name of a transformed axis says how it was made:
    i1 --split 8--> i1.o, i1.i          i0, i1 --merge--> i0*i1
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce

from thunder_fuser.errors import ScheduleError
from thunder_fuser.ir.scalar import Scalar, ceil_div, const


class IterType(Enum):
    """The kind of an axis. The value is the first letter of its name."""

    ITERATION = "i"
    REDUCTION = "r"
    BROADCAST = "b"


class ParallelType(Enum):
    """What iterates over an axis. The value is how it prints."""

    SERIAL = "serial"
    UNROLL = "unroll"
    VECTORIZE = "vectorize"
    BIDX = "blockIdx.x"
    BIDY = "blockIdx.y"
    CLUSTER = "cluster"  # the blocks of a cluster, which share their shared memory
    TIDX = "threadIdx.x"
    TIDY = "threadIdx.y"
    MESH_X = "mesh_x"  # the devices along the last dimension of a mesh
    MESH_Y = "mesh_y"
    MESH_Z = "mesh_z"
    STREAM = "stream"  # a loop of the host program, each piece on a stream (ir/rules/streams.py)
    mesh_x, mesh_y, mesh_z, stream = MESH_X, MESH_Y, MESH_Z, STREAM  # as nvFuser spells them

    @property
    def is_device(self) -> bool:
        return self in (ParallelType.MESH_X, ParallelType.MESH_Y, ParallelType.MESH_Z)

    @property
    def is_block(self) -> bool:
        return self in (ParallelType.BIDX, ParallelType.BIDY, ParallelType.CLUSTER)

    @property
    def is_thread(self) -> bool:
        return self in (ParallelType.TIDX, ParallelType.TIDY)


@dataclass(frozen=True, slots=True)
class IterDomain:
    """One axis: its name, extent and kind, and what iterates over it in a kernel."""

    name: str
    extent: Scalar
    kind: IterType = IterType.ITERATION
    parallel: ParallelType = ParallelType.SERIAL

    @property
    def is_broadcast(self) -> bool:
        return self.kind is IterType.BROADCAST

    @property
    def is_reduction(self) -> bool:
        return self.kind is IterType.REDUCTION

    def __str__(self) -> str:
        at = "" if self.parallel is ParallelType.SERIAL else f"@{self.parallel.value}"
        return f"{self.name}{{{self.extent}}}{at}"


@dataclass(frozen=True, slots=True)
class Split:
    """axis -> axis.o, axis.i, where axis.i has the extent `factor`. The last step may be partial.

    inner=False: axis.o has the extent `factor`. shift: an expression of other axes in [0, factor),
    with axis = factor*axis.o + axis.i - shift. The first step may then be partial too.
    """

    axis: str
    factor: int
    inner: bool = True
    shift: Scalar | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """outer, inner -> outer*inner, whose extent is the product."""

    outer: str
    inner: str


@dataclass(frozen=True, slots=True)
class Reorder:
    """The axes in a new order, by name."""

    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parallelize:
    """axis -> axis@parallel"""

    axis: str
    parallel: ParallelType


@dataclass(frozen=True, slots=True)
class StreamAxis:
    """An axis in equal pieces, each computed on a stream.

    name: of the axis of pieces; axis: the position of the logical one; pieces: on each device, 0
    while its size is unknown; devices: over which the pieces are spread.
    """

    name: str
    axis: int
    pieces: int
    devices: int = 1


Transform = Split | Merge | Reorder | Parallelize
Domain = tuple[IterDomain, ...]


def merged_name(outer: str, inner: str) -> str:
    """The name of a merged axis.

    >>> merged_name("i0", "i1")
    'i0*i1'
    """
    return f"{outer}*{inner}"


def apply(domain: Domain, transform: Transform) -> Domain:
    """Applies one transform to a loop domain.

    [i0{4}, i1{100}] --Split("i1", 8)-->        [i0{4}, i1.o{13}, i1.i{8}]
    [i0{4}, i1{97}] --Split("i1", 8, i0 % 8)--> [i0{4}, i1.o{13}, i1.i{8}]
    [i0{4}, i1{100}] --Merge("i0", "i1")-->     [i0*i1{400}]
    """
    if isinstance(transform, Reorder):
        by_name = {axis.name: axis for axis in domain}
        if by_name.keys() != set(transform.order) or len(transform.order) != len(domain):
            expected, got = f"each of {', '.join(by_name)}", ", ".join(transform.order)
            raise ScheduleError("reorder", expected=expected, got=got)
        return tuple(by_name[name] for name in transform.order)
    if isinstance(transform, Merge):
        at = position(domain, transform.outer)
        return (*domain[:at], _merged(domain, transform), *domain[at + 2 :])
    at = position(domain, transform.axis)
    if isinstance(transform, Split):
        return (*domain[:at], *_split(domain[at], transform), *domain[at + 1 :])
    parallel = replace(domain[at], parallel=transform.parallel)
    return (*domain[:at], parallel, *domain[at + 1 :])


def position(domain: Domain, name: str) -> int:
    """The position of an axis in a domain; ScheduleError if it is absent."""
    for at, axis in enumerate(domain):
        if axis.name == name:
            return at
    names = ", ".join(axis.name for axis in domain)
    raise ScheduleError(f"axis {name}", expected=f"one of {names}", got=name)


def _split(axis: IterDomain, split: Split) -> Domain:
    if split.factor < 1:
        got = str(split.factor)
        raise ScheduleError(f"split of {axis.name}", expected="a factor >= 1", got=got)
    reach = axis.extent if split.shift is None else axis.extent + (split.factor - 1)
    sizes = (ceil_div(reach, split.factor), const(split.factor))
    outer, inner = sizes if split.inner else sizes[::-1]
    return (
        IterDomain(axis.name + ".o", outer, axis.kind),
        IterDomain(axis.name + ".i", inner, axis.kind),
    )


def _merged(domain: Domain, merge: Merge) -> IterDomain:
    at, next_at = position(domain, merge.outer), position(domain, merge.inner)
    if next_at != at + 1:
        what, got = f"merge of {merge.outer} and {merge.inner}", ", ".join(map(str, domain))
        raise ScheduleError(what, expected="adjacent axes", got=got)
    outer, inner = domain[at], domain[next_at]
    kind = inner.kind if outer.is_broadcast else outer.kind
    return IterDomain(merged_name(outer.name, inner.name), outer.extent * inner.extent, kind)


def replay(domain: Domain, transforms: tuple[Transform, ...]) -> Domain:
    """Applies the transforms of a reference domain to a tensor that may lack some of its axes.

    A merge with a missing side keeps the extent of the other side. Axes that only the tensor has,
    such as the operand of a slice, come last.

    >>> i1 = IterDomain("i1", const(100))
    >>> [str(a) for a in replay((i1,), (Merge("i0", "i1"), Split("i0*i1", 8)))]
    ['i0*i1.o{13}', 'i0*i1.i{8}']
    """
    return reduce(_replay_transform, transforms, domain)


def _replay_transform(domain: Domain, transform: Transform) -> Domain:
    names = [axis.name for axis in domain]
    if isinstance(transform, Reorder):
        kept = [name for name in transform.order if name in names]
        unlisted = [name for name in names if name not in kept]
        return apply(domain, Reorder((*kept, *unlisted)))
    if isinstance(transform, Merge):
        both = [n for n in (transform.outer, transform.inner) if n in names]
        if len(both) == 1:
            name = merged_name(transform.outer, transform.inner)
            return tuple(replace(a, name=name) if a.name in both else a for a in domain)
        return apply(domain, transform) if both else domain
    return apply(domain, transform) if transform.axis in names else domain


@dataclass(frozen=True, slots=True)
class TensorDomain:
    """The domains of one tensor.

    `transforms` turn the logical axes into `transformed`. `allocation` lists positions in those,
    outermost first; without transforms it is a permutation, which strides describe. contiguity has
    an entry for each axis of the allocation: True, False, or None for a broadcast axis, which may
    be expanded.
    """

    logical: Domain
    allocation: tuple[int, ...]
    contiguity: tuple[bool | None, ...]
    loop: Domain = ()
    transforms: tuple[Transform, ...] = ()

    @staticmethod
    def of(logical: Domain) -> TensorDomain:
        """Row-major and contiguous axes without a schedule."""
        kept = tuple(axis for axis in logical if not axis.is_reduction)
        contiguity = tuple(None if axis.is_broadcast else True for axis in kept)
        return TensorDomain(logical, tuple(range(len(kept))), contiguity, logical)

    @property
    def no_reductions(self) -> Domain:
        """The axes that a consumer sees."""
        return tuple([axis for axis in self.logical if axis.kind is not IterType.REDUCTION])

    @property
    def is_row_major(self) -> bool:
        """True if memory has the logical axes in their order."""
        return not self.transforms and self.allocation == tuple(range(len(self.allocation)))

    @property
    def loop_axes(self) -> Domain:
        """The axes of the loop domain, without reduced ones."""
        return tuple(axis for axis in self.loop if not axis.is_reduction)

    @property
    def transformed(self) -> Domain:
        """The axes that a consumer sees after the transforms of the allocation."""
        return reduce(apply, self.transforms, self.no_reductions)

    @property
    def memory(self) -> Domain:
        """The axes in memory order, from the slowest to the fastest."""
        axes = self.transformed
        return tuple(axes[at] for at in self.allocation)

    def with_allocation(
        self, allocation: tuple[int, ...], contiguity: tuple[bool | None, ...]
    ) -> TensorDomain:
        return replace(self, allocation=allocation, contiguity=contiguity)

    def __str__(self) -> str:
        logical = ", ".join(str(axis) for axis in self.logical)
        memory = ", ".join(str(a) if self.transforms else a.name for a in self.memory)
        loop = ", ".join(str(axis) for axis in self.loop)
        return f"logical[{logical}] allocation[{memory}] loop[{loop}]"
