# SPDX-License-Identifier: Apache-2.0
"""A definition on DTensors -> the definition on their local tensors, for one mesh and placements.

    execute(DTensor [8, 4] Shard(0), DTensor [4] Replicate())
->  the definition with T0 on mesh_x, on the local [4, 4] and [4]; results are DTensors
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from thunder_fuser.analysis.propagate import propagate
from thunder_fuser.cache.arguments import check_arguments
from thunder_fuser.cache.executable import ExecutableByShape
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
from thunder_fuser.ir.layouts import shards
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.single_flight import Bounded
from thunder_fuser.target import Target

MOST_SHAPES = 256  # sets of local shapes for which one entry keeps the placements of results


class ShardedEntry:
    """One definition for one mesh and placements of its DTensors."""

    def __init__(self, executables: ExecutableByShape, arguments: Sequence[Any]) -> None:
        self._executables = executables
        self.mesh = _first(arguments).device_mesh
        self._specs: Bounded[list[Any]] = Bounded(MOST_SHAPES)

    def execute(self, arguments: Sequence[Any], target: Target | None) -> list[Any]:
        """The results as DTensors."""
        local = [local_of(value) if is_dtensor(value) else value for value in arguments]
        key = tuple(v.shape if isinstance(v, torch.Tensor) else None for v in local)
        specs = self._specs.get(key)
        places = self._places(arguments, local) if specs is None else []
        results = self._executables.execute(local, target)
        if specs is None:
            specs = self._specs.keep(key, list(map(self._spec, results, places)))
        return [
            result if spec is None else DTensor(result, spec, requires_grad=False)
            for result, spec in zip(results, specs, strict=True)
        ]

    def _spec(self, result: Any, places: Placements) -> Any:
        """The DTensorSpec of a local result. It is cached: making it takes longer than a kernel."""
        if not isinstance(result, torch.Tensor):
            return None
        return DTensor.from_local(result, self.mesh, places, run_check=False)._spec

    def _places(self, arguments: Sequence[Any], local: Sequence[Any]) -> list[Placements]:
        """The placements of the results, which our rules and DTensor's must agree on."""
        fusion = self._executables.general.fusion
        executable, values = self._executables.bind(local)
        check_arguments(executable.fusion, values)
        special = specialise(fusion, input_keys(fusion, tuple(values)))
        spread, mesh = propagate(special), mesh_of(_first(arguments))
        every = [placements_of(spread[o.name], mesh, o.name) for o in special.outputs]
        check_placements(define(without_layouts(special.definition)), arguments, every)
        return [p for p, o in zip(every, special.outputs, strict=True) if o.alias is None]


def _first(arguments: Sequence[Any]) -> Any:
    return next(value for value in arguments if is_dtensor(value))


def shard(executables: ExecutableByShape, arguments: Sequence[Any]) -> ShardedEntry:
    """The entry for such DTensors; InputError or MeshError if they do not go together."""
    fusion = executables.general.fusion
    mesh = mesh_of(_first(arguments))
    records = []
    for name, value in zip(fusion.inputs, arguments, strict=True):
        _check_one(fusion, name, value, mesh)
        if is_dtensor(value):
            records += layout_records(name, mesh, sharding_of(name, value))
    if any(view.mesh is not None for view in fusion.tensors.values()):
        _check_same(fusion, arguments)
        return ShardedEntry(executables, arguments)
    return ShardedEntry(ExecutableByShape((*fusion.definition, *records)), arguments)


def _check_one(fusion: Fusion, name: str, value: Any, mesh: Mesh) -> None:
    if is_dtensor(value):
        own = mesh_of(value)
        if own != mesh:
            raise MeshError(f"argument {name}", expected=f"the mesh {mesh}", got=str(own))
        rank, shape = len(fusion.tensors[name].shape), tuple(value.shape)
        if len(shape) != rank:
            raise InputError(
                f"argument {name}", expected=f"rank {rank}", got=f"a DTensor of shape {shape}"
            )
    elif isinstance(value, torch.Tensor) and value.dim():
        raise InputError(
            f"argument {name}", expected="a DTensor like the other arguments",
            got=f"a plain tensor of shape {tuple(value.shape)}",
            do="distribute it over the same mesh, with Replicate() if each device has it whole",
        )  # fmt: skip


def _check_same(fusion: Fusion, arguments: Sequence[Any]) -> None:
    """Raises MeshError or InputError unless the DTensors are sharded as the definition says."""
    for name, value in zip(fusion.inputs, arguments, strict=True):
        view = fusion.tensors[name]
        if not is_dtensor(value):
            continue
        own = mesh_of(value)
        if view.mesh != own:
            raise MeshError(f"argument {name}", expected=f"the mesh {view.mesh}", got=str(own))
        wanted, given = shards(view), sharding_of(name, value)
        if wanted != given:
            raise InputError(
                f"argument {name}: placements", got=str(value.placements),
                expected=str(placements_of(wanted, own, name)),
            )  # fmt: skip
