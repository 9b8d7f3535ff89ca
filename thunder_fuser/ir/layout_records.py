# SPDX-License-Identifier: Apache-2.0
"""The LAYOUT records of a definition -> the allocation domains and meshes of its tensors.

    T0.split(0, 2); T0.reorder([1, 0]); T0.merge(0); T0.set_allocation_domain([0], [True])
->  T0: logical [i0{6}], allocation [i0.i*i0.o{6}]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thunder_fuser.errors import DefinitionError, MeshError
from thunder_fuser.ir.domain import (
    IterDomain,
    Merge,
    Parallelize,
    ParallelType,
    Reorder,
    Split,
    TensorDomain,
    Transform,
    apply,
)
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.ir.shapes import normalise_axis
from thunder_fuser.ir.sharding import shards


class Layouts:
    """The transforms of each tensor so far, and the tensors with a set allocation domain."""

    def __init__(self) -> None:
        self._chains: dict[str, tuple[Transform, ...]] = {}
        self._set: set[str] = set()

    def add(self, record: OpRecord, view: TensorView) -> TensorView:
        """The tensor after one more call."""
        name, chain = view.name, self._chains.get(view.name, ())
        if record.op == "set_device_mesh":
            mesh = Mesh.of(record.attr("mesh"))
            if view.mesh not in (None, mesh):
                raise MeshError(f"{name}: mesh", expected=str(view.mesh), got=str(mesh))
            return replace(view, mesh=mesh)
        if record.op == "set_allocation_domain":
            self._set.add(name)
            return replace(view, domain=_allocated(view, record, chain))
        if record.op != "parallelize" and name in self._set:
            expected = "transforms before set_allocation_domain"
            raise DefinitionError(f"{name}.{record.op}", expected=expected, got="one after it")
        axes = view.domain.loop_axes
        transform = _transform(axes, record, name)
        self._chains[name] = (*chain, transform)
        domain = replace(view.domain, loop=apply(axes, transform))
        if name in self._set:
            domain = replace(domain, transforms=self._chains[name])
        return replace(view, domain=domain)

    def finish(self, view: TensorView) -> TensorView:
        """The tensor after all calls, with axes on devices added to its allocation domain."""
        chain = self._chains.get(view.name, ())
        if chain and view.name not in self._set:
            if not any(isinstance(one, Parallelize) for one in chain):
                raise _not_set(view, "transforms")
            view = replace(view, domain=_on_devices(view, chain))
        if view.mesh is not None or any(a.parallel.is_device for a in view.domain.transformed):
            shards(view)  # raises for an invalid sharding
        return view


def _not_set(view: TensorView, calls: str) -> DefinitionError:
    expected = f"set_allocation_domain after {calls}"
    do = "call set_allocation_domain(t.get_loop_domain())"
    return DefinitionError(view.name, expected=expected, got="none", do=do)


def _transform(axes: Sequence[IterDomain], record: OpRecord, name: str) -> Transform:
    """The transform of a call, with names of axes in place of positions."""
    what = f"{name}.{record.op}"
    if record.op == "reorder":
        order = record.ints("order")
        if sorted(order) != list(range(len(axes))):
            raise DefinitionError(what, expected=f"each of {len(axes)} axes once", got=str(order))
        return Reorder(tuple(axes[at].name for at in order))
    at = normalise_axis(record.attr("axis"), len(axes), what)
    axis = axes[at]
    if record.op == "parallelize":
        return Parallelize(axis.name, ParallelType(record.attr("type")))
    if axis.parallel.is_device:
        raise DefinitionError(what, expected="an axis that is not on devices", got=str(axis))
    if record.op == "merge":
        normalise_axis(at + 1, len(axes), what)
        return Merge(axis.name, axes[at + 1].name)
    factor: int = record.attr("factor")  # type: ignore[assignment]
    if factor < 1:
        raise DefinitionError(what, expected="a factor >= 1", got=repr(factor))
    return Split(axis.name, factor, bool(record.attr("inner_split")))


def _allocated(view: TensorView, record: OpRecord, chain: tuple[Transform, ...]) -> TensorDomain:
    axes, what = view.domain.loop_axes, f"{view.name}.set_allocation_domain"
    order = record.ints("axes")
    if sorted(order) != list(range(len(axes))):
        listed = ", ".join(map(str, axes))
        raise DefinitionError(what, expected=f"each axis of [{listed}] once", got=str(order))
    given = record.attr("contiguity")
    flags = given if isinstance(given, tuple) else (bool(given),) * len(axes)
    if len(flags) != len(axes):
        expected = f"{len(axes)} entries"
        raise DefinitionError(f"{what}: contiguity", expected=expected, got=str(list(flags)))
    contiguity = tuple(
        None if axes[at].is_broadcast or axes[at].parallel.is_device else flag
        for at, flag in zip(order, flags, strict=True)
    )
    domain = view.domain.with_allocation(order, contiguity)  # type: ignore[arg-type]
    return replace(domain, transforms=chain)


def _on_devices(view: TensorView, chain: tuple[Transform, ...]) -> TensorDomain:
    """The allocation domain with the splits of the chain, otherwise in the same order.

    allocation [i1, i0] of T0, i0 split over devices  ->  [i1, i0.o, i0.i]
    """
    if any(not isinstance(one, (Split, Parallelize)) for one in chain):
        raise _not_set(view, "merge and reorder")
    order = [axis.name for axis in view.domain.memory]
    axes = replace(view.domain, transforms=chain).transformed
    sources = [order.index(axis.name.split(".")[0]) for axis in axes]
    places = sorted(range(len(axes)), key=lambda at: sources[at])
    contiguity = tuple(
        None if axes[at].parallel.is_device else view.domain.contiguity[sources[at]]
        for at in places
    )
    return replace(view.domain, transforms=chain, allocation=tuple(places), contiguity=contiguity)
