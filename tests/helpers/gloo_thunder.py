# SPDX-License-Identifier: Apache-2.0
"""One rank of a real process group: Thunder's distributed transforms, against one process.

Run by tests/thunder/test_distributed.py, or by hand:

    torchrun --nproc-per-node 2 tests/helpers/gloo_thunder.py
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from thunder_fuser import fuser

import thunder  # isort: skip
from thunder.distributed import FSDPBucketingStrategy, FSDPType, ddp, fsdp  # isort: skip
from thunder.core.transforms import add_transform  # isort: skip
from thunder.distributed.tensor_parallel.column_wise import (  # isort: skip
    TransformForColumnWiseParallel,
)
from thunder.distributed.tensor_parallel.row_wise import (  # isort: skip
    TransformForRowWiseParallel,
)

OPTIONS: dict[str, Any] = {"executors": [fuser], "fuser_strict": True}


class Block(nn.Module):
    """A norm, a gated MLP and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.gate = nn.Linear(16, 32, bias=False)
        self.up = nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Mlp(nn.Module):
    """As Thunder's tensor parallel takes it: one product after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))) * 2)


def block(kind: type[nn.Module] = Block) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def batch(rank: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(50 + rank))


def expected() -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The results of each rank's batch, and the gradients of the mean over ranks."""
    model = block()
    results = [model(batch(rank)) for rank in range(dist.get_world_size())]
    losses = [one.square().mean() for one in results]
    (sum(losses) / len(losses)).backward()
    return [r.detach() for r in results], {n: p.grad for n, p in model.named_parameters()}


def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result = model(x)
    result.square().mean().backward()
    return result.detach()


def parameters_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name.removeprefix("_model."): p for name, p in model.named_parameters()}


def regions() -> int:
    assert fuser.last_claims is not None
    return len(fuser.last_claims.regions)


def check_ddp() -> None:
    results, gradients = expected()
    for bucket in (0.0, 25.0):
        model = ddp(thunder.jit(block(), **OPTIONS), bucket_size_in_mb=bucket)
        found = step(model, batch(dist.get_rank()))
        torch.testing.assert_close(found, results[dist.get_rank()])
        for name, parameter in parameters_of(model).items():
            torch.testing.assert_close(parameter.grad, gradients[name], msg=name)
        assert regions() >= 2


def check_fsdp() -> None:
    results, gradients = expected()
    rank, size = dist.get_rank(), dist.get_world_size()
    for kind in (FSDPType.ZERO2, FSDPType.ZERO3):
        for bucketing in (FSDPBucketingStrategy.NONE, FSDPBucketingStrategy.LAYER):
            model = fsdp(
                thunder.jit(block(), **OPTIONS), device=torch.device("cpu"), sharding_strategy=kind,
                bucketing_strategy=bucketing,
            )
            found = step(model, batch(rank))
            torch.testing.assert_close(found, results[rank])
            for name, parameter in parameters_of(model).items():
                part = gradients[name].chunk(size)[rank]
                torch.testing.assert_close(parameter.grad, part, msg=f"{name} {kind} {bucketing}")
            assert regions() >= 2


def check_tensor_parallel() -> None:
    """Columns of up, rows of down: each rank sees the same batch."""
    rank, size, x = dist.get_rank(), dist.get_world_size(), batch(0)
    plain = block(Mlp)
    result = plain(x)
    result.square().mean().backward()
    model = thunder.jit(block(Mlp), **OPTIONS)
    for parallel, names in (
        (TransformForColumnWiseParallel, ("up",)), (TransformForRowWiseParallel, ("down",)),
    ):  # fmt: skip
        transform = parallel(
            rank=rank, world_size=size, process_group=dist.group.WORLD, target_modules=names
        )
        transform.device = torch.device("cpu")  # Thunder takes CUDA for granted
        model = add_transform(model, transform=[transform])
    found = step(model, x)
    torch.testing.assert_close(found, result.detach())
    gradients = {name: p.grad for name, p in plain.named_parameters()}
    for name, parameter in parameters_of(model).items():
        wanted = gradients[name]
        if name.startswith("up"):
            wanted = wanted.chunk(size, 0)[rank]
        elif name == "down.weight":
            wanted = wanted.chunk(size, 1)[rank]
        torch.testing.assert_close(parameter.grad, wanted, msg=name)
    assert regions() >= 2


def main() -> None:
    dist.init_process_group("gloo")
    for check in (check_ddp, check_fsdp, check_tensor_parallel):
        check()
        if dist.get_rank() == 0:
            print(check.__name__, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo that still runs at the end of the process would terminate it
