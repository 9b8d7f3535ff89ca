# SPDX-License-Identifier: Apache-2.0
"""One rank of a real process group: sharded fusions, each way in, against the unsharded result.

Run by tests/definition/test_processes.py, or by hand:

    torchrun --nproc-per-node 2 tests/helpers/gloo_ranks.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from helpers.one_rank import join, leave, run_checks
from thunder_fuser import DataType, FusionDefinition, ParallelType
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.frontend.values import Tensor

WHOLE = Replicate()


def make(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- (inputs, placements, what torch does, what we do)


def pointwise(fd: Recorder, x: Tensor, y: Tensor) -> Tensor:
    return fd.ops.tanh(fd.ops.sub(fd.ops.mul(x, 2.0), fd.ops.truediv(y, fd.ops.size(x, 0))))


def layer_norm(fd: Recorder, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    variance, mean = fd.ops.var_mean(x, [1], 0, True)
    scaled = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
    return fd.ops.add(fd.ops.mul(scaled, w), b)


def column_parallel(fd: Recorder, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = fd.ops.linear(x, w, b)
    return fd.ops.mul(y, fd.ops.sigmoid(y))


CASES: tuple[tuple[str, list[torch.Tensor], list[Placement], Callable[..., torch.Tensor],
                   Callable[..., Tensor]], ...] = (
    ("pointwise", [make(8, 6), make(8, 6, seed=1)], [Shard(0), Shard(0)],
     lambda x, y: torch.tanh(x * 2.0 - y / 8), pointwise),
    ("layer norm", [make(8, 32), make(32, seed=1), make(32, seed=2)], [Shard(0), WHOLE, WHOLE],
     lambda x, w, b: F.layer_norm(x, (32,), w, b), layer_norm),
    ("column-parallel linear", [make(5, 16), make(24, 16, seed=1), make(24, seed=2)],
     [WHOLE, Shard(0), Shard(0)], lambda x, w, b: F.silu(F.linear(x, w, b)), column_parallel),
)  # fmt: skip


def from_definition(
    inputs: Sequence[torch.Tensor], placements: Sequence[Placement], mesh: DeviceMesh,
    build: Callable[..., Tensor],
) -> torch.Tensor:
    """By hand: local tensors, and the mesh on each tensor of the definition."""
    with FusionDefinition() as fd:
        tensors = [fd.from_pytorch(t) for t in inputs]
        fd.add_output(build(fd, *tensors))
        for tensor, placement in zip(tensors, placements, strict=True):
            tensor.set_device_mesh(mesh)
            if isinstance(placement, Shard):
                tensor.outer_split(placement.dim, mesh.size())
                tensor.axis(placement.dim).parallelize(ParallelType.mesh_x)
    local = [
        distribute_tensor(t, mesh, [p]).to_local() for t, p in zip(inputs, placements, strict=True)
    ]
    return fd.execute(local)[0]


def from_dtensors(
    inputs: Sequence[torch.Tensor], placements: Sequence[Placement], mesh: DeviceMesh,
    build: Callable[..., Tensor],
) -> DTensor:
    """A plain definition, given DTensors."""
    with FusionDefinition() as fd:
        fd.add_output(build(fd, *[fd.from_pytorch(t) for t in inputs]))
    given = [distribute_tensor(t, mesh, [p]) for t, p in zip(inputs, placements, strict=True)]
    return fd.execute(given)[0]


def check_definitions(mesh: DeviceMesh) -> None:
    for name, inputs, placements, reference, build in CASES:
        expected = reference(*inputs)
        result = from_dtensors(inputs, placements, mesh, build)
        torch.testing.assert_close(result.full_tensor(), expected, msg=name)
        local = from_definition(inputs, placements, mesh, build)
        torch.testing.assert_close(local, result.to_local(), msg=name)


def check_whole_tensor_facts(mesh: DeviceMesh) -> None:
    """Counters and random numbers are those of one device."""
    def build(fd: Recorder, x: Tensor) -> Tensor:
        random = fd.ops.uniform(0.0, 1.0, fd.ops.shape(x), DataType.Float, 7, 3)
        places = fd.ops.iota(fd.ops.size(x, 0), dtype=DataType.Float)
        return fd.ops.add(fd.ops.add(x, random), fd.ops.broadcast(places, [False, True]))

    x = make(8, 6)
    with FusionDefinition() as fd:
        fd.add_output(build(fd, fd.from_pytorch(x)))
    (expected,) = fd.execute([x])
    whole = from_dtensors([x], [Shard(0)], mesh, build).full_tensor()
    assert torch.equal(whole, expected)


def check_jit(mesh: DeviceMesh) -> None:
    """thunder.jit on DTensors, with gradients: a column-parallel block after a sharded norm."""
    import thunder

    from thunder_fuser import fuser

    def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(F.layer_norm(x, (32,), w, b)) * 2.0 - x / 3.0

    def column(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w, b)
        return F.gelu(y) - torch.sigmoid(y)

    cases = (
        (norm, 3, [make(8, 32), make(32, seed=1), make(32, seed=2)], [Shard(0), WHOLE, WHOLE]),
        (column, 1, [make(5, 16), make(24, 16, seed=1), make(24, seed=2)],
         [WHOLE, Shard(0), Shard(0)]),
    )
    for function, regions, inputs, placements in cases:
        given = [
            distribute_tensor(t, mesh, [p]).requires_grad_()
            for t, p in zip(inputs, placements, strict=True)
        ]
        plain = [t.clone().requires_grad_() for t in inputs]
        result = thunder.jit(function, executors=[fuser], fuser_strict=True)(*given)
        expected = function(*plain)
        torch.testing.assert_close(result.full_tensor(), expected, msg=function.__name__)
        gradient = torch.ones_like(expected)
        spread = distribute_tensor(gradient, mesh, result.placements)
        ours = torch.autograd.grad(result, given, spread)
        theirs = torch.autograd.grad(expected, plain, gradient)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.full_tensor(), other, msg=function.__name__)
        assert len(fuser.last_claims.regions) == regions, function.__name__


def check_two_dimensions() -> None:
    if dist.get_world_size() != 4:
        return
    mesh = init_device_mesh("cpu", (2, 2))
    x = make(8, 6)
    given = distribute_tensor(x, mesh, [Shard(0), Shard(1)])
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.mul(t, fd.ops.size(t, 1)))
    (result,) = fd.execute([given])
    assert result.placements == (Shard(0), Shard(1))
    torch.testing.assert_close(result.full_tensor(), x * 6)


def main() -> None:
    join()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    run_checks((check_definitions, check_whole_tensor_facts, check_jit), mesh)
    check_two_dimensions()
    leave()


if __name__ == "__main__":
    main()
