# SPDX-License-Identifier: Apache-2.0
"""DTensors <-> meshes and shardings.

    placements (Shard(0), Replicate()) on a mesh [2, 4]    axis 0 on mesh_y

Our placements of results must agree with DTensor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication

from thunder_fuser.errors import CommunicationError, InputError, VerifyError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.layouts import Sharding
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.record import LAYOUT, AttrValue, OpRecord
from thunder_fuser.runtime.evaluate import values_of

Placements = tuple[Any, ...]


def is_dtensor(value: Any) -> bool:
    """True for a DTensor."""
    return isinstance(value, DTensor)


def mesh_of(value: Any) -> Mesh:
    """The mesh of a DTensor."""
    return Mesh.of(value.device_mesh.mesh.tolist())


def local_of(value: Any) -> torch.Tensor:
    """The local tensor of a DTensor, after the collective that makes it has ended."""
    local = value._local_tensor
    return local.trigger_wait() if isinstance(local, AsyncCollectiveTensor) else local


def sharding_of(name: str, value: Any) -> Sharding:
    """The sharding of a DTensor; InputError if it is not Shard and Replicate in equal parts."""
    mesh, rank = mesh_of(value), value.ndim
    found: list[list[Any]] = [[] for _ in range(rank)]
    for dimension, placement in enumerate(value.placements):
        if placement.is_replicate():
            continue
        if not placement.is_shard() or type(placement).__name__ != "Shard":
            raise InputError(
                f"argument {name}", expected="placements Shard and Replicate", got=str(placement),
                do="redistribute it first",
            )  # fmt: skip
        axis = placement.dim % rank
        found[axis].append(mesh.parallel(dimension))
    for axis, on in enumerate(found):
        parts = 1
        for kind in on:
            parts *= mesh.size(kind)
        if value.shape[axis] % parts:
            raise InputError(
                f"argument {name}: axis {axis}",
                expected=f"a multiple of {parts} devices: a split over devices must divide",
                got=f"size {value.shape[axis]}", do="pad the axis first",
            )  # fmt: skip
    return tuple(map(tuple, found))


def placements_of(sharding: Sharding, mesh: Mesh, name: str = "a result") -> Placements:
    """The placements of a sharding; CommunicationError if none express it."""
    found: list[Any] = [Replicate() for _ in mesh.sizes]
    for axis, on in enumerate(sharding):
        dimensions = [mesh.dimension(kind) for kind in on]
        if dimensions != sorted(dimensions):
            raise CommunicationError(
                name, expected="an axis split over the dimensions of the mesh in their order",
                got=str(on),
            )  # fmt: skip
        for dimension in dimensions:
            found[dimension] = Shard(axis)
    return tuple(found)


def layout_records(name: str, mesh: Mesh, sharding: Sharding) -> list[OpRecord]:
    """The calls that give a tensor of a definition this sharding.

    T0.set_device_mesh([0, 1]); T0.split(0, 2, False); T0.parallelize(0, "mesh_x")
    """
    found = [_call(name, "set_device_mesh", mesh=mesh.nested)]
    at = 0
    for on in sharding:
        for kind in on:
            found.append(
                _call(name, "split", axis=at, factor=mesh.size(kind), inner_split=False)
            )
            found.append(_call(name, "parallelize", axis=at, type=kind.value))
            at += 1
        at += 1
    return found


def _call(name: str, op: str, **attrs: AttrValue) -> OpRecord:
    return OpRecord(op, (name,), (), tuple(attrs.items()))


def check_placements(
    fusion: Fusion, arguments: Sequence[Any], ours: Sequence[Placements]
) -> None:
    """Raises CommunicationError if DTensor would place a result differently.

    fusion: specialised, with the sizes of whole tensors. Its ops run in torch on DTensors without
    data. Nothing is compared if DTensor lacks a rule for one of them.
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
            found = values_of(fusion, inputs)
        except (NotImplementedError, RuntimeError, TypeError, ValueError, VerifyError):
            return None  # DTensor has no rule for the op or its types
    whole = (Replicate(),) * mesh.ndim
    results = [found[output.name] for output in fusion.outputs]
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


def without_layouts(records: Sequence[OpRecord]) -> tuple[OpRecord, ...]:
    """The definition without layouts, for whole tensors in plain memory."""
    return tuple(record for record in records if record.op not in LAYOUT)
