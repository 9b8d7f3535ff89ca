# SPDX-License-Identifier: Apache-2.0
"""Memory that strides cannot describe, and parts of sharded tensors, on a CUDA device."""

from __future__ import annotations

import random

import pytest
import torch
from helpers.layouts import is_permutation, lay_out, random_chain, random_shape, stored
from helpers.meshes import on_each, shard

from thunder_fuser import FusionDefinition

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


def test_inner_before_outer() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        y = fd.ops.mul(x, 2.0)
        fd.add_output(y)
        for tensor in (x, y):
            tensor.outer_split(0, 2)
            tensor.merge(1, 0)
            tensor.set_allocation_domain(tensor.get_loop_domain())
    (result,) = fd.execute([torch.tensor([0.0, 3, 1, 4, 2, 5], device="cuda")])
    assert result.storage.tolist() == [0, 6, 2, 8, 4, 10]
    assert result.logical().tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("seed", range(8))
def test_random_chains(seed: int) -> None:
    chance = random.Random(seed)
    shape = random_shape(chance)
    chains = [random_chain(chance, shape) for _ in range(2)]
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape, True)
        y = fd.ops.sub(x, fd.ops.sum(x, [0], keepdim=True))
        fd.add_output(y)
        for tensor, chain in zip((x, y), chains, strict=True):
            lay_out(tensor, chain)
    value = torch.randn(shape, device="cuda")
    given = stored(value, chains[0])
    if is_permutation(chains[0]):
        given = given.permute([chains[0][0][1][0].index(at) for at in range(value.dim())])
    (result,) = fd.execute([given])
    got = result if is_permutation(chains[1]) else result.logical()
    torch.testing.assert_close(got, value - value.sum(0, keepdim=True))


def test_parts_of_a_sharded_tensor() -> None:
    def build() -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], True)
            fd.add_output(fd.ops.add(x, fd.ops.rand_like(x, 7, 3)))
            shard(x, 0, 4)
        return fd

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.add(x, fd.ops.rand_like(x, 7, 3)))
    value = torch.randn(8, 6, device="cuda")
    (expected,) = fd.execute([value])
    found = on_each(4, build, lambda rank: [value.chunk(4)[rank]], None)
    assert torch.equal(torch.cat([results[0] for results in found]), expected)
