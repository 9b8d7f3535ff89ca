# SPDX-License-Identifier: Apache-2.0
"""Tensors with more than 2**31 elements, or elements that far apart, run on each target.

Memory between the elements is never touched; of values that no memory holds only the end is read.
tests/gpu/test_wide_tensors.py has whole ones, tests/regression/test_wide_indices.py index types.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.cases import Runner, ints, rand

from thunder_fuser.compiler import emit, schedule
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.runtime import random
from thunder_fuser.target import H200

FAR = 2**30 + 8  # of three rows the last begins beyond 2**31
Build = Callable[[FusionDefinition, Tensor], Value]


@pytest.mark.parametrize(
    ("shape", "strides"), [((3, 16), (FAR, 1)), ((16, 3), (1, FAR)), ((3, 5), (FAR, 2))], ids=str
)
def test_elements_far_apart(
    run: Runner, shape: tuple[int, int], strides: tuple[int, int]
) -> None:
    x = torch.empty_strided(shape, strides, dtype=torch.int8)
    x.copy_(ints(*shape, dtype=torch.int8))
    index = torch.tensor([2, 0])

    def build(fd: FusionDefinition) -> None:
        t, at = fd.from_pytorch(x), fd.from_pytorch(index)
        for value in (
            fd.ops.mul(t, 2), fd.ops.sum(t), fd.ops.sum(t, [0]), fd.ops.max(t, [1]),
            fd.ops.flip(t, [0]), fd.ops.permute(t, [1, 0]), fd.ops.argmax(t),
            fd.ops.index_select(t, at, 0), fd.ops.index_select(t, at, 1),
        ):  # fmt: skip
            fd.add_output(value)

    near = x.contiguous()
    expected = [
        near * 2, near.sum(), near.sum(0), near.amax(1), near.flip(0), near.t(), near.argmax(),
        near[index], near[:, index],
    ]  # fmt: skip
    run(build, [x, index], expected)


def test_the_end_of_values_that_no_memory_holds(run: Runner) -> None:
    """Of 2**33 places: as they are, moved, in rows, padded to, and behind others."""
    end, start = 2**33, 2**33 - 8
    x = rand(8)

    def build(fd: FusionDefinition) -> None:
        ops, t = fd.ops, fd.from_pytorch(x)
        places = ops.iota(end, 0, 1, DataType.Int)
        rows = ops.reshape(places, [2**20, 2**13])
        padded = ops.pad(t, [2**32, 2**32])
        for value in (
            ops.slice(places, [start], [end]),
            ops.slice(ops.flip(places, [0]), [start], [end]),
            ops.slice(rows, [2**20 - 2, 2**13 - 3], [2**20, 2**13]),
            ops.slice(padded, [2**32 - 1], [2**32 + 9]),
            ops.slice(ops.cat([places, ops.cast(t, DataType.Int)], 0), [end - 4], [end + 8]),
        ):
            fd.add_output(value)

    last = torch.arange(start, end)
    expected = [
        last, torch.arange(7, -1, -1), torch.stack([last[5:] - 2**13, last[5:]]),
        torch.nn.functional.pad(x, (1, 1)), torch.cat([last[4:], x.long()]),
    ]  # fmt: skip
    run(build, [x], expected)


def test_random_numbers_at_the_end(run: Runner) -> None:
    """The place of an element over four, in 64 bits, is half of what Philox makes it of."""
    seed, offset, start = 3, 7, 2**35

    def build(fd: FusionDefinition) -> None:
        made = fd.ops.uniform(0.0, 1.0, [start + 8], DataType.Float, seed, offset)
        fd.add_output(fd.ops.slice(made, [start], [start + 8]))

    group = torch.arange(start, start + 8, 4) // 4
    zero = torch.zeros_like(group)
    words = torch.stack(
        random.philox((zero + offset, zero, group % 2**32, group >> 32), (zero + seed, zero)), 1
    )
    run(build, [], [((words.flatten() >> 8).double() * 2.0**-24).float()])


BUILDS: dict[str, Build] = {
    "pointwise": lambda fd, x: fd.ops.mul(x, 2.0),
    "sum": lambda fd, x: fd.ops.sum(x),
    "sums of rows": lambda fd, x: fd.ops.sum(x, [1]),
    "sums of columns": lambda fd, x: fd.ops.sum(x, [0]),
    "rows": lambda fd, x: fd.ops.sub(x, fd.ops.max(x, [1], True)),
    "columns": lambda fd, x: fd.ops.sub(x, fd.ops.max(x, [0], True)),
    "transposed": lambda fd, x: fd.ops.neg(fd.ops.permute(x, [1, 0])),
    "running sums": lambda fd, x: fd.ops.cumsum(x, 1),
    "place": lambda fd, x: fd.ops.argmax(x),
}
SHAPES = ((2**31 + 8, 2), (2, 2**31 + 8), (2**17, 2**15), (2**33, 3), (2**36, 1), (1, 2**36))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", BUILDS)
def test_grids(name: str, shape: tuple[int, int]) -> None:
    """Within what CUDA launches: 2**31 - 1 blocks along x, 65535 along y and z."""
    x = torch.empty(shape, dtype=torch.int8, device="meta")
    fd = FusionDefinition()
    t = fd.from_pytorch(x)
    fd.add_output(BUILDS[name](fd, t))
    for segment in fd.plan([x], target=H200).segments:
        source = emit(schedule(segment, {t.name: 16}))
        assert source is not None
        assert source.grid[0] < 2**31 and max(source.grid[1:]) <= 65535
        reads_all = t.name in segment.inputs
        assert not reads_all or "const i64 i" in source.text
