# SPDX-License-Identifier: Apache-2.0
"""A fusion on a mesh -> what one device computes of it, the same text on every device.

    T0 = define_tensor(shape=[8, 4]), its first axis over two devices
    S1 = size(T0, dim=0); T2 = iota(8); T3 = sum(T0, dims=[1]); T4 = add(T3, T2)
->  S0 = define_scalar(coordinate=[[0, 1], "mesh_x"])
    T1 = define_tensor(shape=[4, 4]); S2 = size(T1, dim=0); S3 = mul(S2, 2)
    T4 = iota(8); T5 = reshape(T4, [2, 4]); T6 = index_select(T5, S0, dim=0); ...

Sizes, counters and random numbers are those of the whole tensor: each device makes its part of
them, which its coordinate picks. The coordinate is read at each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from thunder_fuser.analysis.propagate import mesh_of, propagate
from thunder_fuser.ir.build import define
from thunder_fuser.ir.domain import Merge, ParallelType, Split, TensorDomain, Transform, apply
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.layouts import local_domain
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.record import LAYOUT, AttrValue, Literal, OpRecord, names_of
from thunder_fuser.ir.strides import compute_tensor_descriptor, contiguous_strides


def localise(fusion: Fusion) -> Fusion:
    """The part of one device; the fusion itself if it is on no mesh.

    Raises CommunicationError where a result needs elements of other devices.
    """
    mesh = mesh_of(fusion)
    if mesh is None:
        return fusion
    return define(tuple(_Localiser(fusion, mesh).records()))


class _Localiser:
    """Writes the records of one device's part."""

    def __init__(self, fusion: Fusion, mesh: Mesh) -> None:
        self.fusion, self.mesh = fusion, mesh
        self.spread = propagate(fusion)

    def records(self) -> Iterator[OpRecord]:
        yield from self._coordinates()
        laid = {name for r in self.fusion.definition if r.op in LAYOUT for name in names_of(r)}
        for record in self.fusion.definition:
            if record.op in LAYOUT:
                continue
            if record.op == "define_tensor":
                yield self._input(record)
            elif record.op == "size":
                yield from self._size(record)
            elif any(any(self.spread[name]) for name in record.outputs):
                yield from self._op(record)
            else:
                yield record
        for name in laid:
            yield from self._layout(self.fusion.tensors[name])

    def _coordinates(self) -> Iterator[OpRecord]:
        """A scalar for each dimension along which something is made from nothing."""
        made = [r for r in self.fusion.exprs if r.op in _PLACED]
        used = {kind for r in made for on in self.spread[r.outputs[0]] for kind in on}
        for kind in sorted(used, key=lambda one: one.value):
            attrs = (("dtype", DataType.Int), ("coordinate", (self.mesh.nested, kind.value)))
            yield OpRecord("define_scalar", (), (_coordinate(kind),), attrs)

    def _sizes(self, name: str) -> tuple[int, ...]:
        """The sizes of one device's part."""
        view = self.fusion.tensors[name]
        parts = [self._parts(on) for on in self.spread[name]]
        return tuple(size // part for size, part in zip(view.sizes, parts, strict=True))

    def _parts(self, on: tuple[ParallelType, ...]) -> int:
        return prod(map(self.mesh.size, on))

    def _input(self, record: OpRecord) -> OpRecord:
        (name,) = record.outputs
        local = local_domain(self.fusion.tensors[name])
        sizes, strides = self._sizes(name), record.attr("strides")
        new: dict[str, AttrValue] = {"shape": sizes}
        if not local.transforms:
            strides = contiguous_strides(sizes) if strides is None else strides
            contiguity, order = compute_tensor_descriptor(sizes, strides)  # type: ignore[arg-type]
            new |= {"contiguity": contiguity, "stride_order": order, "strides": strides}
        else:
            flags = (None if size == 1 else True for size in sizes)
            order = tuple(range(len(sizes) - 1, -1, -1))
            new |= {"contiguity": tuple(flags), "stride_order": order}
        return replace(record, attrs=tuple({**dict(record.attrs), **new}.items()))

    def _size(self, record: OpRecord) -> Iterator[OpRecord]:
        """The size of the whole tensor: that of the part times the devices."""
        (name,), (source,) = record.outputs, names_of(record)
        dim: int = record.attr("dim")  # type: ignore[assignment]
        parts = self._parts(self.spread[source][dim])
        if parts == 1:
            yield record
            return
        yield replace(record, outputs=(f"{name}.local",))
        yield OpRecord("mul", (f"{name}.local", Literal.of(parts)), (name,))

    def _op(self, record: OpRecord) -> Iterator[OpRecord]:
        name = record.outputs[0]
        key = _SIZES.get(record.op)
        if record.op in _PLACED:
            yield from self._part_of(record)
        elif key is None:
            yield record
        else:
            new = {key: self._ends(record) if record.op == "slice" else self._sizes(name)}
            yield replace(record, attrs=tuple({**dict(record.attrs), **new}.items()))

    def _ends(self, record: OpRecord) -> tuple[int, ...]:
        """Where a slice ends: an axis on devices is in it as a whole."""
        (name,) = record.outputs
        ends: tuple[int, ...] = record.attr("end_indices")  # type: ignore[assignment]
        rows = zip(self.spread[name], self._sizes(name), ends, strict=True)
        return tuple(size if on else end for on, size, end in rows)

    def _part_of(self, record: OpRecord) -> Iterator[OpRecord]:
        """This device's part of a tensor that is made whole: of each axis one run.

        [8, 4] over two devices  ->  [2, 4, 4], the run of this one [1, 4, 4]  ->  [4, 4]
        """
        (name,) = record.outputs
        whole, source = f"{name}.whole", f"{name}.runs"
        yield replace(record, outputs=(whole,))
        sizes: list[int] = []
        kinds: list[ParallelType | None] = []
        for on, size in zip(self.spread[name], self._sizes(name), strict=True):
            sizes += [*map(self.mesh.size, on), size]
            kinds += [*on, None]
        yield _op("reshape", whole, source, new_shape=tuple(sizes))
        for dim, kind in enumerate(kinds):
            if kind is not None:
                out = f"{name}.on_{kind.value}"
                inputs = (source, _coordinate(kind))
                yield OpRecord("index_select", inputs, (out,), (("dim", dim),))
                source = out
        yield _op("reshape", source, name, new_shape=self._sizes(name))

    def _layout(self, view: TensorView) -> Iterator[OpRecord]:
        """The LAYOUT records that are left: those of the part's own memory."""
        local = local_domain(view)
        if view.name in self.fusion.inputs and not local.transforms:
            return
        plain = TensorDomain.of(local.logical)
        if local.transforms or local.allocation != plain.allocation:
            yield from layout_records(view.name, local)


def layout_records(name: str, domain: TensorDomain) -> Iterator[OpRecord]:
    """The calls that give a tensor the allocation of a domain."""
    axes = domain.no_reductions
    for transform in domain.transforms:
        names = [axis.name for axis in axes]
        yield OpRecord(*_call(name, transform, names))
        axes = apply(axes, transform)
    attrs = (("axes", domain.allocation), ("contiguity", domain.contiguity))
    yield OpRecord("set_allocation_domain", (name,), (), attrs)


def _call(
    name: str, transform: Transform, axes: list[str]
) -> tuple[str, tuple[str], tuple[()], tuple[tuple[str, AttrValue], ...]]:
    if isinstance(transform, Split):
        attrs: tuple[tuple[str, AttrValue], ...] = (
            ("axis", axes.index(transform.axis)),
            ("factor", transform.factor),
            ("inner_split", transform.inner),
        )
        return "split", (name,), (), attrs
    if isinstance(transform, Merge):
        return "merge", (name,), (), (("axis", axes.index(transform.outer)),)
    order = tuple(axes.index(axis) for axis in transform.order)  # type: ignore[union-attr]
    return "reorder", (name,), (), (("order", order),)


def _coordinate(kind: ParallelType) -> str:
    return f"coordinate.{kind.value}"


def _op(op: str, source: str, out: str, **attrs: AttrValue) -> OpRecord:
    return OpRecord(op, (source,), (out,), tuple(attrs.items()))


# The attribute that holds the sizes of an op's result.
_SIZES = {
    "broadcast_in_dim": "shape",
    "expand": "shape",
    "reshape": "new_shape",
    "slice": "end_indices",
    "full": "shape",
}

# What is made from nothing, each element by its place.
_PLACED = ("iota", "uniform", "normal")
