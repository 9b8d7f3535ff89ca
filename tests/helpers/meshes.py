# SPDX-License-Identifier: Apache-2.0
"""Several ranks: one after the other in this process (a fake process group), or gloo processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from helpers.forked import Job, fork_all
from thunder_fuser import FusionDefinition, ParallelType
from thunder_fuser.ir.frontend.values import Tensor

MESH = {1: [0], 2: [0, 1], 4: [0, 1, 2, 3], 8: [0, 1, 2, 3, 4, 5, 6, 7]}


@contextmanager
def as_rank(rank: int, size: int) -> Iterator[None]:
    """This process as one of several; collectives move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def shard(tensor: Tensor, axis: int, devices: int) -> None:
    """One axis over a mesh of one dimension."""
    tensor.set_device_mesh(MESH[devices])
    tensor.outer_split(axis, devices)
    tensor.axis(axis).parallelize(ParallelType.mesh_x)


def on_each(
    size: int,
    build: Callable[[], FusionDefinition],
    inputs: Callable[[int], list[torch.Tensor]],
    target: str | None,
) -> list[list[torch.Tensor]]:
    """The results of every rank."""
    found = []
    for rank in range(size):
        with as_rank(rank, size):
            found.append(build().execute(inputs(rank), target=target))
    return found


def run_gloo(script: str, size: int, *arguments: str, seconds: int = 150) -> None:
    """The script in `size` processes; AssertionError with their output if one fails."""
    failed = [text for code, text in gloo(script, size, *arguments, seconds=seconds) if code]
    assert not failed, failed[0][-4000:]


def gloo(script: str, size: int, *arguments: str, seconds: int) -> list[tuple[int, str]]:
    """The status and the output of each of `size` processes that run the script.

    All are forked from one. Those that have not ended in time are killed.
    """
    common = {
        "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(29500 + os.getpid() % 2000 + size),
    }  # fmt: skip
    command = [str(Path(__file__).with_name(script)), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(rank)) for rank in range(size)]
        jobs = [
            Job(command, str(output), str(output), {**common, "RANK": output.name}, seconds)
            for output in outputs
        ]
        # Thunder counts GPUs, and then a child could not use them.
        statuses = fork_all(jobs, modules=()) if "cuda" in arguments else fork_all(jobs)
        texts = [output.read_text(errors="replace") for output in outputs]
    return list(zip(statuses, texts, strict=True))
