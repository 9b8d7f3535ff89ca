# SPDX-License-Identifier: Apache-2.0
"""The way from one placement to another, played through with all devices in one process."""

from __future__ import annotations

import itertools
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_fuser.errors import CommunicationError, MeshError
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.mesh import Mesh, word_of
from thunder_fuser.sharding.placements import Placement, Step, read, steps, words_of

X, Y = ParallelType.MESH_X, ParallelType.MESH_Y
MESH = Mesh.of([[0, 1, 2], [3, 4, 5]])
WHOLE = torch.arange(12.0 * 6).reshape(12, 6)
Parts = dict[tuple[int, int], torch.Tensor]  # by (coordinate along mesh_y, along mesh_x)
DEVICES = list(itertools.product(range(2), range(3)))


def part(placement: Placement, device: tuple[int, int]) -> torch.Tensor:
    """What a device holds; of a sum, the device 0 of the dimension holds all, the others zeros."""
    at = {Y: device[0], X: device[1]}
    found = WHOLE
    for axis, kinds in enumerate(placement.axes):
        for kind in kinds:
            found = found.chunk(MESH.size(kind), axis)[at[kind]]
    lacks = any(at[kind] for kind, _ in placement.partial)
    return torch.zeros_like(found) if lacks else found


def group(device: tuple[int, int], on: ParallelType) -> list[tuple[int, int]]:
    if on is X:
        return [(device[0], at) for at in range(3)]
    return [(at, device[1]) for at in range(2)]


def moved(parts: Parts, step: Step) -> Parts:
    """The parts after one step, as the collective of this name does it."""
    found: Parts = {}
    for device in DEVICES:
        line = group(device, step.on)
        own, size = line.index(device), len(line)
        if step.op == "all_gather":
            found[device] = torch.cat([parts[one] for one in line], step.cat)
        elif step.op == "all_to_all":
            cut = [parts[one].chunk(size, step.split)[own] for one in line]
            found[device] = torch.cat(cut, step.cat)
        elif step.op == "cut":
            found[device] = parts[device].chunk(size, step.split)[own]
        else:
            total = sum((parts[one] for one in line), torch.zeros(()))
            is_scatter = step.op == "reduce_scatter"
            found[device] = total.chunk(size, step.split)[own] if is_scatter else total
    return found


@st.composite
def placements(draw: st.DrawFn, partial: bool = True) -> Placement:
    """Each dimension of the mesh whole, on an axis, or a sum; inner and outer in any order."""
    axes: list[list[ParallelType]] = [[], []]
    terms = []
    for kind in draw(st.permutations([X, Y])):
        where = draw(st.integers(-1, 2 if partial else 1))
        if where == 2:
            terms.append((kind, "sum"))
        elif where >= 0:
            axes[where].append(kind)
    return Placement(tuple(map(tuple, axes)), tuple(terms))


@given(placements(), placements(partial=False))
def test_every_way_arrives(source: Placement, target: Placement) -> None:
    parts = {device: part(source, device) for device in DEVICES}
    way = steps(source, target, "T0")
    for step in way:
        parts = moved(parts, step)
    for device in DEVICES:
        assert torch.equal(parts[device], part(target, device)), (source, target, way)
    if source == target:
        assert not way


@given(placements())
def test_words_are_read_back(placement: Placement) -> None:
    ordered = all(kinds != (X, Y) for kinds in placement.axes)  # torch splits by dimension 0 first
    found = read(words_of(placement, MESH), MESH, 2, "T0")
    if ordered:
        assert found.axes == placement.axes and set(found.partial) == set(placement.partial)
    counts = [prod(map(MESH.size, kinds)) for kinds in found.axes]
    assert counts == [prod(map(MESH.size, kinds)) for kinds in placement.axes]


def test_fewest_steps() -> None:
    rows, columns = Placement(((X,), ())), Placement(((), (X,)))
    total, whole = Placement(((), ()), ((X, "sum"),)), Placement(((), ()))
    ops = {
        ("all_to_all",): (rows, columns), ("all_gather",): (rows, whole), ("cut",): (whole, rows),
        ("reduce_scatter",): (total, rows), ("all_reduce",): (total, whole), (): (rows, rows),
    }  # fmt: skip
    for expected, (source, target) in ops.items():
        assert tuple(step.op for step in steps(source, target, "T0")) == expected


def test_words() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    found = [word_of(one) for one in (Shard(1), Replicate(), Partial(), Partial("max"), "S(-1)")]
    assert found == ["Shard(1)", "Replicate()", "Partial(sum)", "Partial(max)", "Shard(-1)"]
    for wrong in ("Shard", "Partial(median)", 3):
        with pytest.raises(ValueError, match=str(wrong).partition("(")[0]):
            word_of(wrong)


def test_refused() -> None:
    with pytest.raises(MeshError, match="expected 2 placements, one for each dimension"):
        read(["Shard(0)"], MESH, 2, "T0")
    with pytest.raises(MeshError, match=r"T0: Shard\(2\): expected an axis of 2"):
        read(["Shard(2)", "Replicate()"], MESH, 2, "T0")
    total = Placement(((), ()), ((X, "sum"),))
    with pytest.raises(CommunicationError, match="only Partial placements that the tensor has"):
        steps(Placement(((), ())), total, "T0")
