# SPDX-License-Identifier: Apache-2.0
"""What is near a mean is subtracted from it: equal values of 16 bits vary by 0, as in torch.

A mean must be exact where the sum is. An inexact one leaves 1e-15, and 1 / sqrt of it is finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.pairs import pairs
from torch import Tensor

from thunder_fuser import FusionDefinition
from thunder_fuser.explain.jitted import jit

LENGTHS = (3, 6, 41, 49, 500, 2047)  # the reciprocals of some make 1 of no whole number


def by_hand(x: Tensor, dims: Any) -> Tensor:
    return (x - x.mean(dims, keepdim=True)).square().mean(dims)


VARIANCES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "var": torch.var,
    "var_mean": lambda x, dims: torch.var_mean(x, dims)[0],
    "of floats": lambda x, dims: torch.var_mean(x.float(), dims)[0].bfloat16(),
    "by hand": lambda x, dims: by_hand(x.float(), dims).bfloat16(),
}
SHAPES: dict[str, Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "rows": lambda length: ((5, length), (1,)),
    "columns": lambda length: ((length, 5), (0,)),
    "all": lambda length: ((2, length), (0, 1)),
}


@pytest.mark.parametrize(
    ("name", "shape", "emulate"), pairs([*VARIANCES], [*SHAPES], [False, True])
)
def test_equal_values_vary_by_nothing(name: str, shape: str, emulate: bool) -> None:
    def function(x: Tensor, dims: Any) -> tuple[Tensor, Tensor]:
        variance = VARIANCES[name](x, dims)
        return variance, torch.rsqrt(variance)

    jitted = jit(function, strict=True, emulate=emulate)
    for length in LENGTHS:
        sizes, dims = SHAPES[shape](length)
        for value in (1.0, 3.3, 0.1):
            x = torch.full(sizes, value, dtype=torch.bfloat16)
            for found, expected in zip(jitted(x, dims), function(x, dims), strict=True):
                torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_quotient_by_a_count_is_rounded_as_a_division() -> None:
    """On a GPU too, where it is made of multiplications."""
    ordinary = torch.randn(400, generator=torch.Generator().manual_seed(0)) * 1e3
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.4e38, 1e-30])
    x = torch.cat([ordinary, special])
    for count in (*LENGTHS, 7, 83, 2**24, 2**24 + 2):
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.truediv(fd.from_pytorch(x), float(count)))
        (found,) = fd.execute([x], target="emulator")
        expected = x / torch.tensor(float(count))
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit(), expected.signbit())
