# SPDX-License-Identifier: Apache-2.0
"""Runs a definition on DTensors: on their local tensors, for one mesh and placements.

    execute(DTensor [8, 4] Shard(0), DTensor [4] Replicate())
->  runs the definition with T0 on mesh_x, on the local [4, 4] and [4]; results are DTensors

    placements (Shard(0), Replicate()) on a mesh [2, 4]    axis 0 on mesh_y

The results' placements must agree with those that DTensor would give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication

from thunder_fuser.analysis.place import place
from thunder_fuser.base.threads import Bounded
from thunder_fuser.cache.executable import Executable, Schedules
from thunder_fuser.communication.transport.collectives import remember
from thunder_fuser.errors import CommunicationError, InputError, MeshError, VerifyError
from thunder_fuser.host.call.arguments import check_arguments
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.record import LAYOUT, AttrValue, OpRecord, names_of
from thunder_fuser.ir.rules.build import define
from thunder_fuser.ir.rules.layouts import Sharding, shards
from thunder_fuser.ir.rules.placements import Placement, read, word_of
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import values_of
from thunder_fuser.target import Target

MOST_SHAPES = 256  # sets of local shapes for which an entry caches the results' placements

Placements = tuple[Any, ...]


class ShardedEntry:
    """A definition for one mesh and one set of placements of its DTensors."""

    def __init__(self, executable: Executable, arguments: Sequence[Any]) -> None:
        self._executable = executable
        self.mesh = _first(arguments).device_mesh
        remember(self.mesh)
        self._specs: Bounded[list[Any]] = Bounded(MOST_SHAPES)

    def execute(
        self, arguments: Sequence[Any], target: Target | None, schedules: Schedules = ()
    ) -> list[Any]:
        """The results as DTensors."""
        local = [local_of(value) if is_dtensor(value) else value for value in arguments]
        key = tuple(v.shape if isinstance(v, torch.Tensor) else None for v in local)
        specs = self._specs.get(key)
        places = self._places(arguments, local) if specs is None else []
        results = self._executable.execute(local, target, schedules)
        if specs is None:
            specs = self._specs.keep(key, list(map(self._spec, results, places)))
        return [
            result if spec is None else DTensor(result, spec, requires_grad=False)
            for result, spec in zip(results, specs, strict=True)
        ]

    def _spec(self, result: Any, places: Placements) -> Any:
        """The DTensorSpec of a local result. It is cached, since to make it is slow."""
        if not isinstance(result, torch.Tensor):
            return None
        return DTensor.from_local(result, self.mesh, places, run_check=False)._spec

    def _places(self, arguments: Sequence[Any], local: Sequence[Any]) -> list[Placements]:
        """The placements of the results. CommunicationError if DTensor's rules give others."""
        fusion = self._executable.fusion
        executable, values = self._executable.bind(local)
        check_arguments(executable.fusion, values)
        special = specialise(fusion, input_keys(fusion, tuple(values)))
        whole = (record for record in special.definition if record.op not in LAYOUT)
        placed, mesh = place(special), mesh_of(_first(arguments))
        names = [names_of(r)[0] for r in placed.definition if r.op == "add_output"]
        every = [_result_placements(placed.places[name], mesh, name) for name in names]
        if not placed.moves:  # else DTensor may communicate differently, with other placements
            check_placements(define(tuple(whole)), arguments, every)
        return [p for p, o in zip(every, special.outputs, strict=True) if o.alias is None]


def _result_placements(place: Placement, mesh: Mesh, name: str) -> Placements:
    placements = list(placements_of(place.axes, mesh, name))
    for kind, reduce in place.partial:
        placements[mesh.dimension(kind)] = Partial(reduce)
    return tuple(placements)


def _first(arguments: Sequence[Any]) -> Any:
    return next(value for value in arguments if is_dtensor(value))


def shard(executable: Executable, arguments: Sequence[Any]) -> ShardedEntry:
    """The entry for such DTensors; InputError or MeshError if they do not fit together."""
    fusion = executable.fusion
    has_meshes = any(view.mesh is not None for view in fusion.tensors.values())
    mesh = mesh_of(_first(arguments))
    records: list[OpRecord] = []
    for name, value in zip(fusion.inputs, arguments, strict=True):
        view = fusion.tensors[name]
        if is_dtensor(value):
            _check_dtensor(view, value, view.mesh if has_meshes else mesh)
            placement = placement_of(name, value)
            if not has_meshes:
                records += layout_records(name, mesh, placement.axes, placement.partial)
            elif placement != Placement(shards(view), view.partial):
                wanted = Placement(shards(view), view.partial)
                raise InputError(
                    f"argument {name}: placements", got=str(value.placements),
                    expected=str(_result_placements(wanted, mesh, name)),
                )  # fmt: skip
        elif isinstance(value, torch.Tensor) and value.dim():
            raise InputError(
                f"argument {name}", expected="a DTensor like the other arguments",
                got=f"a plain tensor of shape {tuple(value.shape)}",
                do="distribute it over the same mesh, with Replicate() if each device has it whole",
            )  # fmt: skip
    if has_meshes:
        return ShardedEntry(executable, arguments)
    return ShardedEntry(Executable((*fusion.definition, *records)), arguments)


def _check_dtensor(view: TensorView, value: Any, mesh: Mesh | None) -> None:
    tensor_mesh = mesh_of(value)
    if tensor_mesh != mesh:
        raise MeshError(f"argument {view.name}", expected=f"the mesh {mesh}", got=str(tensor_mesh))
    rank, shape = len(view.shape), tuple(value.shape)
    if len(shape) != rank:
        raise InputError(
            f"argument {view.name}", expected=f"rank {rank}", got=f"a DTensor of shape {shape}"
        )


# ---- DTensors <-> meshes and shardings


def is_dtensor(value: Any) -> bool:
    """True for a DTensor."""
    return isinstance(value, DTensor)


def mesh_of(value: Any) -> Mesh:
    """The mesh of a DTensor."""
    return Mesh.of(value.device_mesh.mesh.tolist())


def local_of(value: Any) -> torch.Tensor:
    """The local tensor of a DTensor. Waits for the collective that makes it."""
    local = value._local_tensor
    return local.trigger_wait() if isinstance(local, AsyncCollectiveTensor) else local


def sharding_of(name: str, value: Any) -> Sharding:
    """The sharding of a DTensor; InputError for other placements than even Shard and Replicate."""
    placement = placement_of(name, value)
    if placement.partial:
        raise _unplaced(name, "Shard and Replicate", value.placements)
    return placement.axes


def placement_of(name: str, value: Any) -> Placement:
    """The placement of a DTensor; InputError for placements other than Shard, Replicate and
    Partial, or if the devices do not divide an axis."""
    try:
        words = list(map(word_of, value.placements))
    except ValueError:
        raise _unplaced(name, "Shard, Replicate and Partial", value.placements) from None
    mesh = mesh_of(value)
    placement = read(words, mesh, value.ndim, f"argument {name}")
    for axis, on in enumerate(placement.axes):
        parts = prod(map(mesh.size, on))
        if value.shape[axis] % parts:
            raise InputError(
                f"argument {name}: axis {axis}",
                expected=f"a multiple of {parts} devices: a split over devices must divide",
                got=f"size {value.shape[axis]}", do="pad the axis first",
            )  # fmt: skip
    return placement


def _unplaced(name: str, expected: str, got: Any) -> InputError:
    do = "redistribute it first"
    return InputError(f"argument {name}", expected=f"placements {expected}", got=str(got), do=do)


def placements_of(sharding: Sharding, mesh: Mesh, name: str = "a result") -> Placements:
    """The placements of a sharding; CommunicationError if none express it."""
    placements: list[Any] = [Replicate() for _ in mesh.sizes]
    for axis, on in enumerate(sharding):
        dimensions = [mesh.dimension(kind) for kind in on]
        if dimensions != sorted(dimensions):
            raise CommunicationError(
                name, expected="an axis split over the dimensions of the mesh in their order",
                got=str(on),
            )  # fmt: skip
        for dimension in dimensions:
            placements[dimension] = Shard(axis)
    return tuple(placements)


def layout_records(
    name: str, mesh: Mesh, sharding: Sharding, partial: tuple[tuple[ParallelType, str], ...] = ()
) -> list[OpRecord]:
    """The calls that give a tensor of a definition this sharding.

    T0.set_device_mesh([0, 1]); T0.split(0, 2, False); T0.parallelize(0, "mesh_x")
    """

    def call(op: str, **attrs: AttrValue) -> OpRecord:
        return OpRecord(op, (name,), (), tuple(attrs.items()))

    records = [call("set_device_mesh", mesh=mesh.nested)]
    at = 0
    for on in sharding:
        for kind in on:
            records.append(call("split", axis=at, factor=mesh.size(kind), inner_split=False))
            records.append(call("parallelize", axis=at, type=kind.value))
            at += 1
        at += 1
    records += [call("set_partial", on=kind.value, reduce=word) for kind, word in partial]
    return records


def check_placements(
    fusion: Fusion, arguments: Sequence[Any], ours: Sequence[Placements]
) -> None:
    """Raises CommunicationError if DTensor would place a result differently.

    It runs the ops in torch on DTensors without data. If DTensor has no rule for an op, nothing is
    compared. fusion: specialised, with the sizes of whole tensors.
    """
    theirs = _propagated(fusion, arguments)
    for output, mine, other in zip(fusion.outputs, ours, theirs or ours, strict=True):
        if tuple(other) != tuple(mine):
            raise CommunicationError(
                f"result {output.name}", expected=f"placements {tuple(other)}, as in DTensor",
                got=str(tuple(mine)), do="redistribute an argument first",
            )  # fmt: skip


def _propagated(fusion: Fusion, arguments: Sequence[Any]) -> list[Placements] | None:
    mesh = next(value.device_mesh for value in arguments if is_dtensor(value))
    with FakeTensorMode(allow_non_fake_inputs=True), implicit_replication():
        inputs = [_without_data(value) if is_dtensor(value) else value for value in arguments]
        try:
            values = values_of(fusion, inputs)
        except (NotImplementedError, RuntimeError, TypeError, ValueError, VerifyError):
            return None  # DTensor has no rule for the op or its types
    whole = (Replicate(),) * mesh.ndim
    results = [values[output.name] for output in fusion.outputs]
    return [r.placements if isinstance(r, DTensor) else whole for r in results]


def _without_data(value: Any) -> Any:
    local = value.to_local()
    empty = torch.empty_strided(
        local.shape, local.stride(), dtype=local.dtype, device=local.device
    )
    return DTensor.from_local(
        empty, value.device_mesh, value.placements, run_check=False, shape=value.shape,
        stride=value.stride(),
    )  # fmt: skip
