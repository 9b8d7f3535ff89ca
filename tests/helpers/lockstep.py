# SPDX-License-Identifier: Apache-2.0
"""All ranks of a mesh in one process: a local fusion, expression by expression, on each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.rules.communication import is_communication
from thunder_fuser.ir.rules.layouts import shards
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import Evaluator
from thunder_fuser.sharding.localise import localise


def parts_of(whole: torch.Tensor, fusion: Fusion, name: str, mesh: Mesh) -> list[torch.Tensor]:
    """What each rank holds of an argument. Of a sum, the first device of a line holds it all."""
    view, found = fusion.tensors[name], []
    for rank in mesh.ranks:
        part = whole
        for axis, kinds in enumerate(shards(view)):
            for kind in kinds:
                part = part.chunk(mesh.size(kind), axis)[mesh.coordinate(rank, kind)]
        lacks = any(mesh.coordinate(rank, kind) for kind, _ in view.partial)
        found.append(torch.zeros_like(part) if lacks else part.contiguous())
    return found


def run(fusion: Fusion, wholes: Sequence[torch.Tensor], mesh: Mesh) -> list[list[torch.Tensor]]:
    """For each rank its results."""
    parts = [parts_of(w, fusion, n, mesh) for w, n in zip(wholes, fusion.inputs, strict=True)]
    inputs = [[part[at] for part in parts] for at in range(len(mesh.ranks))]
    local = localise(specialise(fusion, input_keys(fusion, tuple(inputs[0]))))
    ranks = [Evaluator(local.tensors, torch.device("cpu")) for _ in mesh.ranks]
    for one, given, rank in zip(ranks, inputs, mesh.ranks, strict=True):
        one.read(local.inputs, given)
        for name, _, word in local.coordinates:
            at = mesh.coordinate(rank, ParallelType(word))
            one.values[name] = torch.tensor(at)
    for expr in local.exprs:
        if is_communication(expr):
            _communicate(expr, ranks, mesh)
        else:
            for one in ranks:
                one.run([expr])
    return [[one.values[out.name] for out in local.outputs] for one in ranks]


def _communicate(expr: OpRecord, ranks: Sequence[Evaluator], mesh: Mesh) -> None:
    (name,), (made,) = names_of(expr), expr.outputs
    on = ParallelType(expr.attr("on"))
    found = []
    for rank in mesh.ranks:
        line = [r for r in mesh.ranks if _differ_along(mesh, rank, r, on)]
        given = [ranks[mesh.ranks.index(r)].values[name] for r in line]
        found.append(_result(expr, given, line.index(rank)))
    for one, value in zip(ranks, found, strict=True):
        one.values[made] = value


def _differ_along(mesh: Mesh, a: int, b: int, on: ParallelType) -> bool:
    kinds = [mesh.parallel(at) for at in range(len(mesh.sizes))]
    return all(mesh.coordinate(a, k) == mesh.coordinate(b, k) for k in kinds if k is not on)


def _result(expr: OpRecord, given: list[torch.Tensor], own: int) -> torch.Tensor:
    attr: Any = expr.attr
    if expr.op == "all_gather":
        return torch.cat(given, attr("dim"))
    if expr.op == "all_to_all":
        cut = [one.chunk(len(given), attr("split_dim"))[own] for one in given]
        return torch.cat(cut, attr("cat_dim"))
    stack = torch.stack(given)
    total = {"sum": stack.sum, "max": stack.amax, "min": stack.amin, "product": stack.prod}
    reduced = total[attr("reduce")](0)
    if expr.op == "all_reduce":
        return reduced
    assert expr.op == "reduce_scatter"
    return reduced.chunk(len(given), attr("dim"))[own]
