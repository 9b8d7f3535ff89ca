# SPDX-License-Identifier: Apache-2.0
"""A definition on DTensors: its own entry for each mesh and placements, run on the local tensors.

    execute(DTensor [8, 4] Shard(0), DTensor [4] Replicate())
->  the definition with T0 on mesh_x, on the local [4, 4] and [4]; results are DTensors
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from thunder_fuser.analysis.propagate import propagate
from thunder_fuser.errors import InputError, MeshError
from thunder_fuser.host.dispatch import input_keys
from thunder_fuser.host.placements import (
    Placements,
    check_placements,
    is_dtensor,
    layout_records,
    local_of,
    mesh_of,
    placements_of,
    sharding_of,
    without_layouts,
)
from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Definition
from thunder_fuser.ir.sharding import shards
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.single_flight import Bounded
from thunder_fuser.target import Target

if TYPE_CHECKING:
    from thunder_fuser.cache.entry import FusionEntry


MOST_SHAPES = 256  # of local arguments, whose results' placements one entry keeps


class Placed:
    """The entry of one definition for one mesh and placements."""

    def __init__(self, entry: FusionEntry, arguments: Sequence[Any]) -> None:
        self.entry = entry
        self.mesh = next(value.device_mesh for value in arguments if is_dtensor(value))
        self._specs: Bounded[list[Any]] = Bounded(MOST_SHAPES)

    def execute(self, arguments: Sequence[Any], target: Target | None) -> list[Any]:
        """The results as DTensors."""
        local = [local_of(value) if is_dtensor(value) else value for value in arguments]
        key = tuple(v.shape if isinstance(v, torch.Tensor) else None for v in local)
        specs = self._specs.get(key)
        if specs is None:
            places = self._places(arguments, local)
            results = self.entry.execute(local, target)
            specs = self._specs.keep(key, list(map(self._spec, results, places)))
        else:
            results = self.entry.execute(local, target)
        return [
            result if spec is None else DTensor(result, spec, requires_grad=False)
            for result, spec in zip(results, specs, strict=True)
        ]

    def _spec(self, result: Any, places: Placements) -> Any:
        """What DTensor makes of a local result: kept, as making it takes longer than a kernel."""
        if not isinstance(result, torch.Tensor):
            return None
        return DTensor.from_local(result, self.mesh, places, run_check=False)._spec

    def _places(self, arguments: Sequence[Any], local: Sequence[Any]) -> list[Placements]:
        """How the results are placed, by our rules and by DTensor's."""
        fusion = self.entry.fusion
        entry, values = self.entry.bind(local)
        entry.check(values)
        special = specialise(fusion, input_keys(fusion, tuple(values)))
        spread, mesh = propagate(special), mesh_of(_first(arguments))
        every = [placements_of(spread[o.name], mesh, o.name) for o in special.outputs]
        check_placements(define(without_layouts(special.definition)), arguments, every)
        return [p for p, o in zip(every, special.outputs, strict=True) if o.alias is None]


def _first(arguments: Sequence[Any]) -> Any:
    return next(value for value in arguments if is_dtensor(value))


def placed(
    entry: FusionEntry, arguments: Sequence[Any], make: Callable[[Definition], FusionEntry]
) -> Placed:
    """The entry for such DTensors; InputError or MeshError if they do not go together."""
    fusion = entry.fusion
    mesh = mesh_of(_first(arguments))
    records = []
    for name, value in zip(fusion.inputs, arguments, strict=True):
        _check_one(fusion, name, value, arguments)
        if is_dtensor(value):
            records += layout_records(name, mesh, sharding_of(name, value))
    if any(view.mesh is not None for view in fusion.tensors.values()):
        _check_same(fusion, arguments)
        return Placed(entry, arguments)
    return Placed(make((*entry.definition, *records)), arguments)


def _check_one(fusion: Fusion, name: str, value: Any, arguments: Sequence[Any]) -> None:
    first = _first(arguments)
    if is_dtensor(value):
        if mesh_of(value) != mesh_of(first):
            raise MeshError(
                f"argument {name}", expected=f"the mesh {mesh_of(first)}", got=f"{mesh_of(value)}"
            )
        if value.dim() != len(fusion.tensors[name].shape):
            raise InputError(
                f"argument {name}", expected=f"rank {len(fusion.tensors[name].shape)}",
                got=f"a DTensor of shape {tuple(value.shape)}",
            )  # fmt: skip
    elif isinstance(value, torch.Tensor) and value.dim():
        raise InputError(
            f"argument {name}", expected="a DTensor, as other arguments are",
            got=f"a plain tensor of shape {tuple(value.shape)}",
            do="distribute it over the same mesh, with Replicate() if each device has it whole",
        )  # fmt: skip


def _check_same(fusion: Fusion, arguments: Sequence[Any]) -> None:
    """The DTensors lie as the definition says."""
    for name, value in zip(fusion.inputs, arguments, strict=True):
        view = fusion.tensors[name]
        if not is_dtensor(value):
            continue
        if view.mesh != mesh_of(value):
            raise MeshError(
                f"argument {name}", expected=f"the mesh {view.mesh}", got=str(mesh_of(value))
            )
        wanted, given = shards(view), sharding_of(name, value)
        if wanted != given:
            raise InputError(
                f"argument {name}: placements", got=str(value.placements),
                expected=str(placements_of(wanted, mesh_of(value), name)),
            )  # fmt: skip
