# SPDX-License-Identifier: Apache-2.0
"""DTensors of torch <-> placements of a definition.

    DTensor [8, 4], placements (Shard(0), Replicate()) on a mesh [2, 4]
<-> Placement(((mesh_y,), ()))
->  T0.set_device_mesh(...); T0.split(0, 2, False); T0.parallelize(0, "mesh_y")
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from thunder_fuser.errors import CommunicationError, InputError
from thunder_fuser.ir.mesh import Mesh, word_of
from thunder_fuser.ir.record import AttrValue, OpRecord
from thunder_fuser.sharding.placements import Placement, check_even, read

TorchPlacements = tuple[Any, ...]


def is_dtensor(value: Any) -> bool:
    """True for a DTensor."""
    return isinstance(value, DTensor)


def local_of(value: Any) -> torch.Tensor:
    """The local tensor of a DTensor. Waits for the collective that makes it."""
    local = value._local_tensor
    return local.trigger_wait() if isinstance(local, AsyncCollectiveTensor) else local


def dtensor_of(local: Any, spec: Any) -> Any:
    """The DTensor of a local tensor; the value itself if it has no DTensorSpec."""
    return local if spec is None else DTensor(local, spec, requires_grad=False)


def placement_of(name: str, value: Any, *, may_be_partial: bool = True) -> Placement:
    """The placement of a DTensor; InputError for placements other than Shard, Replicate and
    Partial, or if the devices do not divide an axis."""
    try:
        words = list(map(word_of, value.placements))
        if not may_be_partial and any(word.startswith("Partial") for word in words):
            raise ValueError(words)
    except ValueError:
        known = "Shard, Replicate and Partial" if may_be_partial else "Shard and Replicate"
        raise InputError(
            f"argument {name}", expected=f"placements {known}", got=str(value.placements),
            do="redistribute it first",
        ) from None  # fmt: skip
    mesh = Mesh.of(value.device_mesh)
    placement = read(words, mesh, value.ndim, f"argument {name}")
    check_even(placement.axes, value.shape, mesh, InputError, f"argument {name}")
    return placement


def placements_of(placement: Placement, mesh: Mesh, name: str = "a result") -> TorchPlacements:
    """The placements of torch; CommunicationError if none express it."""
    placements: list[Any] = [Replicate() for _ in mesh.sizes]
    for axis, on in enumerate(placement.axes):
        dimensions = [mesh.dimension(kind) for kind in on]
        if dimensions != sorted(dimensions):
            raise CommunicationError(
                name, expected="an axis split over the dimensions of the mesh in their order",
                got=str(on),
            )  # fmt: skip
        for dimension in dimensions:
            placements[dimension] = Shard(axis)
    for kind, reduce in placement.partial:
        placements[mesh.dimension(kind)] = Partial(reduce)
    return tuple(placements)


def layout_records(name: str, mesh: Mesh, placement: Placement) -> list[OpRecord]:
    """The calls that give a tensor of a definition this placement.

    T0.set_device_mesh([0, 1]); T0.split(0, 2, False); T0.parallelize(0, "mesh_x")
    """

    def call(op: str, **attrs: AttrValue) -> OpRecord:
        return OpRecord(op, (name,), (), tuple(attrs.items()))

    records = [call("set_device_mesh", mesh=mesh.nested)]
    at = 0
    for on in placement.axes:
        for kind in on:
            records.append(call("split", axis=at, factor=mesh.size(kind), inner_split=False))
            records.append(call("parallelize", axis=at, type=kind.value))
            at += 1
        at += 1
    terms = placement.partial
    return records + [call("set_partial", on=kind.value, reduce=word) for kind, word in terms]
