# SPDX-License-Identifier: Apache-2.0
"""Which kernels may be launched, in a CUDA graph, while the one before them runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.host.programs.launchers import is_short


def meta(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, dtype=torch.bfloat16, device="meta")


def softmax(ops: Any, x: Any) -> Any:
    wide = ops.cast(x, DataType.Float)
    powers = ops.exp(ops.sub(wide, ops.max(wide, [1], keepdim=True)))
    return ops.truediv(powers, ops.sum(powers, [1], keepdim=True))


def normalised(ops: Any, x: Any) -> Any:
    """Of each channel of images, in one block for each."""
    wide = ops.cast(x, DataType.Float)
    variance, mean = ops.var_mean(wide, [0, 2, 3], correction=0, keepdim=True)
    return ops.mul(ops.sub(wide, mean), ops.rsqrt(ops.add(variance, 1e-5)))


def product(ops: Any, x: Any, weight: Any) -> Any:
    return ops.linear(x, weight)


CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor], bool]] = {
    "rows in many blocks": (softmax, [meta(65536, 8192)], True),
    "a few rows": (softmax, [meta(16, 8192)], True),
    "a token's product": (product, [meta(8, 8192), meta(2048, 8192)], True),
    "a head": (product, [meta(1, 2048), meta(128256, 2048)], True),
    "a wave of long blocks": (normalised, [meta(256, 256, 56, 56)], False),
    "short blocks of channels": (normalised, [meta(4, 256, 8, 8)], True),
}


@pytest.mark.parametrize("name", CASES)
def test_long_blocks_wait_for_their_turn(name: str) -> None:
    build, args, expected = CASES[name]
    with FusionDefinition() as fd:
        result = build(fd.ops, *map(fd.from_pytorch, args))
        fd.add_output(fd.ops.cast(result, DataType.BFloat16))
    plan, sources = fd.plan(args, target="h200"), fd.sources(args, target="h200")
    pairs = zip(plan.segments, sources, strict=True)
    assert [is_short(segment.part, source) for segment, source in pairs] == [expected]
