# SPDX-License-Identifier: Apache-2.0
"""Offsets that do not fit 32 bits: of a tensor with that many elements, with strides that far, or
of one that never reaches memory. Nothing is run; the kernel's text says which index it counts in.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from thunder_fuser.compiler import emit, schedule
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.target import H200


def _index_types(
    tensor: torch.Tensor, build: Callable[[FusionDefinition, Tensor], Value]
) -> set[str]:
    fd = FusionDefinition()
    x = fd.from_pytorch(tensor)
    fd.add_output(build(fd, x))
    found = set()
    for segment in fd.plan([tensor], target=H200).segments:
        source = emit(schedule(segment, {x.name: 16}))
        assert source is not None
        found.add("i64" if "const i64 i" in source.text else "i32")
    return found


def _doubled(fd: FusionDefinition, x: Tensor) -> Value:
    return fd.ops.mul(x, 2.0)


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [
        ((2**31 - 1,), (1,), "i32"),
        ((2**31 + 8,), (1,), "i64"),
        ((4, 1000), (2**30, 1), "i64"),
        ((2, 1000), (2**30, 1), "i32"),
    ],
)
def test_pointwise(size: tuple[int, ...], stride: tuple[int, ...], expected: str) -> None:
    tensor = torch.empty_strided(size, stride, dtype=torch.int8, device="meta")
    assert _index_types(tensor, _doubled) == {expected}


def test_reduction() -> None:
    tensor = torch.empty((2**16, 2**16), dtype=torch.bfloat16, device="meta")
    assert _index_types(tensor, lambda fd, x: fd.ops.sum(x, [1])) == {"i64"}


def test_a_tensor_between() -> None:
    def build(fd: FusionDefinition, x: Tensor) -> Value:
        wide = fd.ops.broadcast_in_dim(x, [3 * 2**20, 1000], [1])
        rows = fd.ops.reshape(wide, [2**20, 3000])
        return fd.ops.slice(rows, [0, 0], [2**20, 1])

    assert _index_types(torch.empty(1000, device="meta"), build) == {"i64"}
