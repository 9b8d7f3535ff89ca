# SPDX-License-Identifier: Apache-2.0
"""The domains of one device's part: what is on devices is gone, the rest is arranged as before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.meshes import shard

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.rules.layouts import local_domain


def over_rows(x: Tensor) -> None:
    shard(x, 0, 2)


def in_tiles(x: Tensor) -> None:
    shard(x, 0, 2)
    x.split(2, 3)


def in_tiles_of_its_rows(x: Tensor) -> None:
    shard(x, 0, 2)
    x.split(1, 2)


def merged(x: Tensor) -> None:
    shard(x, 0, 2)
    x.merge(1)


def turned(x: Tensor) -> None:
    shard(x, 0, 2)
    x.reorder({1: 2, 2: 1})


CASES: dict[Callable[[Tensor], None], tuple[str, str]] = {
    over_rows: ("i0{4}, i1{6}", "i0{4}, i1{6}"),
    in_tiles: ("i0{4}, i1{6}", "i0{4}, i1.o{2}, i1.i{3}"),
    in_tiles_of_its_rows: ("i0{4}, i1{6}", "i0.o{2}, i0.i{2}, i1{6}"),
    merged: ("i0{4}, i1{6}", "i0*i1{24}"),
    turned: ("i0{4}, i1{6}", "i1{6}, i0{4}"),
}


@pytest.mark.parametrize("arrange", CASES, ids=lambda case: case.__name__)
def test_one_of_two_devices(arrange: Callable[[Tensor], None]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 6], dtype=DataType.Float)
        arrange(x)
        x.set_allocation_domain(x.get_loop_domain(), True)
        fd.add_output(fd.ops.neg(x))
    local = local_domain(fd.fusion.tensors[fd.fusion.inputs[0]])
    shown = tuple(", ".join(map(str, axes)) for axes in (local.logical, local.memory))
    assert shown == CASES[arrange]
