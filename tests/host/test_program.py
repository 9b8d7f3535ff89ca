# SPDX-License-Identifier: Apache-2.0
"""The texts of host programs: each kind of node, for what makes programs differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from helpers.meshes import MESH, as_rank, shard

from thunder_fuser import FusionDefinition, MultiDeviceParams, ParallelType, options

WHERE = {"mesh": MESH[2], "on": "mesh_x"}
Inputs = Sequence[Any]


def lowered(**lower: Any) -> AbstractContextManager[Any]:
    return options(multi_device=MultiDeviceParams().with_(lower=lower))


def matrix(fd: FusionDefinition, **more: Any) -> Any:
    return fd.define_tensor([-1, -1], True, **more)


def reshaped(fd: FusionDefinition) -> Inputs:
    """Kernels, a torch call, a value that is freed, results in shapes of their own."""
    x, w = (fd.from_pytorch(one, static_sizes=True) for one in (torch.ones(6, 4), torch.ones(4, 6)))
    y = fd.ops.matmul(fd.ops.exp(x), w)
    z = fd.ops.tanh(y)
    fd.add_output(z, shape=[2, 3, 6])
    fd.add_output(fd.ops.sum(fd.ops.mul(z, 2.0), [1]))
    fd.add_output(y, shape=[36])
    return [torch.ones(6, 4), torch.ones(4, 6)]


def copied(fd: FusionDefinition) -> Inputs:
    """A value that torch computes in another order than asked for, an argument, and both twice."""
    x, w = (fd.from_pytorch(torch.ones(4, 6), static_sizes=True) for _ in range(2))
    y = fd.ops.matmul(x, fd.ops.permute(w, [1, 0]))
    fd.add_output(y, stride_order=[0, 1])
    fd.add_output(y)
    fd.add_output(x)
    fd.add_output(x, stride_order=[0, 1])
    return [torch.ones(4, 6), torch.ones(4, 6)]


def swapped(fd: FusionDefinition) -> Inputs:
    """Arguments that are written into each other: the old value of one is kept."""
    x, y = matrix(fd), matrix(fd)
    z = fd.ops.add(x, y)
    fd.add_output(y, x)
    fd.add_output(z, y)
    fd.add_output(z)
    return [torch.ones(4, 6), torch.ones(4, 6)]


def donated(fd: FusionDefinition) -> Inputs:
    """A kernel writes into the arguments' memory, and autograd is told of one of them."""
    x, m, g = matrix(fd, donated=True), matrix(fd, donated=True), matrix(fd)
    moment = fd.ops.add(fd.ops.mul(m, 0.9), g)
    fd.add_output(moment, m)
    fd.add_output(fd.ops.exp(fd.ops.mul(x, g)))
    return [torch.ones(40, 60), torch.ones(40, 60), torch.ones(40, 60)]


def numbers(fd: FusionDefinition) -> Inputs:
    """Scalars, tensors without axes on the host, random numbers of a drawn seed."""
    x, s = matrix(fd), fd.define_scalar(None)
    t = fd.define_tensor([], is_cpu=True)
    fd.add_output(fd.ops.mul(fd.ops.add(x, s), t))
    fd.add_output(fd.ops.uniform(0.0, 1.0, shape=[4, 6]))
    fd.add_output(fd.ops.normal(s, 1.0, shape=[5]))
    return [torch.ones(4, 6), 2.0, torch.tensor(3.0)]


def collectives(fd: FusionDefinition) -> Inputs:
    """Two collectives, of which the first hides behind a kernel that does not read it."""
    x, y = matrix(fd), matrix(fd)
    gathered = fd.ops.all_gather(fd.ops.exp(x), 0, **WHERE)
    own = fd.ops.sum(fd.ops.tanh(y), [1])
    fd.add_output(fd.ops.mul(fd.ops.sum(gathered, [1]), 2.0))
    fd.add_output(fd.ops.neg(fd.ops.all_reduce(own, **WHERE)))
    return [torch.ones(4, 6), torch.ones(4, 6)]


def on_a_mesh(fd: FusionDefinition) -> Inputs:
    """A coordinate, and a collective whose result is a column-major tensor."""
    x = matrix(fd)
    total = fd.ops.redistribute(fd.ops.sum(fd.ops.exp(x), [0]), ["Shard(0)"])
    fd.add_output(total)
    whole = fd.ops.redistribute(x, ["Replicate()"])
    fd.add_output(whole, stride_order=[0, 1])
    fd.add_output(fd.ops.redistribute(fd.ops.tanh(whole), ["Shard(1)"]))
    shard(x, 0, 2)
    return [torch.ones(4, 6)]


def pipeline(fd: FusionDefinition) -> Inputs:
    """Both products with communication are calls, the second with a bias behind it."""
    x, v, w, b = (*(matrix(fd) for _ in range(3)), fd.define_tensor([-1], True))
    y = fd.ops.linear(fd.ops.all_gather(x, 0, **WHERE), v, b)
    fd.add_output(fd.ops.reduce_scatter(fd.ops.matmul(fd.ops.tanh(y), w), 0, **WHERE))
    return [torch.ones(4, 8), torch.ones(6, 8), torch.ones(6, 5), torch.ones(6)]


def pieces(fd: FusionDefinition) -> Inputs:
    """A product whose rows are communicated in pieces, and one whose columns are computed so."""
    x, w, v = (matrix(fd) for _ in range(3))
    y = fd.ops.matmul(fd.ops.all_gather(x, 0, **WHERE), w)
    y.outer_split(0, 4).axis(0).parallelize(ParallelType.stream)
    z = fd.ops.matmul(fd.ops.tanh(y), v)
    z.outer_split(1, 2).axis(1).parallelize(ParallelType.stream)
    fd.add_output(z)
    return [torch.ones(4, 8), torch.ones(8, 6), torch.ones(6, 6)]


def late() -> AbstractContextManager[Any]:
    return options(multi_device=MultiDeviceParams().with_(executor={"early": False}))


CASES: dict[str, tuple[Callable[[FusionDefinition], Inputs], Callable[[], Any], str]] = {
    "reshaped": (reshaped, nullcontext, "cpu"),
    "copied": (copied, nullcontext, "cpu"),
    "swapped": (swapped, nullcontext, "cpu"),
    "donated": (donated, nullcontext, "cpu"),
    "numbers": (numbers, nullcontext, "cpu"),
    "emulated": (numbers, nullcontext, "emulator"),
    "collectives": (collectives, nullcontext, "cpu"),
    "awaited-at-once": (collectives, late, "cpu"),
    "on-a-mesh": (on_a_mesh, nullcontext, "cpu"),
    "pipeline": (pipeline, lambda: lowered(overlap="always"), "cpu"),
    "no-pipeline": (pipeline, lambda: lowered(overlap="never"), "cpu"),
    "pieces": (pieces, nullcontext, "cpu"),
}


@pytest.mark.parametrize("name", CASES)
def test_texts(name: str, golden: Callable[..., None]) -> None:
    build, settings, target = CASES[name]
    with settings(), as_rank(0, 2):
        with FusionDefinition() as fd:
            inputs = build(fd)
        golden(str(fd.program(inputs, target=target)))


def test_sizes_are_numbers_of_the_text(golden: Callable[..., None]) -> None:
    with FusionDefinition() as fd:
        _, *others = numbers(fd)
    for rows in (1, 5):
        text = str(fd.program([torch.ones(rows, 6), *others]))
        golden(text, part=f"{rows}-rows")
