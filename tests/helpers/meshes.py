# SPDX-License-Identifier: Apache-2.0
"""Several ranks: one after the other in this process (a fake process group), or gloo processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    """The status and the output of each of `size` processes that run the script.

    All are forked from one (fork_ranks.py). Those that have not ended in time are killed.
    """
    path = Path(__file__).with_name(script)
    port = 29500 + os.getpid() % 2000 + size
    places = [str(path.parents[2]), str(path.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        starter = [sys.executable, str(Path(__file__).with_name("fork_ranks.py"))]
        ranks = subprocess.Popen(
            [*starter, folder, str(size), str(path), *arguments], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            said = ranks.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            said = f"no end after {seconds} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
        return [_ended(Path(folder, str(rank)), said) for rank in range(size)]


def _ended(output: Path, said: str) -> tuple[int, str]:
    """A rank's status, 1 if it was killed, and its output, with what was said of all."""
    status = output.with_suffix(".status")
    text = output.read_text(errors="replace") if output.exists() else ""
    return int(status.read_text()) if status.exists() else 1, text + said
