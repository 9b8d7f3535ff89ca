# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of integers and bools wraps at the ends of each type, on each target, as torch's does.

In C++ the overflow of signed integers is undefined, and what a compiler makes of it depends on what
stands around it: so each op is given numbers, tensors, and casts of bools.
"""

from __future__ import annotations

import pytest
import torch
from helpers.cases import Runner

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType, integer_range
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.runtime.torch_types import to_torch_dtype

INTEGERS = [dtype for dtype in DataType if dtype.is_int]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap(run: Runner, dtype: DataType) -> None:
    low, high = integer_range(dtype)
    numbers = [low, low + 1, high - 1, high, 1, 0, high // 2 + 1]
    x = torch.tensor(numbers, dtype=to_torch_dtype(dtype))
    y = x.flip(0).clone()
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(x), fd.from_pytorch(y)
        for op in (fd.ops.add, fd.ops.sub, fd.ops.mul):
            for one, other in ((a, b), (a, high), (low, b)):
                fd.add_output(op(one, other))
        fd.add_output(fd.ops.neg(a))
        fd.add_output(fd.ops.abs(a))
    got = fd.execute([x, y], target=run.target)
    wanted = [
        op(one, other)
        for op in (torch.add, torch.sub, torch.mul)
        for one, other in ((x, y), (x, high), (torch.tensor(low, dtype=x.dtype), y))
    ] + [-x, x.abs()]
    for mine, right in zip(got, wanted, strict=True):
        assert (mine.dtype, mine.tolist()) == (right.dtype, right.tolist())


def test_a_bool_and_the_largest_number_wrap(run: Runner) -> None:
    x = torch.tensor([True, False])
    most = 2**63 - 1
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        fd.add_output(fd.ops.add(a, most))
        fd.add_output(fd.ops.sub(fd.ops.cast(a, DataType.Int), -most - 1))
        fd.add_output(fd.ops.sum(fd.ops.add(a, most), [0]))
    got = fd.execute([x], target=run.target)
    wanted = [x + most, x.long() - (-most - 1), (x + most).sum()]
    assert [one.tolist() for one in got] == [one.tolist() for one in wanted]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32], ids=str)
def test_a_triangle_keeps_its_type(run: Runner, dtype: torch.dtype) -> None:
    x = torch.ones(3, 4).to(dtype)
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        triangles: list[Value] = [fd.ops.triu(a, 1), fd.ops.tril(a)]
        for one in triangles:
            fd.add_output(one)
    for mine, right in zip(fd.execute([x], target=run.target), (x.triu(1), x.tril()), strict=True):
        assert mine.dtype is dtype
        assert torch.equal(mine, right)
