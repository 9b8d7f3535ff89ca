# SPDX-License-Identifier: Apache-2.0
"""Under the option `repeatable` a sum has the same bits in whatever kernel it is made."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.cases import TARGETS, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import options
from thunder_fuser.schedule.repeatable import shape_of
from thunder_fuser.target import EMULATOR

Build = Callable[[FusionDefinition], None]
Sums = dict[str, list[torch.Tensor]]  # the sums over rows, and over columns, of several kernels

# One row a few threads; several rows a block, whose end no vector holds; runs of rows and rows in
# one kernel; odd ones; a cluster.
SHAPES = ((33, 100), (150, 512), (130, 1001), (2, 40000))


def rows(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, -1], [True, True])
    fd.add_output(fd.ops.sum(x, dims=[1]))


def columns(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, -1], [True, True])
    fd.add_output(fd.ops.sum(x, dims=[0]))


def normalised(fd: FusionDefinition) -> None:
    """The row stays on chip, with an exp beside it."""
    x = fd.define_tensor([-1, -1], [True, True])
    total = fd.ops.sum(x, dims=[1], keepdim=True)
    fd.add_output(fd.ops.squeeze(total, dims=[1]))
    fd.add_output(fd.ops.mul(fd.ops.exp(fd.ops.mul(x, total)), total))


def both(fd: FusionDefinition) -> None:
    """As in a norm's backward."""
    x = fd.define_tensor([-1, -1], [True, True])
    total = fd.ops.sum(x, dims=[1], keepdim=True)
    fd.add_output(fd.ops.squeeze(total, dims=[1]))
    fd.add_output(fd.ops.sum(x, dims=[0]))
    fd.add_output(fd.ops.mul(x, total))


def masked(dim: int) -> Build:
    """With a narrow input, beside which loads could be wider."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], [True, True])
        mask = fd.define_tensor([-1, -1], [True, True], dtype=DataType.Bool)
        fd.add_output(fd.ops.sum(fd.ops.where(mask, x, 0.0), dims=[dim]))

    return build


def sums(target: str, shape: tuple[int, int], **given: bool) -> Sums:
    """The same sums in several kernels."""
    x = rand(*shape)
    mask = torch.ones(shape, dtype=torch.bool)
    aside = torch.empty(x.numel() + 1)[1:].view(shape).copy_(x)  # at no vector's address

    def run(build: Build, *inputs: torch.Tensor) -> list[torch.Tensor]:
        with FusionDefinition() as fd:
            build(fd)
        with options(emulate=target == "emulator", **given):
            return fd.execute(inputs)  # type: ignore[no-any-return]

    together = run(both, x)
    return {
        "rows": [
            run(rows, x)[0], run(masked(1), x, mask)[0], run(normalised, x)[0],
            run(normalised, aside)[0], together[0],
        ],
        "columns": [run(columns, x)[0], run(masked(0), x, mask)[0], together[1]],
    }


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", TARGETS)
def test_bits_of_sums(target: str, shape: tuple[int, int]) -> None:
    for what, made in sums(target, shape, repeatable=True).items():
        for at, one in enumerate(made):
            assert torch.equal(one, made[0]), (what, at)


def test_other_sums_are_free() -> None:
    """Without the option loads are as wide as a kernel allows: the order of additions changes."""
    made = sums("emulator", (150, 512))["rows"]
    assert not all(torch.equal(one, made[0]) for one in made)


@pytest.mark.parametrize("length", (1, 3, 16, 17, 100))
def test_loops_do_not_cut_a_row(length: int) -> None:
    """The CPU's lanes go on where a loop around them takes its next turn."""
    x = rand(3, length, 5)
    apart = torch.empty(3, length, 8)[..., :5].copy_(x)  # rows that are no single axis

    def run(read: torch.Tensor) -> torch.Tensor:
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.sum(fd.from_pytorch(read), dims=[1, 2]))
        with options(repeatable=True):
            return fd.execute([read])[0]  # type: ignore[no-any-return]

    assert torch.equal(run(x), run(apart))


@pytest.mark.parametrize(
    "columns", (1, 7, 64, 768, 1280, 4096, 5120, 8192, 12288, 50257, 128256, 1 << 18)
)
def test_threads_hold_a_row(columns: int) -> None:
    """Whole warps or parts of one, in blocks and clusters that exist, and no thread has too much
    to keep."""
    threads, cluster = shape_of(columns, EMULATOR.max_cluster)
    assert 8 <= threads <= 512 and (threads % 32 == 0 or 32 % threads == 0)
    assert 1 <= cluster <= EMULATOR.max_cluster and cluster & (cluster - 1) == 0
    assert columns <= 64 * threads * cluster
