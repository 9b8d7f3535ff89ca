# SPDX-License-Identifier: Apache-2.0
"""The layouts of tensors: in memory, from the LAYOUT records of a definition, and over devices.

    T0.split(0, 2); T0.reorder([1, 0]); T0.merge(0); T0.set_allocation_domain([0], [True])
->  T0: logical [i0{6}], allocation [i0.i*i0.o{6}]

The sharding of a tensor lists, for each logical axis, the dimensions of the mesh it is spread over:

    logical [i0{8}, i1{4}], allocation [i0.o{2}@mesh_x, i0.i{4}, i1{4}]    ->  ((mesh_x,), ())

The device with coordinate c has run c of size / devices elements. So an axis on devices is the
outer part of a split: [i0.o@mesh_y, i0.i.o@mesh_x, i0.i.i].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thunder_fuser.errors import DefinitionError, MeshError
from thunder_fuser.ir.binding import axis_sizes
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
    merged_name,
)
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.mesh import Mesh, Sharding
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.ir.rules.shapes import normalise_axis
from thunder_fuser.ir.rules.streams import without_streams
from thunder_fuser.ir.scalar import const


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
        if record.op == "set_partial":
            term = (ParallelType(record.attr("on")), str(record.attr("reduce")))
            return replace(view, partial=(*view.partial, term))
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
        chain, stream = without_streams(view, self._chains.get(view.name, ()))
        if stream is not None:
            if view.name in self._set:
                what, expected = f"axis {stream.name} on stream", "no set_allocation_domain"
                raise DefinitionError(f"{view.name}: {what}", expected=expected, got="one")
            view = replace(view, stream=stream)
        if chain and view.name not in self._set:
            if not any(isinstance(transform, Parallelize) for transform in chain):
                raise _not_set(view, "transforms")
            view = replace(view, domain=_on_devices(view, chain))
        on_devices = any(axis.parallel.is_device for axis in view.domain.transformed)
        if view.mesh is not None or view.partial or on_devices:
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
    if record.integer("factor") < 1:
        got = repr(record.integer("factor"))
        raise DefinitionError(what, expected="a factor >= 1", got=got)
    return Split(axis.name, record.integer("factor"), bool(record.attr("inner_split")))


def _allocated(view: TensorView, record: OpRecord, chain: tuple[Transform, ...]) -> TensorDomain:
    axes, what = view.domain.loop_axes, f"{view.name}.set_allocation_domain"
    order = record.ints("axes")
    if sorted(order) != list(range(len(axes))):
        listed = ", ".join(map(str, axes))
        raise DefinitionError(what, expected=f"each axis of [{listed}] once", got=str(order))
    recorded = record.attr("contiguity")
    flags = recorded if isinstance(recorded, tuple) else (bool(recorded),) * len(axes)
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
    if any(not isinstance(transform, (Split, Parallelize)) for transform in chain):
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


# ---- over devices


def shards(view: TensorView) -> Sharding:
    """The sharding in a tensor's domains; MeshError if it is invalid."""
    on, terms = _devices(view.domain), [kind for kind, _ in view.partial]
    if (on or terms) and view.mesh is None:
        thing = "a partial tensor" if terms else f"axis {next(iter(on))}"
        expected, do = "a mesh for what is on devices", "call set_device_mesh first"
        raise MeshError(f"{view.name}: {thing}", expected=expected, got="none", do=do)
    if view.mesh is not None:
        for kind in terms:
            view.mesh.dimension(kind)  # raises if the mesh lacks it
    if len({*on.values(), *terms}) != len(on) + len(terms):
        listed = ", ".join(f"{name}@{kind.value}" for name, kind in on.items())
        expected = "at most one axis for each dimension of the mesh"
        raise MeshError(view.name, expected=expected, got=listed)
    outer = {t.axis: t for t in view.domain.transforms if isinstance(t, Split)}
    parts = tuple(_of_axis(view, axis.name, on, outer) for axis in view.domain.no_reductions)
    lost = set(on) - {name for name, _ in sum(parts, ())}
    if lost:
        (name, *_) = sorted(lost)
        raise MeshError(
            f"{view.name}: axis {name} on {on[name].value}",
            expected="the outermost part of one logical axis",
            got=f"allocation [{', '.join(map(str, view.domain.memory))}]",
            do="use outer_split, and parallelize its outer axis",
        )
    return tuple(tuple(kind for _, kind in axis) for axis in parts)


def _of_axis(
    view: TensorView, name: str, on: dict[str, ParallelType], splits: dict[str, Split]
) -> tuple[tuple[str, ParallelType], ...]:
    """(part, dimension) for the parts of a logical axis on devices."""
    part = name + ".o"
    if name in on:  # the whole axis, with one element on each device
        _check_parts(view, name, name, on[name])
        return ((name, on[name]),)
    if part not in on or name not in splits:
        return ()
    _check_parts(view, name, part, on[part])
    return ((part, on[part]), *_of_axis(view, name + ".i", on, splits))


def _check_parts(view: TensorView, name: str, part: str, parallel: ParallelType) -> None:
    """MeshError unless the part of an axis has one element for each device, in equal runs."""
    assert view.mesh is not None
    extents = axis_sizes(view.domain, {a.name: a.extent for a in view.domain.no_reductions})
    extent, devices = extents[name], view.mesh.size(parallel)
    if extents[part] is not const(devices):
        expected = f"size {devices}, the devices of {view.mesh} along it"
        what = f"{view.name}: axis {part} on {parallel.value}"
        raise MeshError(what, expected=expected, got=f"size {extents[part]}")
    if extent.is_const and extent.value % devices:
        what = f"{view.name}: axis {name} over {parallel.value}"
        expected = f"a multiple of {devices} devices: a split over devices must divide"
        raise MeshError(what, expected=expected, got=f"size {extent}", do="pad the axis first")


def _devices(domain: TensorDomain) -> dict[str, ParallelType]:
    """The axes on devices, each with its dimension of the mesh."""
    return {t.axis: t.parallel for t in domain.transforms if isinstance(t, Parallelize)}


def local_domain(view: TensorView) -> TensorDomain:
    """The domains of one device's part: without axes on devices, with shorter logical axes.

    logical [i0{8}], allocation [i0.o{2}@mesh_x, i0.i{4}]  ->  logical [i0{4}], allocation [i0]
    logical [i0{2}, i1{4}], allocation [i0{2}@mesh_x, i1]  ->  logical [i0{1}, i1{4}]
    """
    if view.mesh is None:
        return view.domain
    on = _devices(view.domain)
    names: dict[str, str] = {}  # i0.i stands for i0 where i0.o is on devices
    kept: list[Transform] = []
    for transform in view.domain.transforms:
        if isinstance(transform, Split) and transform.axis + ".o" in on:
            names[transform.axis + ".i"] = _name(transform.axis, names)
        elif isinstance(transform, Merge):
            merge = Merge(_name(transform.outer, names), _name(transform.inner, names))
            old = merged_name(transform.outer, transform.inner)
            names[old] = merged_name(merge.outer, merge.inner)
            kept.append(merge)
        elif isinstance(transform, Reorder):
            here = (n for n in transform.order if n not in on or _whole(n))
            kept.append(Reorder(tuple(_name(n, names) for n in here)))
        elif isinstance(transform, Split):
            kept.append(replace(transform, axis=_name(transform.axis, names)))
    axes = view.domain.transformed
    stays = [at for at, axis in enumerate(axes) if axis.name not in on or _whole(axis.name)]
    places = zip(view.domain.allocation, view.domain.contiguity, strict=True)
    rest = [(stays.index(at), flag) for at, flag in places if at in stays]
    allocation, contiguity = tuple(at for at, _ in rest), tuple(flag for _, flag in rest)
    counts = iter(_device_counts(view))
    logical = tuple(
        axis if axis.is_reduction else replace(axis, extent=axis.extent // next(counts))
        for axis in view.domain.logical
    )
    return TensorDomain(logical, allocation, contiguity, logical, tuple(kept))


def _whole(name: str) -> bool:
    """True for a logical axis that is itself on devices. It keeps its place, with size 1."""
    return "." not in name and "*" not in name


def _name(name: str, names: dict[str, str]) -> str:
    """i0.i.o, with i0.i standing for i0  ->  i0.o"""
    if name in names:
        return names[name]
    for old in sorted(names, key=len, reverse=True):
        if name.startswith(old + "."):
            return names[old] + name[len(old) :]
    return name


def _device_counts(view: TensorView) -> list[int]:
    """The number of devices that each logical axis is spread over."""
    assert view.mesh is not None
    return [view.mesh.devices(on) for on in shards(view)]


def global_sizes(view: TensorView, local: Sequence[int]) -> tuple[int, ...]:
    """The logical sizes of a tensor whose part on each device has these sizes."""
    if view.mesh is None:
        return tuple(local)
    return tuple(size * count for size, count in zip(local, _device_counts(view), strict=True))
