# SPDX-License-Identifier: Apache-2.0
"""Fusions on meshes, every argument in any placement: all ranks together make what one makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from helpers import lockstep
from hypothesis import example, given, settings
from hypothesis import strategies as st

from thunder_fuser import FusionDefinition
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.rules.build import define
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.sharding.dtensors import layout_records
from thunder_fuser.sharding.place import place
from thunder_fuser.sharding.placements import Placement, words_of

MESH = Mesh.of([[0, 1], [2, 3]])
KINDS = (ParallelType.MESH_Y, ParallelType.MESH_X)  # in the order of torch's dimensions

# x [8, 4], y [8, 4], w [4, 4], b [4]
BUILDS: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "add": lambda o, x, y, w, b: o.add(x, o.neg(y)),
    "sum rows": lambda o, x, y, w, b: o.sum(o.mul(x, y), [0]),
    "sum columns, kept": lambda o, x, y, w, b: o.mul(x, o.sum(x, [1], keepdim=True)),
    "sum of all": lambda o, x, y, w, b: o.add(o.sum(x), o.sum(y)),
    "max": lambda o, x, y, w, b: o.sub(o.max(x, [0]), o.min(y, [0])),
    "prod": lambda o, x, y, w, b: o.prod(x, [0, 1]),
    "softmax": lambda o, x, y, w, b: o.truediv(x, o.sum(o.exp(x), [1], keepdim=True)),
    "linear": lambda o, x, y, w, b: o.linear(x, w, b),
    "two products": lambda o, x, y, w, b: o.matmul(o.linear(x, w), o.permute(w, [1, 0])),
    "transposes": lambda o, x, y, w, b: o.matmul(o.permute(x, [1, 0]), y),
    "reshape": lambda o, x, y, w, b: o.reshape(o.mul(x, y), [4, 8]),
    "merged": lambda o, x, y, w, b: o.mul(o.reshape(x, [32]), o.reshape(y, [32])),
    "scan": lambda o, x, y, w, b: o.add(o.cumsum(x, 0), y),
    "cat and slice": lambda o, x, y, w, b: o.slice(o.cat([x, y], 0), [2, 0], [12, 4]),
    "flip and pad": lambda o, x, y, w, b: o.pad(o.flip(x, [1]), [1, 1, 0, 0]),
    "broadcast": lambda o, x, y, w, b: o.mul(x, o.broadcast(b, [True, False])),
    "sort": lambda o, x, y, w, b: o.sort(x, 0)[0],
    "select": lambda o, x, y, w, b: o.mul(o.index_select(x, 3, 0), b),
    "made from nothing": lambda o, x, y, w, b: o.add(o.sum(x, [1]), o.iota(8)),
    "the size": lambda o, x, y, w, b: o.truediv(o.sum(x, [0]), o.size(x, 0)),
}


@st.composite
def placements(draw: st.DrawFn, rank: int, partial: bool) -> Placement:
    axes: list[list[ParallelType]] = [[] for _ in range(rank)]
    terms = []
    for kind in KINDS:
        where = draw(st.integers(-1, rank if partial else rank - 1))
        if where == rank:
            terms.append((kind, "sum"))
        elif where >= 0:
            axes[where].append(kind)
    return Placement(tuple(map(tuple, axes)), tuple(terms))


def made(
    name: str, given: list[Placement], target: Placement | None
) -> tuple[FusionDefinition, Any]:
    """The definition on one device, and on the mesh."""
    fd = FusionDefinition()
    shapes = ((8, 4), (8, 4), (4, 4), (4,))
    tensors = [fd.define_tensor([-1] * len(shape), True) for shape in shapes]
    result = BUILDS[name](fd.ops, *tensors)
    if target is not None:
        words = words_of(target, MESH)
        result = fd.ops.redistribute(result, words)
    fd.add_output(result)
    records = [
        record for tensor, one in zip(tensors, given, strict=True)
        for record in layout_records(tensor.name, MESH, one)
    ]
    return fd, define((*fd.records, *records))


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((8, 4), (8, 4), (4, 4), (4,))
    return [torch.rand(shape, generator=generator) + 0.5 for shape in shapes]


X, Y = ParallelType.MESH_X, ParallelType.MESH_Y
ROWS, COLUMNS = Placement(((X,), ())), Placement(((), (X,)))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(list(BUILDS)), placements(2, True), placements(2, True), placements(2, False),
    placements(1, True),
)
@example("linear", COLUMNS, ROWS, COLUMNS, Placement(((),)))
@example("sum rows", ROWS, ROWS, ROWS, Placement(((),)))
def test_all_ranks_together(
    name: str, x: Placement, y: Placement, w: Placement, b: Placement
) -> None:
    fd, fusion = made(name, [x, y, w, b], None)
    assert rebuild(str(fusion)) == fusion
    wholes = inputs()
    (expected,) = evaluate(define(fd.records), wholes)
    local = [lockstep.parts_of(t, fusion, n, MESH)[0]
             for t, n in zip(wholes, fusion.inputs, strict=True)]  # fmt: skip
    placed = place(specialise(fusion, input_keys(fusion, tuple(local))))
    (output,) = [r.inputs[0] for r in placed.definition if r.op == "add_output"]
    found = placed.places[str(output)]
    assert not found.partial
    for rank, (result,) in zip(MESH.ranks, lockstep.run(fusion, wholes, MESH), strict=True):
        part = expected
        for axis, kinds in enumerate(found.axes):
            for kind in kinds:
                part = part.chunk(MESH.size(kind), axis)[MESH.coordinate(rank, kind)]
        torch.testing.assert_close(result, part, msg=f"rank {rank} of {fusion}")


@settings(max_examples=30, deadline=None)
@given(placements(2, True), placements(2, True), placements(2, False))
def test_results_are_where_they_are_wanted(x: Placement, w: Placement, to: Placement) -> None:
    given = [x, ROWS, w, Placement(((),))]
    _, fusion = made("linear", given, to)
    alone, _ = made("linear", given, None)
    wholes = inputs()
    (expected,) = evaluate(define(alone.records), wholes)
    for rank, (result,) in zip(MESH.ranks, lockstep.run(fusion, wholes, MESH), strict=True):
        part = expected
        for axis, kinds in enumerate(to.axes):
            for kind in kinds:
                part = part.chunk(MESH.size(kind), axis)[MESH.coordinate(rank, kind)]
        torch.testing.assert_close(result, part)


def test_what_needs_nothing_moves_nothing() -> None:
    for name, places in {
        "add": [ROWS, ROWS, ROWS, Placement(((),))],
        "sum columns, kept": [ROWS, ROWS, ROWS, Placement(((),))],
    }.items():
        _, fusion = made(name, places, None)
        local = [t.chunk(2)[0] if n != "b" else t for t, n in zip(inputs(), "xywb", strict=True)]
        assert not place(specialise(fusion, input_keys(fusion, tuple(local)))).moves
