# SPDX-License-Identifier: Apache-2.0
"""DTensors as arguments of a definition: what comes back, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers.meshes import as_rank
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import InputError, MeshError

WHOLE = Replicate()


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with as_rank(1, 4):
        yield init_device_mesh("cpu", (4,))


def dtensor(local: torch.Tensor, mesh: DeviceMesh, *placements: Any, **more: Any) -> DTensor:
    return DTensor.from_local(local, mesh, placements, run_check=False, **more)


def added(*ranks: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1] * rank, True) for rank in ranks)
        fd.add_output(fd.ops.add(x, y))
    return fd


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_local_computation(mesh: DeviceMesh, target: str) -> None:
    x, y = torch.arange(8.0).reshape(2, 4), torch.arange(4.0)
    fd = added(2, 1)
    for _ in range(2):
        given = [dtensor(x, mesh, Shard(0)), dtensor(y, mesh, WHOLE)]
        (result,) = fd.execute(given, target=target)
        assert result.placements == (Shard(0),) and result.shape == (8, 4)
        assert torch.equal(result.to_local(), x + y)
    (whole,) = fd.execute([dtensor(x, mesh, WHOLE), dtensor(y, mesh, WHOLE)], target=target)
    assert whole.placements == (WHOLE,) and whole.shape == (2, 4)
    (columns,) = fd.execute([dtensor(x, mesh, Shard(1)), dtensor(y, mesh, Shard(0))])
    assert columns.placements == (Shard(1),)
    (plain,) = fd.execute([x, y], target=target)
    assert not isinstance(plain, DTensor)


def test_an_argument_defined_behind_an_op(mesh: DeviceMesh) -> None:
    """Casts of bfloat16 give values of the typed definition other names than recorded ones."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True, dtype=DataType.BFloat16)
        y = fd.ops.neg(x)
        fd.add_output(fd.ops.add(y, fd.define_tensor([-1], True)))
    ours = torch.ones(2), torch.arange(2.0)
    x, y = dtensor(ours[0].bfloat16(), mesh, Shard(0)), dtensor(ours[1], mesh, Shard(0))
    (result,) = fd.execute([x, y])
    assert result.placements == (Shard(0),)
    assert torch.equal(result.to_local(), ours[1] - ours[0])


def test_parts_of_other_sizes_are_refused_after_equal_ones(mesh: DeviceMesh) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor(shape=[-1, -1]), [1]))
    even = dtensor(torch.ones(2, 4), mesh, Shard(0))
    assert fd.execute([even])[0].shape == (8,)
    with pytest.raises(InputError, match=r"a multiple of 4 devices.* got size 7"):
        fd.execute([dtensor(torch.ones(2, 4), mesh, Shard(0), shape=(7, 4), stride=(4, 1))])


def test_from_pytorch_is_of_the_whole_tensor(mesh: DeviceMesh) -> None:
    given = dtensor(torch.ones(2, 4), mesh, Shard(0))
    with FusionDefinition() as fd:
        x = fd.from_pytorch(given, static_sizes=True)
        fd.add_output(fd.ops.mul(x, fd.ops.size(x, 0)))
    assert torch.equal(fd.execute([given])[0].to_local(), torch.full((2, 4), 8.0))


Arguments = Callable[[DeviceMesh], list[Any]]
REFUSED: tuple[tuple[Arguments, type[Exception], str], ...] = (
    (lambda m: [dtensor(torch.ones(2), m, Shard(0)), torch.ones(8)], InputError,
     "argument T1: expected a DTensor like the other arguments"),
    (lambda m: [dtensor(torch.ones(8), m, _StridedShard(0, split_factor=2)),
                dtensor(torch.ones(8), m, WHOLE)],
     InputError, "argument T0: expected placements Shard, Replicate and Partial"),
    (lambda m: [dtensor(torch.ones(8), m, Shard(0), shape=(31,), stride=(1,))] * 2,
     InputError, r"axis 0: expected a multiple of 4 devices.* got size 31"),
    (lambda m: [dtensor(torch.ones(2), m, Shard(0)),
                dtensor(torch.ones(4), init_device_mesh("cpu", (2, 2)), Shard(0), WHOLE)],
     MeshError, "argument T1: expected the mesh"),
    (lambda m: [dtensor(torch.ones(2, 2), m, Shard(0))] * 2, InputError, "expected rank 1"),
    (lambda m: [dtensor(torch.ones(2), m, Shard(0))], InputError, "expected 2 arguments"),
)  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED)
def test_refused(
    mesh: DeviceMesh, arguments: Arguments, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        added(1, 1).execute(arguments(mesh))


def test_placements_of_the_definition_are_kept(mesh: DeviceMesh) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.neg(x))
        x.set_device_mesh(mesh)
        x.outer_split(0, 4).axis(0).parallelize("mesh_x")
    (result,) = fd.execute([dtensor(torch.ones(2, 4), mesh, Shard(0))])
    assert result.placements == (Shard(0),)
    with pytest.raises(InputError, match=r"argument T0: placements: expected .*Shard\(dim=0\)"):
        fd.execute([dtensor(torch.ones(2, 4), mesh, Shard(1))])


def test_a_sum_over_devices_is_reduced(mesh: DeviceMesh) -> None:
    """Where the elements come from is tested with real processes: test_communication.py."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], True), [0]))
    (result,) = fd.execute([dtensor(torch.ones(2, 4), mesh, Shard(0))])
    assert result.placements == (WHOLE,) and result.shape == (4,)


def test_whole_beside_sharded_is_cut(mesh: DeviceMesh) -> None:
    given = [dtensor(torch.arange(2.0), mesh, Shard(0)), dtensor(torch.arange(8.0), mesh, WHOLE)]
    (result,) = added(1, 1).execute(given)
    assert result.placements == (Shard(0),)
    assert torch.equal(result.to_local(), torch.tensor([2.0, 4.0]))  # rank 1 has rows 2 and 3
