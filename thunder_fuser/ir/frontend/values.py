# SPDX-License-Identifier: Apache-2.0
"""The tensors of a definition and their axes.

The calls on a Tensor set its memory layout and its sharding:

    T0.split(0, 2)                                 [i0{6}] -> [i0.o{3}, i0.i{2}]
    T0.merge(1, 0)                                 -> [i0.i*i0.o{6}]
    T0.set_allocation_domain(T0.get_loop_domain()) memory holds 0 2 4 1 3 5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thunder_fuser.errors import DefinitionError, shown
from thunder_fuser.ir.domain import IterDomain, ParallelType, TensorDomain
from thunder_fuser.ir.frontend.kinds import Scalar, Value, checked
from thunder_fuser.ir.record import AttrValue, OpRecord
from thunder_fuser.ir.rules.shapes import normalise_axis


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a tensor after its transforms so far."""

    tensor: Tensor
    domain: IterDomain

    def parallelize(self, parallel: ParallelType | str) -> None:
        """Spreads the axis over devices or streams, as `Tensor.parallelize`."""
        self.tensor.parallelize(self.tensor.get_loop_domain().index(self), parallel)

    @property
    def extent(self) -> Any:
        return self.domain.extent

    def __repr__(self) -> str:
        return str(self.domain)


@dataclass(frozen=True, slots=True, repr=False)
class Tensor(Value):
    """A tensor of a definition.

    A negative axis counts from the last one. DefinitionError if an axis is out of range.
    """

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.owner.view_of(self.name).shape)

    def shape(self) -> list[Scalar]:
        """The sizes of all axes, for arithmetic and shapes."""
        return self.owner.ops.shape(self)  # type: ignore[no-any-return]

    def size(self, dim: int) -> Scalar:
        """The size of one axis."""
        return self.owner.ops.size(self, dim)  # type: ignore[no-any-return]

    @checked
    def split(self, axis: int, factor: int, inner_split: bool = True) -> Tensor:
        """axis -> outer, inner. `factor` is the size of the inner axis, else of the outer one."""
        at = self._position(axis, "split")
        return self._record("split", axis=at, factor=factor, inner_split=inner_split)

    def inner_split(self, axis: int, factor: int) -> Tensor:
        """axis -> [size / factor, factor]"""
        return self.split(axis, factor)

    def outer_split(self, axis: int, factor: int) -> Tensor:
        """axis -> [factor, size / factor]"""
        return self.split(axis, factor, inner_split=False)

    @checked
    def merge(self, outer: int, inner: int | None = None) -> Tensor:
        """outer, inner -> one axis at the position of the first. inner: by default the next axis.

        After merge(1, 0) axis 0 is the faster one: element (i, j) is at j * size(0) + i.
        """
        rank = len(self._domain().loop_axes)
        first = normalise_axis(outer, rank, "merge")
        second = normalise_axis(first + 1 if inner is None else inner, rank, "merge")
        if second != first + 1:
            rest = [at for at in range(rank) if at not in (first, second)]
            place = min(first, second)
            self.reorder([*rest[:place], first, second, *rest[place:]])
            first = place
        return self._record("merge", axis=first)

    @checked
    def reorder(self, order: Sequence[int] | Mapping[int, int]) -> Tensor:
        """The axes in a new order: a list of old positions, or {old: new} for some of them."""
        if isinstance(order, Mapping):
            order = _completed(order, len(self._domain().loop_axes))
        return self._record("reorder", order=tuple(self._position(at, "reorder") for at in order))

    @checked
    def axis(self, at: int) -> Axis:
        """One axis after the transforms so far."""
        return self.get_loop_domain()[self._position(at, "axis")]

    def get_logical_domain(self) -> list[Axis]:
        """The axes before any transform."""
        return [Axis(self, axis) for axis in self._domain().no_reductions]

    def get_loop_domain(self) -> list[Axis]:
        """The axes after the transforms so far."""
        return [Axis(self, axis) for axis in self._domain().loop_axes]

    def get_allocation_domain(self) -> list[Axis]:
        """The axes in memory order."""
        return [Axis(self, axis) for axis in self._domain().memory]

    @checked
    def set_allocation_domain(
        self, domain: Sequence[Axis | int], contiguity: Sequence[bool | None] | bool = True
    ) -> Tensor:
        """Sets the memory order of all axes after the transforms, slowest first."""
        axes = self.get_loop_domain()
        places = tuple(_place(axes, at) for at in domain)
        flags = contiguity if isinstance(contiguity, bool) else tuple(contiguity)
        return self._record("set_allocation_domain", axes=places, contiguity=flags)

    @checked
    def parallelize(self, axis: int, parallel: ParallelType | str) -> Tensor:
        """Spreads an axis over the devices along one dimension of the tensor's mesh, or, of a
        matrix product's operand or result, over streams."""
        word = getattr(parallel, "value", parallel)
        if word not in ("mesh_x", "mesh_y", "mesh_z", "stream"):
            expected = "mesh_x, mesh_y, mesh_z or stream"
            do = "leave blocks and threads to the scheduler"
            got = shown(word)
            raise DefinitionError(f"{self.name}: parallelize", expected=expected, got=got, do=do)
        at = self._position(axis, "parallelize")
        return self._record("parallelize", axis=at, type=word)

    @checked
    def set_device_mesh(self, mesh: Any) -> Tensor:
        """The devices that hold the tensor: torch's DeviceMesh, or nested lists of ranks."""
        return self._record("set_device_mesh", mesh=mesh)

    @checked
    def set_partial(self, on: str, reduce: str = "sum") -> Tensor:
        """Each device along a dimension of the mesh holds a term of the tensor."""
        return self._record("set_partial", on=on, reduce=reduce)

    def _domain(self) -> TensorDomain:
        return self.owner.view_of(self.name).domain

    def _position(self, axis: int, op: str) -> int:
        return normalise_axis(axis, len(self._domain().loop_axes), f"{self.name}: {op}")

    def _record(self, op: str, **attrs: AttrValue) -> Tensor:
        self.owner.record(OpRecord(op, (self.name,), (), tuple(attrs.items())))
        return self


def _completed(moves: Mapping[int, int], rank: int) -> list[int]:
    """{old: new} -> old positions in their new order. Other axes keep their order."""
    places = {
        normalise_axis(new, rank, "reorder"): normalise_axis(old, rank, "reorder")
        for old, new in moves.items()
    }
    if len(places) < len(moves) or len(set(places.values())) < len(moves):
        raise DefinitionError("reorder: order", expected="each axis once", got=shown(moves))
    rest = iter(at for at in range(rank) if at not in places.values())
    return [places[at] if at in places else next(rest) for at in range(rank)]


def _place(axes: Sequence[Axis], wanted: Axis | int) -> int:
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return wanted
    call = "set_allocation_domain"
    if not isinstance(wanted, Axis):
        raise DefinitionError(call, expected="an axis or a position", got=shown(wanted))
    names = [axis.domain.name for axis in axes]
    if wanted.domain.name not in names:
        expected = f"axes of [{', '.join(map(str, axes))}]"
        raise DefinitionError(call, expected=expected, got=str(wanted))
    return names.index(wanted.domain.name)
