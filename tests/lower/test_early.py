# SPDX-License-Identifier: Apache-2.0
"""Which kernels may start, in a CUDA graph, before the kernel before them has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from thunder_fuser import DataType, FusionDefinition


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
    "many rows": (softmax, [meta(65536, 8192)], False),
    "a few rows": (softmax, [meta(16, 8192)], True),
    "as many bytes as a token's product": (softmax, [meta(1024, 8192)], False),
    "a token's product": (product, [meta(8, 8192), meta(2048, 8192)], True),
    "a head": (product, [meta(1, 2048), meta(128256, 2048)], False),
    "images": (normalised, [meta(256, 256, 56, 56)], False),
    "small images": (normalised, [meta(4, 256, 8, 8)], True),
}


@pytest.mark.parametrize("name", CASES)
def test_only_short_kernels_are_early(name: str) -> None:
    """An early kernel waits first, and no argument is promised to stay as it is."""
    build, args, expected = CASES[name]
    with FusionDefinition() as fd:
        result = build(fd.ops, *map(fd.from_pytorch, args))
        fd.add_output(fd.ops.cast(result, DataType.BFloat16))
    (source,) = fd.sources(args, target="h200")
    assert source.early == expected
    assert ("after_earlier_kernels();" in source.body) == expected
    assert ("const bf16* __restrict__" in source.body) != expected


@pytest.mark.parametrize("target", ["cpu", "a100"])
def test_only_devices_that_can_launch_early_have_early_kernels(target: str) -> None:
    with FusionDefinition() as fd:
        fd.add_output(softmax(fd.ops, fd.from_pytorch(meta(16, 64))))
    (source,) = fd.sources([meta(16, 64)], target=target)
    assert not source.early and "const bf16* __restrict__" in source.body
