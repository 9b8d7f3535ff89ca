# SPDX-License-Identifier: Apache-2.0
"""The sharding of a tensor: for each logical axis, the dimensions of the mesh it is spread over.

    logical [i0{8}, i1{4}], allocation [i0.o{2}@mesh_x, i0.i{4}, i1{4}]    ->  ((mesh_x,), ())

Each device has the run of size / devices elements with the number of its coordinate. So an axis on
devices is the outer part of a split: [i0.o@mesh_y, i0.i.o@mesh_x, i0.i.i].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from thunder_fuser.errors import MeshError
from thunder_fuser.ir.binding import axis_sizes
from thunder_fuser.ir.domain import (
    Domain,
    Merge,
    Parallelize,
    ParallelType,
    Reorder,
    Split,
    TensorDomain,
    Transform,
    merged_name,
)
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.scalar import const

# For each logical axis, the dimensions of the mesh it is spread over, outermost first.
Sharding = tuple[tuple[ParallelType, ...], ...]


def shards(view: TensorView) -> Sharding:
    """The sharding in a tensor's domains; MeshError if it is invalid."""
    on = _devices(view.domain)
    if on and view.mesh is None:
        raise MeshError(
            f"{view.name}: axis {next(iter(on))}", expected="a mesh for an axis on devices",
            got="none", do="call set_device_mesh first",
        )  # fmt: skip
    if len(set(on.values())) != len(on):
        listed = ", ".join(f"{name}@{kind.value}" for name, kind in on.items())
        raise MeshError(
            f"{view.name}", expected="at most one axis for each dimension of the mesh", got=listed
        )
    outer = {t.axis: t for t in view.domain.transforms if isinstance(t, Split)}
    found = tuple(_of_axis(view, axis.name, on, outer) for axis in view.domain.no_reductions)
    lost = set(on) - {name for name, _ in sum(found, ())}
    if lost:
        (name, *_) = sorted(lost)
        raise MeshError(
            f"{view.name}: axis {name} on {on[name].value}",
            expected="the outermost part of one logical axis",
            got=f"allocation [{', '.join(map(str, view.domain.memory))}]",
            do="use outer_split, and parallelize its outer axis",
        )
    return tuple(tuple(kind for _, kind in axis) for axis in found)


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
        raise MeshError(
            f"{view.name}: axis {name} over {parallel.value}",
            expected=f"a multiple of {devices} devices: a split over devices must divide",
            got=f"size {extent.value}", do="pad the axis first",
        )  # fmt: skip


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
            made = Merge(_name(transform.outer, names), _name(transform.inner, names))
            old = merged_name(transform.outer, transform.inner)
            names[old] = merged_name(made.outer, made.inner)
            kept.append(made)
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
    logical = _local_axes(view.domain.logical, view)
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


def _local_axes(axes: Domain, view: TensorView) -> Domain:
    """The logical axes with the extents of one device's part."""
    counts = iter(_device_counts(view))
    return tuple(
        axis if axis.is_reduction else replace(axis, extent=axis.extent // next(counts))
        for axis in axes
    )


def _device_counts(view: TensorView) -> list[int]:
    """The number of devices that each logical axis is spread over."""
    assert view.mesh is not None
    return [prod(map(view.mesh.size, axis)) for axis in shards(view)]


def global_sizes(view: TensorView, local: Sequence[int]) -> tuple[int, ...]:
    """The logical sizes of a tensor whose part on each device has these sizes."""
    if view.mesh is None:
        return tuple(local)
    return tuple(size * count for size, count in zip(local, _device_counts(view), strict=True))
