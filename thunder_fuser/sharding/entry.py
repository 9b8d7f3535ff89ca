# SPDX-License-Identifier: Apache-2.0
"""Runs a definition on DTensors: on their local tensors, for one mesh and placements.

    execute(DTensor [8, 4] Shard(0), DTensor [4] Replicate())
->  runs the definition with T0 on mesh_x, on the local [4, 4] and [4]; results are DTensors

The results' placements must agree with those that DTensor would give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.experimental import implicit_replication

from thunder_fuser.base.threads import Bounded
from thunder_fuser.communication.transport.collectives import remember
from thunder_fuser.errors import CommunicationError, InputError, MeshError, VerifyError
from thunder_fuser.host.call.arguments import check_arguments
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.record import LAYOUT, OpRecord, names_of
from thunder_fuser.ir.rules.build import define
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import values_of
from thunder_fuser.sharding.dtensors import (
    TorchPlacements,
    dtensor_of,
    is_dtensor,
    layout_records,
    local_of,
    placement_of,
    placements_of,
)
from thunder_fuser.sharding.place import place
from thunder_fuser.sharding.placements import annotated
from thunder_fuser.target import Target

MOST_SHAPES = 256  # sets of whole shapes for which an entry caches the results' placements


class LocalFusion(Protocol):
    """What runs a definition on plain tensors: cache/executable.py has it."""

    fusion: Fusion

    def bind(self, arguments: Sequence[Any]) -> tuple[LocalFusion, Sequence[Any]]: ...

    def execute(
        self, arguments: Sequence[Any], target: Target | None, schedules: Any = ()
    ) -> list[Any]: ...


class ShardedEntry:
    """A definition for one mesh and one set of placements of its DTensors."""

    def __init__(self, executable: LocalFusion, arguments: Sequence[Any]) -> None:
        self._executable = executable
        self.mesh = _first(arguments).device_mesh
        remember(self.mesh)
        self._specs: Bounded[list[Any]] = Bounded(MOST_SHAPES)

    def execute(
        self, arguments: Sequence[Any], target: Target | None, schedules: Any = ()
    ) -> list[Any]:
        """The results as DTensors."""
        local = [local_of(value) if is_dtensor(value) else value for value in arguments]
        key = tuple(v.shape if isinstance(v, torch.Tensor) else None for v in arguments)
        specs = self._specs.get(key)
        places = self._places(arguments, local) if specs is None else []
        results = self._executable.execute(local, target, schedules)
        if specs is None:
            specs = self._specs.keep(key, list(map(self._spec, results, places)))
        return list(map(dtensor_of, results, specs))

    def _spec(self, result: Any, places: TorchPlacements) -> Any:
        """The DTensorSpec of a local result. It is cached, since to make it is slow."""
        if not isinstance(result, torch.Tensor):
            return None
        return DTensor.from_local(result, self.mesh, places, run_check=False)._spec

    def _places(self, arguments: Sequence[Any], local: Sequence[Any]) -> list[TorchPlacements]:
        """The placements of the results. CommunicationError if DTensor's rules give others."""
        fusion = self._executable.fusion
        records_of(fusion, arguments)  # InputError where devices would have parts of other sizes
        executable, values = self._executable.bind(local)
        check_arguments(executable.fusion, values)
        special = specialise(fusion, input_keys(fusion, tuple(values)))
        whole = (record for record in special.definition if record.op not in LAYOUT)
        placed, mesh = place(special), Mesh.of(_first(arguments).device_mesh)
        names = [names_of(r)[0] for r in placed.definition if r.op == "add_output"]
        every = [placements_of(placed.places[name], mesh, name) for name in names]
        if not placed.moves:  # else DTensor may communicate differently, with other placements
            _check_placements(define(tuple(whole)), arguments, every)
        return [p for p, o in zip(every, special.outputs, strict=True) if o.alias is None]


def _first(arguments: Sequence[Any]) -> Any:
    return next(value for value in arguments if is_dtensor(value))


def records_of(fusion: Fusion, arguments: Sequence[Any]) -> list[OpRecord]:
    """The calls that place a definition's arguments as such DTensors are; none if it says that
    itself. InputError or MeshError if they do not fit together."""
    has_meshes = any(view.mesh is not None for view in fusion.tensors.values())
    mesh = Mesh.of(_first(arguments).device_mesh)
    records: list[OpRecord] = []
    for name, value in zip(fusion.inputs, arguments, strict=True):
        view = fusion.tensors[name]
        if is_dtensor(value):
            _check_dtensor(view, value, view.mesh if has_meshes else mesh)
            placement = placement_of(name, value)
            if not has_meshes:
                records += layout_records(name, mesh, placement)
            elif placement != annotated(view):
                raise InputError(
                    f"argument {name}: placements", got=str(value.placements),
                    expected=str(placements_of(annotated(view), mesh, name)),
                )  # fmt: skip
        elif isinstance(value, torch.Tensor) and value.dim():
            raise InputError(
                f"argument {name}", expected="a DTensor like the other arguments",
                got=f"a plain tensor of shape {tuple(value.shape)}",
                do="distribute it over the same mesh, with Replicate() if each device has it whole",
            )  # fmt: skip
    return records


def _check_dtensor(view: TensorView, value: Any, mesh: Mesh | None) -> None:
    tensor_mesh = Mesh.of(value.device_mesh)
    if tensor_mesh != mesh:
        raise MeshError(f"argument {view.name}", expected=f"the mesh {mesh}", got=str(tensor_mesh))
    rank, shape = len(view.shape), tuple(value.shape)
    if len(shape) != rank:
        raise InputError(
            f"argument {view.name}", expected=f"rank {rank}", got=f"a DTensor of shape {shape}"
        )


def _check_placements(
    fusion: Fusion, arguments: Sequence[Any], ours: Sequence[TorchPlacements]
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


def _propagated(fusion: Fusion, arguments: Sequence[Any]) -> list[TorchPlacements] | None:
    with FakeTensorMode(allow_non_fake_inputs=True), implicit_replication():
        inputs = [_without_data(value) if is_dtensor(value) else value for value in arguments]
        try:
            values = values_of(fusion, inputs)
        except (NotImplementedError, RuntimeError, TypeError, ValueError, VerifyError):
            return None  # DTensor has no rule for the op or its types
    whole = (Replicate(),) * _first(arguments).device_mesh.ndim
    results = [values[output.name] for output in fusion.outputs]
    return [r.placements if isinstance(r, DTensor) else whole for r in results]


def _without_data(value: Any) -> Any:
    local = value.to_local()
    empty = torch.empty_strided(local.shape, local.stride(), dtype=local.dtype, device=local.device)
    return dtensor_of(empty, value._spec)
