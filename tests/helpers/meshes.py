# SPDX-License-Identifier: Apache-2.0
"""Several ranks: one after the other in this process (a fake process group), or gloo processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

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
    """The status and the output of each of `size` processes that run the script."""
    path = Path(__file__).with_name(script)
    port = 29500 + os.getpid() % 2000 + size
    places = [str(path.parents[2]), str(path.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, str(path), *arguments], env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(size)
    ]
    try:
        texts = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(one.returncode, text) for one, text in zip(processes, texts, strict=True)]
