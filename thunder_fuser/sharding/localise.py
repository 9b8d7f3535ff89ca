# SPDX-License-Identifier: Apache-2.0
"""A fusion on a mesh -> the part that one device computes, with the same text on every device.

    T0 = define_tensor(shape=[8, 4]), its first axis over two devices
    S1 = size(T0, dim=0); T2 = iota(8); T3 = sum(T0, dims=[1]); T4 = add(T3, T2)
->  S0 = define_scalar(coordinate=[[0, 1], "mesh_x"])
    T1 = define_tensor(shape=[4, 4]); S2 = size(T1, dim=0); S3 = mul(S2, 2)
    T4 = iota(8); T5 = reshape(T4, [2, 4]); T6 = index_select(T5, S0, dim=0); ...

    T1 = redistribute(T0: Partial(sum), [Shard(0)])
->  T1 = reduce_scatter(T0, dim=0, mesh=[0, 1], on="mesh_x")

Sizes, counters and random numbers are those of the whole tensor. Each device takes its part of them
by its coordinate, which is read at each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from thunder_fuser.errors import CommunicationError
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.mesh import Mesh, Sharding
from thunder_fuser.ir.record import AttrValue, Literal, OpRecord, names_of, record_text
from thunder_fuser.ir.rules.build import define
from thunder_fuser.ir.rules.layouts import local_domain
from thunder_fuser.presegment import NEEDED, PASSES
from thunder_fuser.presegment.lay_out import on_storage, with_set_layout
from thunder_fuser.presegment.rewrite import Chain, FusionPass, with_attrs
from thunder_fuser.presegment.specialise import strided
from thunder_fuser.sharding.place import Placed, place
from thunder_fuser.sharding.placements import Step, steps
from thunder_fuser.sharding.propagate import mesh_of


def localise(fusion: Fusion) -> Fusion:
    """The part of one device; the fusion itself if it is on no mesh.

    Raises MeshError or CommunicationError where placements do not fit.
    """
    mesh = mesh_of(fusion)
    if mesh is None:
        return fusion
    domains = {name: local_domain(fusion.tensors[name]) for name in with_set_layout(fusion)}
    local = _Localiser(fusion, mesh, place(fusion))
    return define(tuple(on_storage(local.records(), domains)))


class _Localiser:
    """Writes the records that one device computes. `on_storage` applies layouts afterwards."""

    def __init__(self, fusion: Fusion, mesh: Mesh, placed: Placed) -> None:
        self.fusion, self.mesh, self.placed = fusion, mesh, placed
        self.spread = {name: placement.axes for name, placement in placed.places.items()}

    def records(self) -> Iterator[OpRecord]:
        yield from self._coordinates()
        for record in self.placed.definition:
            if record.op == "define_tensor":
                yield self._input(record)
            elif record.op == "size":
                yield from self._size(record)
            elif record.op == "redistribute":
                yield from self._move(record)
            elif record.attr("streams") is not None:
                yield self._in_streams(record)
            elif any(any(self.spread[name]) for name in record.outputs):
                yield from self._op(record)
            else:
                yield record

    def _coordinates(self) -> Iterator[OpRecord]:
        """A scalar for each dimension along which tensors are cut, or iota or random ones are."""
        generators = [r for r in self.placed.definition if r.op in _PLACED]
        used = {kind for r in generators for on in self.spread[r.outputs[0]] for kind in on}
        moved = (r for r in self.placed.definition if r.op == "redistribute")
        used |= {step.on for r in moved for step in self._steps(r) if step.op == "cut"}
        for kind in sorted(used, key=lambda dimension: dimension.value):
            attrs = (("dtype", DataType.Int), ("coordinate", (self.mesh.nested, kind.value)))
            yield OpRecord("define_scalar", (), (_coordinate(kind),), attrs)

    def _sizes(self, name: str) -> tuple[int, ...]:
        """The sizes of one device's part."""
        parts = map(self.mesh.devices, self.spread[name])
        return tuple(s // part for s, part in zip(self.placed.sizes[name], parts, strict=True))

    def _input(self, record: OpRecord) -> OpRecord:
        (name,) = record.outputs
        if local_domain(self.fusion.tensors[name]).transforms:
            return record  # on_storage gives it the sizes of its storage
        return strided(record, self._sizes(name), record.attr("strides"))

    def _size(self, record: OpRecord) -> Iterator[OpRecord]:
        """The size of the whole tensor: that of the part times the devices."""
        (name,), (source,) = record.outputs, names_of(record)
        parts = self.mesh.devices(self.spread[source][record.integer("dim")])
        if parts == 1:
            yield record
            return
        yield replace(record, outputs=(f"{name}.local",))
        yield OpRecord("mul", (f"{name}.local", Literal.of(parts)), (name,))

    def _op(self, record: OpRecord) -> list[OpRecord]:
        if record.op in _PLACED:
            return self._part_of(record)
        if record.op == "slice":
            return [with_attrs(record, end_indices=self._ends(record))]
        if record.op in _SIZES:
            return [with_attrs(record, **{_SIZES[record.op]: self._sizes(record.outputs[0])})]
        return [record]

    def _ends(self, record: OpRecord) -> tuple[int, ...]:
        """Where a slice ends. It never cuts an axis on devices."""
        (name,) = record.outputs
        ends = record.ints("end_indices")
        rows = zip(self.spread[name], self._sizes(name), ends, strict=True)
        return tuple(size if on else end for on, size, end in rows)

    def _part_of(self, record: OpRecord) -> list[OpRecord]:
        """This device's part of a tensor that is computed whole: one run along each axis.

        [8, 4] over two devices  ->  [2, 4, 4], the run of this one [1, 4, 4]  ->  [4, 4]
        """
        (name,) = record.outputs
        chain = Chain(f"{name}.whole", "part")
        self._cut(chain, self.spread[name], self._sizes(name))
        return [replace(record, outputs=(f"{name}.whole",)), *chain.named(name)]

    def _cut(self, chain: Chain, cuts: Sharding, part: tuple[int, ...]) -> None:
        """Adds the records that take this device's run of each axis."""
        sizes: list[int] = []
        kinds: list[ParallelType | None] = []
        for on, size in zip(cuts, part, strict=True):
            sizes += [*map(self.mesh.size, on), size]
            kinds += [*on, None]
        chain.add("reshape", new_shape=tuple(sizes))
        for dim, kind in enumerate(kinds):
            if kind is not None:
                chain.add("index_select", _coordinate(kind), dim=dim)
        chain.add("reshape", new_shape=part)

    def _in_streams(self, record: OpRecord) -> OpRecord:
        """A product over streams, with the number of pieces on this device.

        streams=[0, 8, 2], axis 0 on two devices  ->  streams=[0, 4]
        """
        axis, pieces = record.ints("streams")[:2]
        parts = self.mesh.devices(self.spread[record.outputs[0]][axis])
        if pieces % parts:
            raise CommunicationError(
                f"{record_text(record)}: axis {axis} on stream", got=f"{pieces} pieces",
                expected=f"a multiple of {parts} pieces, as many for each device",
                do="split the axis by a multiple of the devices",
            )  # fmt: skip
        return with_attrs(record, streams=(axis, pieces // parts))

    # ---- communication

    def _steps(self, record: OpRecord) -> list[Step]:
        (source,), (name,) = names_of(record), record.outputs
        return steps(self.placed.places[source], self.placed.places[name], name)

    def _move(self, record: OpRecord) -> list[OpRecord]:
        """A redistribute as communication along the dimensions of the mesh, one after the other."""
        (source,), (name,) = names_of(record), record.outputs
        chain, sizes = Chain(source, f"to.{name}."), list(self._sizes(source))
        for step in self._steps(record):
            devices = self.mesh.size(step.on)
            if step.split >= 0:
                sizes[step.split] //= devices
            if step.cat >= 0:
                sizes[step.cat] *= devices
            if step.op == "cut":
                cuts = tuple((step.on,) * (at == step.split) for at in range(len(sizes)))
                self._cut(chain, cuts, tuple(sizes))
            else:
                chain.add(step.op, **self._attrs(step))
        return chain.named(name) if chain.records else [OpRecord("set", (source,), (name,))]

    def _attrs(self, step: Step) -> dict[str, AttrValue]:
        group: dict[str, AttrValue] = {"mesh": self.mesh.nested, "on": step.on.value}
        if step.op == "all_gather":
            return {"dim": step.cat, **group}
        if step.op == "all_to_all":
            return {"split_dim": step.split, "cat_dim": step.cat, **group}
        dim: dict[str, AttrValue] = {"dim": step.split} if step.op == "reduce_scatter" else {}
        return {**dim, **group, "reduce": step.reduce}


def _coordinate(kind: ParallelType) -> str:
    return f"coordinate.{kind.value}"


# The attribute that holds the sizes of an op's result.
_SIZES = {
    "broadcast_in_dim": "shape",
    "expand": "shape",
    "reshape": "new_shape",
    "full": "shape",
}

# Ops without tensor operands whose elements depend on their positions.
_PLACED = ("iota", "uniform", "normal")

# The passes over a fusion that may be on a mesh, in order. Those after the first see no mesh.
FUSION_PASSES = (
    FusionPass(localise, frozenset({"set_device_mesh"}), needed="a device computes its own part"),
    *PASSES,
)
NEEDED.update((row.name, row.needed) for row in FUSION_PASSES[:1])
